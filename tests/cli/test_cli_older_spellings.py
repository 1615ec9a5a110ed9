"""Older names: they work, say once what they are called now, and are listed nowhere."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_parts import parts_of
from chunkflow_py.cli.main import OperatorGroup, cli
from chunkflow_py.core import older_names

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with one file."""
    monkeypatch.chdir(tmp_path)
    run("create-chunk -s 4 6 8 save-h5 -f image.h5")
    return tmp_path


def run(line: str) -> Result:
    """Run a command line."""
    return CliRunner().invoke(cli, shlex.split(line))


def notices(result: Result) -> list[str]:
    """Return the notices of a successful command line."""
    assert result.exit_code == 0, result.output
    return [line for line in result.stderr.splitlines() if " is now called " in line]


def test_an_older_command_is_the_command_with_a_notice() -> None:
    """An older name works, and one notice on stderr gives the current name."""
    done = run("read-h5 -f image.h5 -o a read-h5 -f image.h5 -o b write-h5 -i a -f ab.h5")
    assert notices(done) == [
        "INFO: read-h5 is now called load-h5",
        "INFO: write-h5 is now called save-h5",
    ]
    assert notices(run("--quiet read-h5 -f image.h5 write-h5 -f c.h5")) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("load-h5 -f image.h5 delete-var -c chunk", "delete-var -c is now called --var-names"),
        ("load-h5 -f image.h5 delete-var -cchunk", "delete-var -c is now called --var-names"),
        (
            "load-h5 -f image.h5 inference --patch-size 2 4 4 --patch-overlap 0 0 0 -f identity",
            "inference --patch-size is now called --input-patch-size",
        ),
        (
            "load-h5 -f image.h5 save --nproc=1 -v precomputed://em",
            "save-precomputed --nproc is now called --parallel",
        ),
    ],
)
def test_an_older_option_is_the_option_with_a_notice(line: str, said: str) -> None:
    """However its value is written; the same letters of other commands are left alone."""
    found = notices(run(line))
    assert f"INFO: {said}" in found
    assert len(found) == len(set(found))


def test_options_of_other_commands_are_left_alone() -> None:
    """Only options of the command itself are translated, not values or later commands."""
    assert notices(run("load-h5 -f image.h5 copy-var -t -c delete-var -v -c")) == []


def test_a_line_is_stored_with_its_present_names() -> None:
    """A run stores the current names, even if older ones were typed."""

    def words(line: str) -> list[tuple[str, ...]]:
        kept: list[tuple[str, ...]] = []
        reader = OperatorGroup("chunkflow", chain=True, params=cli.params)

        @reader.result_callback()
        @click.pass_context
        def keep(ctx: click.Context, /, stages: list[object], **_: object) -> None:
            kept.extend(part.argv for part in parts_of(ctx, stages))  # type: ignore[arg-type]

        reader.main(line.split(), standalone_mode=False)
        return kept

    old = "cutout -v precomputed://a --start 0 0 0 --stop=1 2 2 delete-chunk -c chunk"
    new = "load-precomputed -v precomputed://a --chunk-start 0 0 0 --chunk-stop=1 2 2"
    assert words(old) == words(f"{new} delete-var --var-names chunk")


def test_older_names_are_listed_nowhere() -> None:
    """Neither in help nor in completion, but their help is that of the command."""
    listed = run("--help").output
    offered = [item.value for item in cli.shell_complete(click.Context(cli), "")]
    for name in older_names.COMMANDS:
        assert not re.search(rf"^ +{name} ", listed, re.MULTILINE)
        assert name not in offered
    assert "Usage: cli load-h5" in run("read-h5 --help").output
    for name, older in older_names.OPTIONS.items():
        if name in catalog.names():
            text = run(f"{name} --help").output
            declared = {o for p in catalog.load(name).params for o in p.opts}
            assert not declared & {*older}, f"{name} has them as its own"
            assert {new.partition("=")[0] for new in older.values()} <= declared
            assert not [old for old in older if f"{old} " in text and len(old) > 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cutuot", "No such command 'cutuot'. Did you mean load-precomputed?"),
        ("load-h5 -f a inference --pach-overlp 1 1 1", "Did you mean '--output-patch-overlap'"),
        ("load-h5 -f a load-zarr --strat 1 1 1", "'--chunk-start'"),
    ],
)
def test_suggestions_know_older_names(line: str, said: str) -> None:
    """A mistyped older name leads to the present one."""
    result = run(line)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", sorted(older_names.INSTEAD))
