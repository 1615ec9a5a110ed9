"""The command line as a person meets it: help, errors, exit codes."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import GRACE_S, OperatorGroup, cli, main
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chunkflow_py.pipeline.params import Command

    from .conftest import Result

    Run = Callable[..., Result]

# --- help ----------------------------------------------------------------------------------------


def test_help_has_a_section_for_each_kind(chunkflow: Run) -> None:
    """Commands are listed in sections, in the order of a pipeline."""
    result = chunkflow("--help")
    assert (result.code, result.err) == (0, "")
    text = result.out
    places = [
        text.index(part)
        for part in (
            "Run a pipeline of operators",
            "Make tasks (first in a pipeline):",
            "four-boxes",
            "Load:",
            "create-chunk",
            "Process images and maps:",
            "threshold",
            "Save:",
            "refuse",
            "Run, watch and check whole volumes:",
            "  tune ",
        )
    ]
    assert places == sorted(places)
    assert "Turn a map into a mask by a threshold." in text


def test_help_of_a_command(chunkflow: Run) -> None:
    """A command's help shows its options with defaults, by --help or -h."""
    result = chunkflow("threshold", "-h")
    assert result.code == 0
    assert "Turn a map into a mask" in result.out
    assert "[default: 0.5]" in " ".join(result.out.split())
    assert chunkflow("threshold", "--help") == result


@pytest.mark.parametrize(
    "make",
    [
        lambda: operator("compute")(lambda: None),
        lambda: subcommand(lambda: None),
        lambda: OperatorGroup("chunkflow", chain=True),
    ],
)
def test_help_has_both_names_whatever_saw_the_command_first(make: Callable[[], Command]) -> None:
    """A context of a completion, a page or another group does not decide what shows the help."""
    command = make()
    other = click.Context(click.Group("other"), help_option_names=["--usage"])
    command.get_params(click.Context(command, parent=other))
    for name in ("--help", "-h"):
        result = CliRunner().invoke(command, [name])
        assert result.exit_code == 0, result.output
        assert "Show this message and exit" in result.output


def test_every_command_has_one_row_in_80_columns() -> None:
    """No summary is cut or wrapped, and the most used command of a section comes first."""
    context = click.Context(cli, info_name="chunkflow", terminal_width=80)
    formatter = context.make_formatter()
    cli.format_commands(context, formatter)
    rows = [line for line in formatter.getvalue().splitlines() if line.startswith("  ")]
    assert max(map(len, rows)) <= 80
    assert sorted(row.split()[0] for row in rows) == sorted([*catalog.commands(), *catalog.more()])
    assert all(row.endswith(".") for row in rows)
    places = {row.split()[0]: place for place, row in enumerate(rows)}
    assert places["inference"] < places["channel-voting"]


def test_version(chunkflow: Run) -> None:
    """--version prints the name and the version."""
    result = chunkflow("--version")
    assert (result.code, result.out[:10]) == (0, "chunkflow,")


