"""Operators of other packages: found by their entry points, imported when they are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli import installed_operators as installed
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_package"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install the example by hand: its modules, and what an installer writes beside them."""
    shutil.copytree(EXAMPLE / "chunkflow_gamma", tmp_path / "chunkflow_gamma")
    told = tmp_path / "chunkflow_gamma-1.0.dist-info" / "entry_points.txt"
    told.parent.mkdir()
    lines = [
        "[console_scripts]", "other = other:main", f"[{installed.GROUP}]",
        "gamma = chunkflow_gamma.gamma", "twice = chunkflow_gamma.gamma:command",
        "load-h5 = chunkflow_gamma.gamma", "broken = chunkflow_gamma.nothing",
        "no_operator = chunkflow_gamma.gamma:gamma", "[more]", "last = last",
    ]  # fmt: skip
    told.write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.installed.cache_clear()
    catalog.describe.cache_clear()
    yield tmp_path
    installed.installed.cache_clear()
    catalog.describe.cache_clear()
    for name in [name for name in sys.modules if name.startswith("chunkflow_gamma")]:
        del sys.modules[name]


def run(line):
    """Run a command line."""
    return CliRunner().invoke(cli, line.split())


def test_an_installed_operator_is_a_command(package):
    """The operator is listed with its summary, has its own help, and runs in a pipeline."""
    assert catalog.more() == ("broken", "gamma", "no-operator", "twice")
    listed = run("--help").output
    assert "chunkflow_gamma" not in sys.modules, "nothing is imported for the list"
    assert "gamma" in listed.split("Process")[1].split("Segment")[0]
    assert "Brighten or darken an image" in listed
    assert "--power FLOAT" in run("gamma --help").output
    line = "create-chunk -s 4 4 4 gamma --power 0.5 -o b twice -i b -o c delete-var -v b,c"
    assert run(line).exit_code == 0
    (stage,) = read_line(["gamma", "--power", "2", "--name", "g"])
    assert (stage.name, stage.options["power"]) == ("g", 2.0)


def test_names_of_this_package_go_first(package):
    """An entry point called like a built-in command does not replace it."""
    assert "HDF5" in run("load-h5 --help").output
    assert catalog.load("load-h5").name == "load-h5"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "broken of the installed module chunkflow_gamma.nothing cannot be imported"),
        ("no-operator", "; the entry point must name a module with a function"),
        ("gama", "Did you mean gamma?"),
    ],
)
def test_what_cannot_be_loaded_ends_with_2(package, name, said):
    """A broken package affects only its own command, whose error names the cause."""
    result = run(name)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert "Operator of the package chunkflow_gamma." in run("--help").output


def test_listing_packages_imports_no_importlib_metadata(package):
    """The list of commands costs reading some files, not the library that reads all of it."""
    program = (
        "import sys; from chunkflow_py.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(package)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "gamma" in done.stdout) == (0, True), done.stderr


def test_the_skeleton_passes_as_it_is(tmp_path):
    """new-operator writes an operator and a test that pass; it overwrites nothing."""
    folder = tmp_path / "operators"
    done = run(f"new-operator double-it --folder {folder}")
    assert done.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"double_it.py", "test_double_it.py"}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 passed" in tested.stdout, tested.stdout
    again = run(f"new-operator double-it --folder {folder}")
    assert (again.exit_code, "is not overwritten" in again.output) == (2, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Double_It", "; try double-it"),
        ("load-h5", "a command with the name load-h5 already exists"),
        ("_", "joined"),
    ],
)
def test_names_that_no_operator_may_have(tmp_path, name, said):
    """A name that could not be typed, or is taken, is refused before anything is written."""
    result = run(f"new-operator {name} --folder {tmp_path}")
    assert (result.exit_code, said in result.output) == (2, True)
    assert not list(tmp_path.iterdir())
