"""Tests that every subcommand passes: each file in chunkflow_py/cli/subcommands is collected."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli

SUBCOMMANDS = catalog.subcommands()

# Nothing of these may be imported before a subcommand acts.
HEAVY = {"boto3", "cloudvolume", "h5py", "numpy", "openvino", "tifffile", "torch", "tqdm", "zarr"}


def options_of(name: str) -> list[click.Option]:
    """Return the options of a subcommand, without --help."""
    return [p for p in catalog.load(name).params if isinstance(p, click.Option)]


def docstring(name: str) -> str:
    """Return the docstring of the file of a subcommand."""
    return ast.get_docstring(ast.parse(Path(catalog.path_of(name)).read_text())) or ""


def test_subcommands_and_operators_share_no_name() -> None:
    """No name is both an operator and a subcommand."""
    assert "tune" in SUBCOMMANDS
    assert not set(SUBCOMMANDS) & set(catalog.names())
    assert catalog.commands() == (*catalog.names(), *SUBCOMMANDS)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_shows_summary_and_example(name: str) -> None:
    """--help works, begins with the summary and shows an example line of options that exist."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert catalog.describe(name).summary in text
    assert catalog.describe(name).kind == "subcommand"
    assert f"Usage: cli {name}" in text
    example = re.search(r"Example: chunkflow (.*?)(\n\n|\Z)", docstring(name), re.DOTALL)
    assert example
    subcommand, *words = example[1].replace("\\\n", " ").split()
    assert subcommand == name
    known = {o for p in options_of(name) for o in (*p.opts, *p.secondary_opts)}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_summary_is_one_short_sentence(name: str) -> None:
    """The summary is the docstring's first line, short, capitalised, with a full stop."""
    summary = docstring(name).partition("\n")[0]
    assert catalog.describe(name).summary == summary
    assert re.fullmatch(r"[A-Z].{,70}\.", summary)
    assert catalog.load(name).help.startswith(summary)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_options_say_their_default_and_what_they_do(name: str) -> None:
    """Each option has a help text and its own spellings, and one with a default shows it."""
    spellings = [o for p in options_of(name) for o in (*p.opts, *p.secondary_opts)]
    assert len(spellings) == len(set(spellings))
    for option in options_of(name):
        assert option.help, f"{name} {option.opts[0]} has no help"
        default = option.to_info_dict()["default"]
        switch = option.is_flag and not option.secondary_opts
        if default is not None and not option.required and not switch:
            assert option.show_default or "[default:" in option.help


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_bad_values_end_with_2(name: str) -> None:
    """A value of the wrong type, and an unknown option, are usage errors, without a traceback."""
    runner = CliRunner()
    for option in options_of(name):
        if isinstance(option.type, click.types.StringParamType) or option.is_flag:
            continue
        result = runner.invoke(cli, [name, option.opts[0], *[","] * option.nargs])
        assert result.exit_code == 2, f"{option.opts[0]}: {result.output}"
        assert "Traceback" not in result.output
    result = runner.invoke(cli, [name, "--no-such-option"])
    assert result.exit_code == 2
    assert "No such option" in result.output


def test_importing_every_subcommand_imports_nothing_heavy() -> None:
    """All subcommands together import click and the standard library, no NumPy and no torch."""
    program = (
        "import sys\n"
        "from chunkflow_py.cli import catalog\n"
        "for name in catalog.subcommands(): catalog.load(name)\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_completion_offers_subcommands() -> None:
    """<TAB> offers subcommands with their summaries, as it does operators."""
    items = {i.value: i.help for i in cli.shell_complete(click.Context(cli), "tu")}
    assert items == {"tune": catalog.describe("tune").summary}