def test_python_m_is_chunkflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m chunkflow_py` runs the same program."""
    import runpy

    monkeypatch.setattr(sys, "argv", ["chunkflow", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("chunkflow_py", run_name="__main__")


def test_completion_lists_names_without_importing(chunkflow: Run) -> None:
    """<TAB> offers commands and global options, and imports no operator."""
    before = set(sys.modules)
    context = click.Context(cli, info_name="chunkflow")
    names = [item.value for item in cli.shell_complete(context, "f")]
    assert names == ["fail-third", "four-boxes", "filter-labels"]
    helps = {item.value: item.help for item in cli.shell_complete(context, "")}
    assert helps["threshold"] == "Turn a map into a mask by a threshold."
    assert "--mip" in [item.value for item in cli.shell_complete(context, "--m")]
    assert not [name for name in set(sys.modules) - before if name.startswith("chunkflow_py.ops")]


def test_list_of_commands(chunkflow: Run) -> None:
    """Programs that ask click for the commands get the same names."""
    names = cli.list_commands(click.Context(cli))
    assert names == [*catalog.names(), *catalog.subcommands()]
    assert cli.get_command(click.Context(cli), "no-such") is None


def test_a_file_without_a_command_is_named(
    chunkflow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in ops/ that is no operator is an error that names the file."""
    (tmp_path / "half_done.py").write_text('"""Do half."""\n\ndef other():\n    pass\n')
    monkeypatch.setattr(catalog, "OPS", tmp_path)
    catalog.names.cache_clear()
    assert catalog.names() == ("half-done",)
    with pytest.raises(ValueError, match=r"half_done\.py has no function called 'command'"):
        catalog.describe("half-done")


# --- usage errors: exit 2 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--quiet", "Missing command"),
        ("treshold", "No such command 'treshold'. Did you mean threshold?"),
        ("create-chunk treshold", "No such command 'treshold'. Did you mean threshold?"),
        ("xyz", "No such command 'xyz'. See chunkflow --help."),
        ("tine", "No such command 'tine'. Did you mean tune?"),
        (
            "tune create-chunk",
            "tune cannot be part of a pipeline; remove create-chunk or tune",
        ),
        (
            "say create-chunk tune",
            "tune cannot be part of a pipeline; remove say create-",
        ),
        ("--treshold", "No such option"),
        ("create-chunk --sise 1 2 3", "Did you mean '--size'?"),
        ("create-chunk --size 1 2", "requires 3 arguments"),
        ("create-chunk --size 1 2 -3", "-3 is not in the range x>=1"),
        ("create-chunk threshold -t high", "'high' is not a valid float"),
        ("say create-chunk refuse", "--a and --b exclude each other; leave one out"),
        ("say threshold", "threshold reads 'chunk', which no operator before it makes"),
        (
            "create-chunk four-boxes",
            "four-boxes makes the tasks of a pipeline, and would discard the results of create-",
        ),
    ],
)
def test_usage_errors(chunkflow: Run, line: str, said: str) -> None:
    """An invalid pipeline exits with 2 and one sentence before any operator runs."""
    result = chunkflow(*line.split())
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert result.out == ""
    assert "Traceback" not in result.err


def test_source_in_mid_chain_names_what_it_would_lose(chunkflow: Run) -> None:
    """The message names the commands whose work would be thrown away."""
    result = chunkflow("create-chunk", "say", "four-boxes")
    assert "would discard the results of create-chunk" in result.err
    assert "entered" not in result.out


# --- runs: exit 0 and 1 --------------------------------------------------------------------------


def test_quiet_prints_nothing_on_success(chunkflow: Run) -> None:
    """--quiet is silent when all went well, skipped tasks included."""
    line = ("four-boxes", "create-chunk", "--size", "1", "1", "1", "skip-second", "threshold")
    result = chunkflow("--quiet", *line)
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], True),
        (["--quiet"], False),
        (["--quiet", "--progress"], True),
        (["--no-progress"], False),
    ],
)
def test_view_on_a_terminal(chunkflow: Run, options: list[str], shown: bool) -> None:
    """A terminal shows a view of progress, except with --quiet or --no-progress."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with redirect_stderr(Terminal()) as screen:
        assert chunkflow(*options, "create-chunk", "--size", "1", "1", "1").code == 0
    assert ("0 of 1 task" in screen.getvalue()) == shown


def test_default_says_where_the_time_went(chunkflow: Run) -> None:
    """A table of operators, and why tasks were skipped, go to stderr; stdout is for results."""
    result = chunkflow("four-boxes", "skip-second", "skip-second", "say")
    assert result.code == 0
    assert result.out.splitlines() == [
        "entered",
        *(f"working on {z}-{z + 1}_0-1_0-1" for z in (0, 2, 3)),
    ]
    assert "INFO: 1-2_0-1_0-1: skipped by skip-second: nothing here" in result.err
    first, *rows, last = result.err[result.err.index("operator") :].splitlines()
    assert first.split() == ["operator", "seconds", "of", "elapsed"]
    assert [row.split()[0] for row in rows] == ["skip-second", "skip-second#2", "say"]
    assert last.split()[0] == "elapsed"
    assert last.endswith("4 tasks, 1 of them skipped")


def test_dry_run_saves_nothing(chunkflow: Run) -> None:
    """--dry-run skips the commands that save."""
    result = chunkflow("--dry-run", "create-chunk", "say")
    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize("ahead", ["0", "1", "3", "auto"])
def test_failed_task_exits_with_1_and_counts(chunkflow: Run, ahead: str) -> None:
    """A failure is one sentence with the numbers of done and remaining tasks."""
    result = chunkflow("--ahead", ahead, "--quiet", "four-boxes", "fail-third", "say")
    assert result.code == 1
    assert result.err.splitlines() == [
        "Error: fail-third failed on task 2-3_0-1_0-1: shapes (1, 2) and (2, 1) differ; "
        "crop one of them",
        "2 of 4 tasks done, 1 failed, 1 not run.",
    ]


def test_failure_of_the_only_task_counts_nothing(chunkflow: Run) -> None:
    """A pipeline without a source prints no counts and no table after the error."""
    result = chunkflow("fail-third")
    assert result.code == 1
    assert result.err.splitlines() == [
        "Error: fail-third failed: shapes (1, 2) and (2, 1) differ; crop one of them"
    ]


def test_debug_prints_the_traceback_of_a_task(chunkflow: Run) -> None:
    """With --debug the traceback leads to the line of the operator."""
    result = chunkflow("--debug", "four-boxes", "fail-third")
    assert result.code == 1
    assert "Traceback (most recent call last)" in result.err
    assert "fail_third.py" in result.err
    assert "raise ChunkError" in result.err
    assert "DEBUG: 0-1_0-1_0-1: fail-third starts" in result.err


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("ours", "Error: no such model"),
        (
            "foreign",
            "Error: ZeroDivisionError: division by zero; add --debug to see the traceback",
        ),
    ],
)
def test_errors_of_set_up_are_one_sentence(chunkflow: Run, how: str, sentence: str) -> None:
    """Errors before the first task exit with 1; foreign ones show their type and the way on."""
    result = chunkflow("create-chunk", "refuse", "--how", how)
    assert (result.code, result.out, result.err.splitlines()) == (1, "", [sentence])
    debugged = chunkflow("--debug", "create-chunk", "refuse", "--how", how)
    assert debugged.code == 1
    assert "Traceback" in debugged.err
    assert "refuse.py" in debugged.err
    assert debugged.err.splitlines()[-1] == sentence.partition("; add --debug")[0]


def test_logging_is_left_as_it_was(chunkflow: Run) -> None:
    """A program that calls us keeps its own logging."""
    ours = logging.getLogger("chunkflow_py")
    before = (ours.level, list(ours.handlers))
    ours.setLevel(logging.ERROR)
    try:
        chunkflow("--debug", "create-chunk")
        assert (ours.level, ours.handlers) == (logging.ERROR, before[1])
    finally:
        ours.setLevel(before[0])


# --- interruption: exit 130 ----------------------------------------------------------------------


@pytest.mark.parametrize("line", ["never-end", "create-chunk never-end threshold"])
@pytest.mark.parametrize(
    ("sent", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)]
)
def test_ctrl_c_ends_the_program(
    start: Callable[..., object], line: str, sent: signal.Signals, times: int
) -> None:
    """One ctrl-C ends it within the grace, even if a lane's thread is busy; two at once."""
    process = start("--quiet", *line.split())
    thread = process.stdout.readline().strip()
    assert (thread == "MainThread") == (line == "never-end")
    began = time.monotonic()
    for _ in range(times):
        process.send_signal(sent)
        time.sleep(0.2)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + sent
    assert err.split() == ["Interrupted."]
    # Far below the minute that the operator goes on for; a second ctrl-C does not wait either.
    assert time.monotonic() - began < (GRACE_S + 10 if times == 1 else GRACE_S)


def test_handler_is_restored(chunkflow: Run) -> None:
    """A program that calls us keeps its own ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    chunkflow("create-chunk", "--size", "1", "1", "1")
    assert signal.getsignal(signal.SIGINT) is before


def test_interruption_in_process(chunkflow: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real ctrl-C in an operator ends with 130, one word and no traceback."""
    from importlib import import_module

    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(import_module("chunkflow_py.ops.create_chunk"), "create_chunk", interrupt)
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("chunkflow_py.cli.main.GRACE_S", 0.1)
    result = chunkflow("--quiet", "create-chunk")
    assert (result.code, result.err.split()) == (130, ["Interrupted."])
    assert signal.getsignal(signal.SIGINT) is before
    time.sleep(0.3)  # the end of the grace is not the end of a program that goes on


def test_signals_in_process(chunkflow: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ctrl-C sets the end of the grace, the second does not wait for it."""
    from importlib import import_module

    ended: list[tuple[str, int]] = []
    both = threading.Event()

    def end(code: int) -> None:
        ended.append((threading.current_thread().name, code))
        if len(ended) == 2:
            both.set()

    def interrupt(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            assert both.wait(30)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr("chunkflow_py.cli.main.GRACE_S", 0.05)
    monkeypatch.setattr(import_module("chunkflow_py.ops.create_chunk"), "create_chunk", interrupt)
    assert chunkflow("--quiet", "--ahead", "0", "create-chunk").code == 130
    assert ended[0] == ("MainThread", 130)
    assert ended[1][1] == 130


def test_main_runs_outside_of_the_main_thread(chunkflow: Run) -> None:
    """The pipeline runs in a thread that cannot handle signals."""
    codes: list[object] = []

    def run() -> None:
        with pytest.raises(SystemExit) as ended:
            main(["--quiet", "create-chunk", "--size", "1", "1", "1"])
        codes.append(ended.value.code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert codes == [0]


@pytest.mark.parametrize("size", ["1000000 1000000 1000000", "10000000000000000000000 1 1"])
@pytest.mark.parametrize("pattern", ["sin", "zero", "random"])
def test_too_large_a_chunk_is_one_sentence(size: str, pattern: str) -> None:
    """A chunk that cannot be allocated is refused with a message of ours."""
    result = CliRunner().invoke(cli, ["create-chunk", "-p", pattern, "--size", *size.split()])
    assert result.exit_code == 1
    assert "create-chunk failed: there is not enough memory (unable to allocate" in result.output
    assert result.output.endswith("make the chunk or the tasks smaller\n")
