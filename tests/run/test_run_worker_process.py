"""A worker process: fed, cancelled, ended, and what is known of it once it is dead."""

from __future__ import annotations

import logging
import os
import signal
import socket
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from rigs import lines
from rigs.workers import LONG_S, row, wait_for

from chunkflow_py.run.worker.task_receiver import Job
from chunkflow_py.run.worker.worker_pool import ProcessStart, WorkerProcess
from chunkflow_py.run.worker.worker_process import PipelineBroken, PipelineReady, TaskEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAN = row(100)


class Rig:
    """A worker process and its messages."""

    def __init__(self, line: Callable[..., Any]) -> None:
        self.messages: Queue[Any] = Queue()
        self.process: WorkerProcess = WorkerProcess(0, ProcessStart(line), None, self.post)

    def post(self, process: WorkerProcess, messages: Any) -> None:
        for message in [None] if messages is None else messages:
            self.messages.put(message)

    def next(self) -> Any:
        """Return the next message; ``None`` for the end."""
        return self.messages.get(timeout=LONG_S)

    def give(self, *numbers: int) -> None:
        """Give tasks."""
        self.process.give([Job(n, str(PLAN.region(n)), [], f"attempt-{n}") for n in numbers])

    def slot(self, number: int) -> int:
        """Return the slot of a task."""
        return next(slot for slot, job in self.process.jobs.items() if job.number == number)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Start a process whose pipeline acts; returns once it is ready."""
    started = []

    def begin(acts: dict[int, str], ahead: int = 0, line: Any = None, seconds: float = 0) -> Rig:
        rig = Rig(line or partial(lines.acts, str(tmp_path), acts, seconds, ahead))
        started.append(rig)
        rig.process.window = 1
        if line is None:
            ready = rig.next()
            assert isinstance(ready, PipelineReady)
            rig.process.operators = ready.operators
        return rig

    yield begin
    for rig in started:
        rig.process.kill()
        rig.process.reap()
        rig.process.close()


def test_tasks_come_back_with_their_outcomes(start: Callable[..., Rig]) -> None:
    """In the order of the line, each with its slot and number; failures with their class."""
    rig = start({1: "fails", 2: "skips"})
    rig.give(0, 1, 2)
    slots = {number: rig.slot(number) for number in range(3)}
    done, failed, skipped = rig.next(), rig.next(), rig.next()
    assert [each.number for each in (done, failed, skipped)] == [0, 1, 2]
    assert [each.slot for each in (done, failed, skipped)] == [slots[0], slots[1], slots[2]]
    assert [each.state for each in (done, failed, skipped)] == ["done", "failed", "skipped"]
    assert done.written[0][0].endswith("0.done")
    assert failed.fault.kind == "permanent"
    assert skipped.reason == "nothing to see"
    assert rig.process.take(slots[0]).number == 0
    assert rig.process.take(slots[0]) is None


def test_a_process_ends_when_asked(start: Callable[..., Rig]) -> None:
    """It finishes what it has, leaves the line, and ends well."""
    rig = start({}, seconds=0.05)
    rig.give(0, 1)
    rig.process.end()
    assert [rig.next().number, rig.next().number, rig.next()] == [0, 1, None]
    rig.process.reap()
    assert rig.process.process.exitcode == 0


def test_a_cancelled_task_stops(start: Callable[..., Rig]) -> None:
    """One that waits is never begun; one that is under way stops after its operator."""
    rig = start({0: "hangs_2_s"}, ahead=1)
    rig.give(0, 1, 2)
    wait_for(lambda: rig.process.progress(rig.slot(0)) is not None)
    assert rig.process.is_untouched(rig.slot(2))
    rig.process.cancel([(rig.slot(2), 2)])
    ended = [rig.next() for _ in range(3)]
    assert {each.number: each.state for each in ended} == {0: "done", 1: "done", 2: "lost"}


def test_a_snapshot_shows_the_work_of_a_process(start: Callable[..., Rig]) -> None:
    """Its task, in which operator and how far within; network, reading and memory are counted."""
    rig = start({}, line=lines.shows_progress)
    ready = rig.next()
    rig.process.operators, rig.process.stages = ready.operators, ready.stages
    assert rig.process.snapshot().seconds is None
    assert rig.process.snapshot().network_seconds == 0.0
    rig.give(7)
    wait_for(lambda: any(task.done for task in rig.process.snapshot().tasks))
    rig.process.poll()
    seen = rig.process.snapshot()
    (task,) = seen.tasks
    assert (task.box, task.operator, task.stage) == (str(PLAN.region(7)), "network", "compute")
    assert (task.done, task.total) == (31, 68)
    assert 0 < task.seconds < LONG_S
    assert (seen.network_seconds, seen.read_bytes) == (1.5, 4096)
    assert seen.memory_bytes > 1e6
    assert seen.pid == rig.process.process.pid


def test_log_messages_reach_the_supervisor(start: Callable[..., Rig]) -> None:
    """Warnings of libraries too, but no more than its supervisor wants to hear."""
    rig = start({}, line=lines.speaks)
    said = [rig.next() for _ in range(3)]
    assert [(each.level, each.text) for each in said[:2]] == [
        (logging.WARNING, "take care"),
        (logging.ERROR, "of a library"),
    ]
    assert "UserWarning: it is old" in said[2].text


def test_the_board_shows_where_a_dead_process_was(start: Callable[..., Rig]) -> None:
    """However fast the end comes: which task had begun, in which operator, and what Python says."""
    rig = start({3: "crashes"})
    rig.give(2, 3, 4)
    # The news of task 2 may die with the child; the board, which is shared memory, does not.
    first = rig.next()
    assert first is None or (first.number == 2 and rig.next() is None)
    rig.process.reap()
    rig.process.take(next(slot for slot, job in rig.process.jobs.items() if job.number == 2))
    assert rig.process.begun() == [rig.slot(3)]
    assert rig.process.place(rig.slot(3)) == "operator acts"
    end = rig.process.how_ended()
    assert (end.reason, end.cause) == ("killed by SIGSEGV (segmentation fault)", "segfault")
    assert "in crashes" in end.output


def test_a_process_ignores_stop_signals(start: Callable[..., Rig]) -> None:
    """Terminals and Slurm send signals to all processes; only the supervisor decides."""
    rig = start({}, seconds=0.3)
    rig.give(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(rig.process.process.pid, number)
    assert rig.next().state == "done"


def test_a_hanging_process_dumps_its_stacks(start: Callable[..., Rig]) -> None:
    """Asked, it writes down the stacks of its threads, and goes on."""
    rig = start({0: "hangs"})
    rig.give(0)
    wait_for(lambda: rig.process.progress(rig.slot(0)) is not None)
    rig.process.dump_stacks()
    wait_for(lambda: "in hangs" in rig.process._crash_file.text())
    assert rig.process.process.is_alive()


def test_a_pipeline_that_cannot_be_made_is_reported(start: Callable[..., Rig]) -> None:
    """The process says why, and whether the line itself is wrong."""
    rig = start({}, line=lines.wrong)
    broken = rig.next()
    assert isinstance(broken, PipelineBroken)
    assert broken.is_usage
    assert broken.fault.reason == "there is no such option"
    assert rig.next() is None


def test_a_broken_device_ends_the_process(start: Callable[..., Rig]) -> None:
    """After an error of the device the child says so and ends: the next task gets a new one."""
    rig = start({1: "breaks_device"})
    rig.give(0, 1, 2)
    assert isinstance(rig.next(), TaskEnded)
    assert isinstance(broken := rig.next(), PipelineBroken)
    assert "CUDA error" in broken.fault.reason
    assert rig.next() is None
    rig.process.reap()
    assert rig.slot(1) in rig.process.begun()
    assert rig.slot(2) not in rig.process.begun()


@pytest.mark.parametrize("act", ["wrong", "breaks_device", ""])
def test_no_unpacked_network_stays(
    start: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """However the process ends: in the pipeline, in a task, or without its supervisor."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rig = start({}, line=partial(lines.unpacks, act))
    first = rig.next()
    if act == "breaks_device":
        rig.process.operators = first.operators
        rig.give(0)
    elif not act:
        assert len(list(tmp_path.glob("unpacked-*"))) == 1
        with socket.socket(fileno=os.dup(rig.process._connection.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)
    rig.process.process.join(LONG_S)
    assert rig.process.process.exitcode == 1
    assert not list(tmp_path.glob("unpacked-*"))


def test_a_process_without_its_supervisor_ends(start: Callable[..., Rig]) -> None:
    """The end of its pipe ends it, also where the kernel does not."""
    rig = start({})
    with socket.socket(fileno=os.dup(rig.process._connection.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)
    rig.process.process.join(LONG_S)
    assert rig.process.process.exitcode == 1
