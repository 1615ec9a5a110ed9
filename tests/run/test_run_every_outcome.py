"""Workers whose operators raise anything: each task has an outcome, and no worker hangs."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from rigs import lines, raising
from rigs.variants import gate_runs
from rigs.workers import Background, Stage

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.worker.acknowledger import BatchThread
from chunkflow_py.run.worker.worker_process import TaskFeed

if TYPE_CHECKING:
    from pathlib import Path

TASKS = 12
LIMIT_S = 60.0


def work(stage: Stage, line: Any, **settings: Any) -> Any:
    """Run a supervisor to its end; fail if that takes too long."""
    return Background(stage.supervisor(line=line, **settings)).wait(LIMIT_S)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_every_kind_of_exception_is_counted(tmp_path: Path, ahead: int) -> None:
    """Each fails its own task with its traceback, is recorded once, and the others are done."""
    kinds = sorted(raising.KINDS)
    stage = Stage(tmp_path, len(kinds) + 1)
    stage.send()
    acts: dict[int, dict[int, str]] = {}
    for number, kind in enumerate(kinds):
        acts.setdefault(number % 4, {})[number] = kind
    outcome = work(stage, partial(raising.line, acts, ahead), max_failures=1)
    assert outcome.state == "complete-with-failures"
    dead = dict.fromkeys(range(len(kinds)), "dead")
    assert stage.states() == dead | {len(kinds): "done"}
    failures = {failure.number: failure for failure in stage.ledger.failures()}
    assert len(failures) == len(kinds) == outcome.failures
    for number, kind in enumerate(kinds):
        failure = failures[number]
        assert failure.kind == "permanent"
        assert f"-{number % 4} failed on task" in failure.reason
        assert len(failure.reason) < 5000
        assert kind in ("long", "unreadable panic") or "Traceback" in failure.traceback
    counts = stage.queue.counts()
    assert counts.waiting + counts.leased == 0


def check_at_random(folder: Path, seed: int) -> None:
    """Run a worker on random exceptions at random places; check that each task has one outcome."""
    draw = random.Random(seed)
    stage = Stage(folder, TASKS)
    stage.send()
    acts: dict[int, dict[int, str]] = {}
    for number in range(TASKS):
        if draw.random() < 0.5:
            acts.setdefault(draw.randrange(4), {})[number] = draw.choice(sorted(raising.KINDS))
    settings = {"processes": draw.choice([1, 2]), "max_failures": draw.choice([1, 2])}
    outcome = work(stage, partial(raising.line, acts, draw.randrange(4)), **settings)
    failing = {number for each in acts.values() for number in each}
    wanted = {number: "dead" if number in failing else "done" for number in range(TASKS)}
    assert stage.states() == wanted, (seed, acts)
    assert outcome.dead == len(failing)
    failures = list(stage.ledger.failures())
    counted = Counter(failure.number for failure in failures)
    wrong = {n for n in failing | set(counted) if counted[n] != settings["max_failures"]}
    shown = [(f.number, f.attempt, f.kind, f.reason[:80]) for f in failures if f.number in wrong]
    assert not wrong, (seed, acts, shown)


@pytest.mark.parametrize("seed", gate_runs(range(3), 0))
def test_random_exceptions_at_random_places(tmp_path: Path, seed: int) -> None:
    """In one or two processes, with 0 to 3 tasks ahead; `make drills` tries many more."""
    check_at_random(tmp_path, seed)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1100, 10))
def test_many_random_exceptions(tmp_path: Path, first: int) -> None:
    """The same with a hundred workers in all."""
    for seed in range(first, first + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_at_random(folder, seed)


@pytest.mark.parametrize(
    ("kind", "where"), [("SystemExit", "prepare"), ("unreadable panic", "__enter__")]
)
def test_set_up_that_exits_ends_the_worker(tmp_path: Path, kind: str, where: str) -> None:
    """No child can begin: the worker says which operator it is, and gives all back."""
    stage = Stage(tmp_path, 2)
    stage.send()
    with pytest.raises(
        ChunkflowError, match="has failed to start 3 times in a row: sets-up failed"
    ):
        work(stage, partial(raising.enters, kind, where))
    assert stage.queue.counts().waiting == 2


def test_what_cannot_be_sent_fails_its_task(tmp_path: Path) -> None:
    """What a plugin has put into a task may be anything: its outcome is sent all the same."""
    stage = Stage(tmp_path, 4)
    stage.send()
    outcome = work(stage, raising.stores, max_failures=2)
    assert outcome.state == "complete-with-failures"
    assert stage.states() == {0: "skipped", 1: "dead", 2: "dead", 3: "done"}


class _ExitingStore(BatchThread):
    """Raises what is no Exception, as a panic in a store written in Rust does."""

    def _process(self, batch: list[Any]) -> None:
        raise raising.Panic


def test_a_panic_in_a_thread_of_the_supervisor_is_told() -> None:
    """The thread goes on, and its owner hears of it: nobody waits for what was not written."""
    heard: list[BaseException] = []
    batches = _ExitingStore("test", heard.append)
    for count in (1, 2):
        batches._add([1])
        assert batches.flush(LIMIT_S)
        assert len(heard) == count
    batches.close()


def test_a_feed_that_is_stopped_ends() -> None:
    """Who waits for the next task in another thread does not wait for ever."""
    feed = TaskFeed(lambda _: None)
    thread = threading.Thread(target=lambda: list(feed))
    thread.start()
    feed.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


class GarblesPipe:
    """Writes rubbish into all pipes of its process."""

    def __call__(self, task: Any) -> Any:
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) > 2 and "socket" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115
                os.write(int(name), b"\0\0\0\x04abcd")
        threading.Event().wait(LIMIT_S)
        return task


def garbles(feed: TaskFeed) -> Any:
    """A line that does so on every task."""
    return lines.pipeline([lines.operator("garbles", GarblesPipe())], feed)


@pytest.mark.skipif(sys.platform != "linux", reason="finds its pipe in /proc")
def test_a_child_that_sends_rubbish_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message cannot be read: the process is ended, and its task counted."""
    stage = Stage(tmp_path, 1)
    stage.send()
    caplog.set_level(logging.WARNING, "chunkflow_py")
    outcome = work(stage, garbles, max_failures=1)
    assert outcome.state == "complete-with-failures"
    assert stage.states() == {0: "dead"}
