"""status --watch: on a terminal in place, in a pipe a line when something has changed."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from rigs.command_line import say
from rigs.planted import failure, planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.tasks.task_plan import GridPlan

PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(1, 2, 2)))


@pytest.fixture
def home(tmp_path):
    """A run of four tasks, of which one is done."""
    made = planted_run(f"{tmp_path}/r", {"infer": PLAN})
    made.ledger("infer").record([record(PLAN, 0)])
    return made


def start(*words, **how):
    """Start status in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", "status", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"},
        **how,
    )


def test_a_pipe_gets_a_line_when_something_changes(home):
    """And none when nothing does; it ends when no task is left, with the code of status."""
    ledger = home.ledger("infer")
    with start(home.url, "--watch", "0.1", stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline()]
        time.sleep(0.5)
        ledger.fail(failure(PLAN, 1))
        lines.append(process.stdout.readline())
        ledger.record([record(PLAN, 1, "dead"), record(PLAN, 2), record(PLAN, 3, "skipped")])
        lines += process.stdout.readlines()
        assert process.wait(30) == 0
    said = [line[20:].split("; ")[:2] for line in lines]
    assert [re.sub(r",[^,]* stored.*", "", " ".join(each)).strip() for each in said] == [
        "unfinished infer: 1 of 4 tasks done, 3 left",
        "unfinished infer: 1 of 4 tasks done, 3 left, 1 failed attempts",
        "complete but for failures "
        "infer: 2 of 4 tasks done, 1 skipped, 1 failed, 1 failed attempts",
    ]


def test_json_lines(home):
    """With --json each line is an object."""
    home.ledger("infer").record([record(PLAN, number) for number in range(4)])
    (line,) = say(f"status --watch {home.url} --json").splitlines()
    assert json.loads(line)["state"] == "complete"


def test_a_terminal_is_drawn_in_place(home):
    """The status stands in one place until the run is complete, and is left there once, whole."""
    mine, theirs = pty.openpty()
    shown = b""

    def read_until(text):
        nonlocal shown
        deadline = time.monotonic() + 30
        while text not in shown and time.monotonic() < deadline:
            if select.select([mine], [], [], 0.2)[0]:
                try:
                    shown += os.read(mine, 65536)
                except OSError:  # the other end is closed
                    return
        assert text in shown

    process = start("--watch", home.url, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(b"1 of 4 tasks done")
    assert b"\x1b[" in shown
    process.send_signal(signal.SIGINT)
    read_until(b"Interrupted.")
    assert process.wait(30) == 130
    home.ledger("infer").record([record(PLAN, number) for number in range(4)])
    os.close(mine)
    mine, theirs = pty.openpty()
    shown = b""
    process = start(home.url, "--watch", "0.2", stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(b"complete\r\n  infer: 4 of 4 tasks done")
    assert process.wait(30) == 0
    os.close(mine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status", "Missing argument 'RUN'"),
        ("status --watch", "Missing argument 'RUN'"),
        ("status r --watch often", "--watch often is not a number of seconds greater than 0"),
        ("status r --watch 0", "--watch 0 is not a number"),
        ("status --watch nothing", "there is no run at"),
    ],
)
def test_wrong_words(words, said, tmp_path, monkeypatch):
    """Are named, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert said in say(words, code=2)


def test_the_causes_of_failed_attempts_are_listed(home):
    """In text and JSON, the most frequent first; older attempts have none."""
    ledger = home.ledger("infer")
    causes = ("hang", "gpu-memory", "hang", None)
    for attempt, cause in enumerate(causes):
        ledger.fail(failure(PLAN, 1, attempt, cause=cause, seconds=2.0, when=float(attempt)))
    text = say(f"status {home.url} --failures")
    assert "4 failed attempts (2 hang, 1 gpu-memory, 1 of unknown cause; 8 s)" in text
    assert "attempt 1 of 4, permanent (hang), machine-2" in text
    assert "attempt 4 of 4, permanent, machine-2" in text
    status = json.loads(say(f"status {home.url} --json"))
    assert status["stages"][0]["attempts_failed_causes"] == {"hang": 2, "gpu-memory": 1}
    assert [each["cause"] for each in status["failing"][0]["attempts"]] == list(causes)
