"""Start-up costs nothing: help and usage errors import the few modules listed here."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What may be imported beyond click and what click itself imports for a help page. A name that is
# added here is paid for by every `chunkflow --help`: numpy costs 0.2 s, torch 2 s.
ALLOWED = {
    "chunkflow_py",
    # light modules of the standard library: data classes, numbers, logging, threads, ctrl-C, and
    # ctypes, by which the allocator is made to keep memory
    *(
        "atexit",
        "concurrent",
        "copy",
        "ctypes",
        "dataclasses",
        "gc",
        "logging",
        "math",
        "numbers",
        "queue",
        "signal",
    ),
    *("string", "struct", "traceback"),
}

SCRIPT = """
import contextlib, io, sys, click, click.shell_completion
for args in (["--help"], ["--no-such-option"]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        with contextlib.redirect_stderr(sys.stdout):
            click.Group("plain", chain=True, commands=[click.Command("one")]).main(args)
before = set(sys.modules)
from chunkflow_py.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print("code", code)
print("modules", *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
print("operators", *sorted(name for name in sys.modules if name.startswith("chunkflow_py.ops.")))
"""


def start(*args: str) -> tuple[int, set[str], list[str]]:
    """Return exit code, imported top-level modules and imported operators of a command line."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], capture_output=True, text=True, check=True
    )
    code, modules, operators = (line.split()[1:] for line in done.stdout.splitlines()[-3:])
    operators = [name for name in operators if ".options" not in name]  # declarations they share
    # What the standard library has in C differs between versions of Python.
    return int(code[0]), {name for name in modules if not name.startswith("_")}, operators


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--help", 0),
        ("-h", 0),
        ("", 0),
        ("no-such-command", 2),
        ("--no-such-option", 2),
    ],
)
def test_nothing_heavy_is_imported(line: str, code: int) -> None:
    """Help and mistyped names import no operator and no library."""
    ended, modules, operators = start(*line.split())
    assert ended == code
    assert modules <= ALLOWED, f"imported as well: {sorted(modules - ALLOWED)}"
    assert not operators


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("create-chunk --help", 0),
        ("create-chunk --size 1 2 threshold", 2),
        ("create-chunk --size 1 2 3 threshold --threshold high", 2),
        ("create-chunk --size 1 2 3 no-such-command", 2),
        ("create-chunk -o image threshold -i map", 2),
    ],
)
def test_only_the_named_operators_are_imported(line: str, code: int) -> None:
    """Help of a command and wrong options import the commands of the line, and no library."""
    ended, modules, operators = start(*line.split())
    assert ended == code
    assert modules <= ALLOWED, f"imported as well: {sorted(modules - ALLOWED)}"
    assert operators[0] == "chunkflow_py.ops.create_chunk"
    assert set(operators) <= {"chunkflow_py.ops.create_chunk", "chunkflow_py.ops.threshold"}


@pytest.mark.parametrize(("line", "code"), [("tune --help", 0), ("tune --memory much", 2)])
def test_a_subcommand_is_imported_when_it_is_named(line: str, code: int) -> None:
    """Help and wrong options of a subcommand import no operator and no library."""
    ended, modules, operators = start(*line.split())
    assert ended == code
    assert modules <= ALLOWED, f"imported as well: {sorted(modules - ALLOWED)}"
    assert not operators


def test_importing_the_package_is_free() -> None:
    """`import chunkflow_py` imports nothing but itself."""
    code = "import sys, chunkflow_py; print('numpy' in sys.modules, 'click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
