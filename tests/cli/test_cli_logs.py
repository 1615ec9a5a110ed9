"""What is said on stderr: for people, or as JSON lines that follow docs/progress.md."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import click
import pytest
from rigs.event_schema import documented, events_of

from chunkflow_py.cli.logs import (
    add_json_fields,
    configure_logging,
    exit_line,
    log_event,
    restore_logging,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ours = logging.getLogger("chunkflow_py.test")


@pytest.fixture(autouse=True)
def restored() -> Any:
    """Logging is as it was after each test."""
    before = logging.getLogger().handlers[:]
    yield
    restore_logging()
    assert logging.getLogger().handlers == before


def test_an_event_is_a_sentence_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing, if there is no sentence."""
    configure_logging(verbose=True, debug=False)
    log_event(ours, logging.INFO, "stage_started", tasks=3)
    log_event(ours, logging.INFO, "stage_started", "three tasks", tasks=3)
    ours.warning("take %s", "care")
    assert capsys.readouterr().err == "INFO: three tasks\nWARNING: take care\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_handlers_of_libraries_do_not_repeat_our_lines(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """A handler of the root logger receives messages of libraries, but not ours."""
    configure_logging(verbose=True, debug=False, as_json=as_json)
    of_a_library = logging.StreamHandler(sys.stderr)
    root = logging.getLogger()
    root.addHandler(of_a_library)
    try:
        ours.warning("once")
        logging.getLogger("library").warning("of a library")
    finally:
        root.removeHandler(of_a_library)
    lines = capsys.readouterr().err.splitlines()
    assert sum("once" in line for line in lines) == 1
    assert any("of a library" in line for line in lines)
    restore_logging()
    assert logging.getLogger("chunkflow_py").propagate


def test_json_lines_hold_the_same_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines hold message, fields, common fields, tracebacks and library messages."""
    configure_logging(verbose=True, debug=False, as_json=True)
    add_json_fields(run="file:///r", worker="w")
    log_event(ours, logging.INFO, "stage_started", tasks=3, message="")
    ours.debug("too fine")
    try:
        raise ValueError  # noqa: TRY301
    except ValueError:
        ours.exception("it went\nwrong")
    logging.getLogger("library").warning("of a library")
    logging.getLogger("library").info("nobody asked")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("it is old", UserWarning, stacklevel=1)
    started, wrong, library, old = events_of(capsys.readouterr().err)
    assert (started["run"], started["worker"], started["tasks"]) == ("file:///r", "w", 3)
    assert (wrong["level"], wrong["event"], wrong["message"]) == ("error", "log", "it went\nwrong")
    assert wrong["traceback"].endswith("ValueError")
    assert (library["logger"], library["level"], library["worker"]) == ("library", "warning", "w")
    assert "it is old" in old["message"]


def test_what_others_print_is_a_json_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole lines, also of what is drawn over itself; and nothing of it afterwards."""
    configure_logging(verbose=True, debug=False, as_json=True)
    sys.stderr.write("one\ntw")
    click.echo("o", err=True)
    sys.stderr.write(" 10%\r 20%\r100%\n\n")
    ours.info("ours")
    said = [each["message"] for each in events_of(capsys.readouterr().err)]
    assert said == ["one", "two", "100%", "ours"]
    restore_logging()
    sys.stderr.write("plain\n")
    assert capsys.readouterr().err == "plain\n"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("GET https://me:hunter2@host/em failed", "GET https://host/em failed"),
        (
            "no https://b.s3.amazonaws.com/em?X-Amz-Signature=hunter2 here",
            "no https://b.s3.amazonaws.com/em here",
        ),
        ("s3://AKIA:hunter2@b/x and s3://b/y", "s3://b/x and s3://b/y"),
        ("what? a: b, c@d #3", "what? a: b, c@d #3"),
    ],
)
def test_json_lines_hold_no_secret(
    capsys: pytest.CaptureFixture[str], said: str, kept: str
) -> None:
    """Names, passwords and signatures are left out of addresses, wherever they stand."""
    configure_logging(verbose=True, debug=False, as_json=True)
    ours.warning(said)
    log_event(ours, logging.INFO, "process_ready", process=0, profile={"a": [said]})
    text = capsys.readouterr().err + exit_line(1, said)
    assert "hunter2" not in text
    first, second, last = map(json.loads, text.splitlines())
    assert (first["message"], second["profile"]["a"], last["error"]) == (kept, [kept], kept)


def test_quiet_json_lines_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet keeps warnings and errors, in JSON as for people."""
    configure_logging(verbose=False, debug=False, as_json=True)
    log_event(ours, logging.INFO, "stage_started", tasks=3)
    log_event(ours, logging.ERROR, "task_finished", outcome="failed", error="e", seconds=0.5)
    (only,) = events_of(capsys.readouterr().err)
    assert only["outcome"] == "failed"