def test_what_is_not_here_is_answered_with_what_to_do_instead(name: str) -> None:
    """A removed option anywhere in a pipeline exits with 2 and names the alternative."""
    for line in (name, f"load-h5 -f image.h5 {name}"):
        result = run(line)
        assert result.exit_code == 2
        assert older_names.INSTEAD[name] in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "line",
    [
        "--dry-run generate-tasks -o 0 0 0 -c 1 1 1 -q sqlite://q",
        "--dry-run generate-tasks --overlap 0 0 0 -c 1 1 1 -q sqlite://q",
        "load-h5 --no-zero-filling -f image.h5",
        "load-h5 -f image.h5 mask --maskout -m 0 -v file://mask",
    ],
)
def test_options_for_what_is_always_done_are_left_out(line: str) -> None:
    """The command runs, and a notice says that they are no longer needed."""
    run("load-h5 -f image.h5 save -v file://mask")
    result = run(line)
    assert result.exit_code == 0, result.output
    assert " is no longer needed" in result.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, each) for command, table in older_names.OPTIONS_INSTEAD.items() for each in table],
)
def test_options_that_are_gone_are_answered_with_what_to_do_instead(
    command: str, option: str
) -> None:
    """Exit 2 and the alternative, whose options exist."""
    remedy = older_names.OPTIONS_INSTEAD[command][option]
    result = run(f"{command} {option} 1")
    assert result.exit_code == 2
    assert f"no longer has an option {option}; {remedy}" in " ".join(result.stderr.split())
    every = {o for name in catalog.names() for p in catalog.load(name).params for o in p.opts}
    assert {*re.findall(r"--[\w-]+", remedy)} <= every


# --- the program itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("debug", ["DEBUG", "INFO", "elapsed"]),
        ("info", ["INFO", "elapsed"]),
        ("warning", []),
        ("error", []),
        ("critical", []),
    ],
)
def test_the_log_level_of_older_lines_is_read(level: str, said: list[str]) -> None:
    """It says more or less, the table of times included; so does its short form."""
    for option in (f"--log-level {level}", f"-l {level}", f"--log-level={level}"):
        result = run(f"{option} read-h5 -f image.h5")
        assert result.exit_code == 0, result.output
        assert [word for word in ("DEBUG", "INFO", "elapsed") if word in result.stderr] == said


def test_the_log_file_of_older_lines_is_written(folder: Path) -> None:
    """Log lines also go to the file, with their time; a second run appends to it."""
    for option in ("--log-file", "-f"):
        assert run(f"{option} lines.log read-h5 -f image.h5").exit_code == 0
    lines = (folder / "lines.log").read_text().splitlines()
    assert (
        len([line for line in lines if line.endswith("INFO: read-h5 is now called load-h5")]) == 2
    )
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:", line) for line in lines)
    refused = run("--log-file no/such/folder.log create-chunk")
    assert refused.exit_code == 2
    assert "--log-file no/such/folder.log cannot be written" in refused.stderr


def test_the_program_alone_shows_its_help() -> None:
    """That is no mistake: exit 0, and the help on stdout."""
    result = run("")
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout


def test_hyphens_make_no_two_options_alike() -> None:
    """What is nothing like an option but for its hyphens is not taken for it."""
    assert "Did you mean" not in run("plan --spot").output
    assert "Did you mean '--machines'" in run("plan --machine 2").output
