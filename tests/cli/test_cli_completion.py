"""Completion in shells: commands, options and values where the cursor is, and at once."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.completing import SHELLS, candidates, script
from chunkflow_py.cli.main import COMPLETE, cli

BIN = Path(sys.executable).parent
SETTINGS = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}


def values(line, incomplete=""):
    """Return the completions after a command line."""
    return [each.value for each in candidates(cli, line.split(), incomplete)]


def test_a_line_goes_on_with_commands():
    """First anything may come, after an operator only operators, with their summaries."""
    assert values("") == [*catalog.commands(), *catalog.more()]
    after = values("--mip 1 create-chunk --size 1 2 3")
    assert "threshold" in after
    assert not set(catalog.subcommands()) & set(after)
    (found,) = candidates(cli, ["create-chunk"], "thr")
    assert (found.value, found.help) == ("threshold", catalog.describe("threshold").summary)


@pytest.mark.parametrize(
    ("line", "incomplete", "expected"),
    [
        ("create-chunk threshold", "--thr", ["--threshold"]),
        ("create-chunk --size 1 2 3 threshold -i a", "--si", []),
        ("create-chunk --size 1 2 3", "--si", []),  # it is there already
        ("--mip 1", "--dry", ["--dry-run"]),
        ("cutout", "--volume", ["--volume-path"]),  # an older name
        ("load-volume --expand-margin-size auto threshold", "--thr", ["--threshold"]),
        ("create-chunk inference --framework", "id", ["identity"]),
        ("create-chunk inference", "--framework=id", ["identity"]),
        ("create-chunk --size 1", "", []),  # two numbers to come
        ("create-chunk --size 1 2 3", "thresh", ["threshold"]),
        ("status run.url", "--jso", ["--json"]),
        ("status run.url --json", "", []),  # it stands alone
        ("completion", "", list(SHELLS)),
        ("submit --run r generate-tasks -c 1 2 3", "the", ["then"]),
        ("no-such-command", "", []),
    ],
)
def test_options_and_values_are_of_the_last_command(line, incomplete, expected):
    """Completions match the position of the cursor."""
    assert values(line, incomplete) == expected


@pytest.mark.parametrize("line", ["create-chunk save-h5 -f", "status", "load-volume --volume-path"])
def test_text_may_be_the_name_of_a_file(line):
    """Where any text may stand, the shell completes names of files."""
    assert [each.type for each in candidates(cli, line.split(), "ou")] == ["file"]


PROGRAM = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from chunkflow_py.cli.main import main
main()
"""


def test_nothing_heavy_is_imported():
    """Completion imports neither NumPy nor operators outside of the command line."""
    line = "chunkflow create-chunk inference --framework "
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], text=True, capture_output=True, check=True,
        env=SETTINGS | {"_CHUNKFLOW_COMPLETE": "bash_complete", "COMP_WORDS": line},
    )  # fmt: skip
    assert "plain,identity" in done.stdout.splitlines()
    imported = set(done.stderr.split())
    assert not {"numpy", "torch", "h5py", "asyncio"} & imported
    operators = {name for name in imported if name.startswith("chunkflow_py.ops.")}
    operators = {name for name in operators if ".options" not in name}  # declarations they share
    assert operators == {"chunkflow_py.ops.create_chunk", "chunkflow_py.ops.inference"}


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_printed(shell):
    """`completion SHELL` prints a script that the shell itself finds no fault with."""
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert result.output == script(cli, shell, COMPLETE)
    if program := shutil.which(shell):
        done = subprocess.run(
            [program, "-n"], input=result.output, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def typed(shell, keys, expected, folder):
    """Type into an interactive shell with completion; return what it shows up to *expected*."""
    start = {
        "bash": ["bash", "--norc", "--noprofile", "-i"],
        "zsh": ["zsh", "-f", "-i"],
        "fish": ["fish", "--no-config", "-i"],
    }[shell]
    (folder / "script").write_text(script(cli, shell, COMPLETE))
    process, terminal = pty.fork()
    if process == 0:  # pragma: no cover the shell
        try:
            os.chdir(folder)
            os.execvpe(start[0], start, SETTINGS)
        finally:  # never a second pytest
            os._exit(127)
    seen, deadline = "", time.monotonic() + 30

    def wait_for(pattern):
        nonlocal seen
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, f"{shell} showed {seen!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 4096).decode(errors="replace")

    try:
        first = "autoload -U compinit; compinit -D; " if shell == "zsh" else ""
        os.write(terminal, f"{first}. ./script; echo rea''dy\n".encode())
        wait_for(r"\bready\b")
        seen = ""
        os.write(terminal, keys.encode())
        wait_for(expected)
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)
    return seen


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("chunkflow create-chunk --size 1 2 3 thresh\t", "threshold "),
        ("chunkflow load-h5 -f s3://b/x.h5 threshold --thre\t", "--threshold "),
        ("chunkflow create-chunk inference --framework=iden\t", "=identity"),
        ("chunkflow create-chunk save-h5 -f a-fi\t", "a-file-of-mine"),
    ],
)
def test_shell_completes(shell, keys, expected, tmp_path):
    """<TAB> in a real shell completes command, option, value and file in the middle of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "a-file-of-mine").touch()
    typed(shell, keys, expected, tmp_path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("create-chunk threshold --treshold 3", "'--threshold'"),
        ("create-chunk threshold --thresold 3 save-h5 -f x.h5", "'--threshold'"),
        ("create-chunk trheshold", "threshold"),
        ("status run --jsn", "'--json'"),
        ("--verbos create-chunk", "'--verbose'"),
        ("inference --patch-sise 1 2 3", "'--input-patch-size'"),  # of an older name
        ("create-chunk cutuot", "load-precomputed"),
    ],
)
def test_a_mistyped_name_is_met_with_the_nearest(line, expected):
    """Wrong commands and options name the nearest, wherever in the line, by older names too."""
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert "Did you mean" in result.output
    assert expected in result.output.partition("Did you mean")[2]