# --- the command line ----------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Run a command line; return exit code, stdout and the events on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "chunkflow_py", *args],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, events_of(done.stderr)


LINE = ("--roi-size", "24", "4", "4", "--chunk-size", "8", "4", "4")
MADE = ("create-chunk", "--size", "8", "4", "4")


def test_a_line_tells_all_of_it(tmp_path: Any) -> None:
    """From start to exit, every operator with --debug; stdout is for results alone."""
    plugin = tmp_path / "speaks.py"
    plugin.write_text("def execute(chunk):\n    print('a result')\n    return chunk\n")
    code, out, events = run(
        *("--log-json", "--debug", "generate-tasks", *LINE, *MADE),
        *("plugin", "-f", str(plugin), "-i", "chunk", "-o", "chunk"),
    )
    assert (code, out) == (0, "a result\n" * 3)
    names = [each["event"] for each in events if each["event"] != "log"]
    assert names[0] == "run_started"
    assert names[-2:] == ["run_finished", "exit"]
    assert [names.count(f"operator_{what}") for what in ("started", "finished")] == [6, 6]
    tasks = [each for each in events if each["event"] == "task_finished"]
    assert [each["task"] for each in tasks] == [f"{z}-{z + 8}_0-4_0-4" for z in (0, 8, 16)]
    assert {each["voxels"] for each in tasks} == {128}
    assert all(set(each["operators"]) == {"create-chunk", "plugin"} for each in tasks)
    assert (events[-2]["done"], events[-2]["voxels"]) == (3, 384)
    assert (events[-1]["code"], "error" in events[-1]) == (0, False)


def test_a_failure_is_told_by_its_task(tmp_path: Any) -> None:
    """With operator and cause; the exit follows."""
    plugin = tmp_path / "fails.py"
    plugin.write_text("def execute(chunk):\n    raise ValueError('this one')\n")
    code, _, events = run(
        *("--log-json", "--quiet", "generate-tasks", *LINE, *MADE),
        *("plugin", "-f", str(plugin), "-i", "chunk", "-o", "chunk"),
    )
    failed, ended = events
    assert (code, ended["code"]) == (1, 1)
    assert (failed["outcome"], failed["operator"], failed["level"]) == ("failed", "plugin", "error")
    assert "this one" in failed["error"]


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("--log-json load-zar", 2, "Did you mean load-zarr"),
        ("--log-json --no-such-option", 2, "No such option"),
        ("--log-json generate-tasks --chunk-size 1 2", 2, "--chunk-size"),
        ("--log-json load-h5 -f nothing.h5", 1, "nothing.h5"),
        ("--log-json work nothing.run", 2, "nothing.run"),
    ],
)
def test_the_error_at_the_end_is_a_line_too(
    line: str, code: int, error: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of usage, of files, of runs; with the exit code."""
    monkeypatch.chdir(tmp_path)
    ended, out, events = run(*line.split())
    assert (ended, out) == (code, "")
    assert (events[-1]["event"], events[-1]["code"]) == ("exit", code)
    assert error in events[-1]["error"]


def test_an_interrupt_is_a_line_too(start: Callable[..., subprocess.Popen[str]]) -> None:
    """The exit line is written even if a thread hangs."""
    process = start("--log-json", "never-end")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    last = events_of(err)[-1]
    assert (last["event"], last["code"], last["error"]) == ("exit", 143, "Interrupted.")


def test_the_page_lists_every_event() -> None:
    """The events of the page are those of the code."""
    assert {"log", "exit", "task_finished", "work_stopped"} <= set(documented())
