"""Pilot processes: what they measure is read, and they end in time, whatever they do."""

import os
import sys
import textwrap
from pathlib import Path
from time import monotonic

import pytest

from chunkflow_py.planning.pilot import run_pilots

START = """
    import json, os, sys, time
    request = json.load(sys.stdin)
    def tell(**event):
        print(json.dumps(event), flush=True)
    tell(event="ready", at=1, ahead=1, parts={"chunk": 5}, unknown=[], devices=[], device_bytes=0)
"""
TASK = 'tell(event="task", at=2, task="0-1_0-1_0-1", seconds={}, written=1, objects=1, '
TASK += "network_s=0, traffic={})"


@pytest.fixture
def pilot(tmp_path, monkeypatch):
    """Return a function that lets processes run some code, and returns what was heard."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(code, processes=1, seconds=20.0):
        text = f"{textwrap.dedent(START)}{code}\n"
        (tmp_path / "pilot_here.py").write_text(text)
        numbers = [[number] for number in range(processes)]
        return run_pilots("pilot_here", {"argv": []}, numbers, seconds, tmp_path)

    return run


def test_what_is_told_is_heard(pilot, tmp_path):
    """Each process has tasks and a folder of its own; folders are gone after it."""
    code = (
        f"{TASK}\n(open(request['scratch'] + '/file', 'w')).close()\n"
        "tell(event='end', peak=request['numbers'][0] + 7)"
    )
    first, second = pilot(code, 2)
    assert (first.ready_s, first.estimated_bytes, len(first.tasks)) == (1, 5, 1)
    assert (first.is_whole, first.failure) == (True, None)
    assert (first.peak_bytes, second.peak_bytes) == (7, 8)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".plan")] == []


def test_a_process_that_takes_longer_is_ended(pilot):
    """What it had told by then counts, and its end is no failure."""
    start = monotonic()
    (found,) = pilot(f"{TASK}\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(99)", 1, 1.5)
    assert monotonic() - start < 20
    assert len(found.tasks) == 1
    assert (found.is_cut, found.failure) == (True, None)
    if sys.platform == "linux":
        assert found.peak_bytes > 1e6
    pid = int(Path("pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.kill(os.getpid(), 9)", "ended with exit code -9, possibly for lack of memory"),
        (f"{TASK}\nos._exit(3)", "ended with exit code 3"),
        ("tell(event='failure', failure='no such volume')", "no such volume"),
    ],
)
def test_a_process_that_dies_is_a_failure(pilot, code, message):
    """Whatever ends it before it is done is told."""
    (found,) = pilot(code)
    assert message in found.failure
    assert not found.is_whole
