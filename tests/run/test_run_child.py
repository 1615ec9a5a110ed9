"""A child process: fed, cancelled, ended, and what is known of it when it is dead."""

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

from chunkflow_py.run.worker.child import Broken, Ended, Ready
from chunkflow_py.run.worker.children import Child, ChildStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAN = row(100)


class Heard:
    """A child and what it has said."""

    def __init__(self, line: Callable[..., Any]) -> None:
        self.messages: Queue[Any] = Queue()
        self.child: Child[int] = Child(0, ChildStart(line), None, self.post)

    def post(self, child: Child[int], messages: Any) -> None:
        for message in [None] if messages is None else messages:
            self.messages.put(message)

    def next(self) -> Any:
        """Return the next message; ``None`` for the end."""
        return self.messages.get(timeout=LONG_S)

    def give(self, *numbers: int) -> None:
        """Give tasks."""
        self.child.give([(number, number, str(PLAN.region(number))) for number in numbers])

    def slot(self, number: int) -> int:
        """Return the slot of a task."""
        return next(slot for slot, job in self.child.jobs.items() if job == number)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Heard]]:
    """Start a child whose line acts; it is ready when this returns, and ended with the test."""
    started = []

    def begin(acts: dict[int, str], ahead: int = 0, line: Any = None, seconds: float = 0) -> Heard:
        heard = Heard(line or partial(lines.acts, str(tmp_path), acts, seconds, ahead))
        started.append(heard)
        heard.child.window = 1
        if line is None:
            ready = heard.next()
            assert isinstance(ready, Ready)
            heard.child.operators = ready.operators
        return heard

    yield begin
    for heard in started:
        heard.child.kill()
        heard.child.reap()
        heard.child.close()


def test_tasks_come_back_with_their_outcomes(start: Callable[..., Heard]) -> None:
    """In the order of the line, each with its slot and number; failures with their class."""
    heard = start({1: "fails", 2: "skips"})
    heard.give(0, 1, 2)
    slots = {number: heard.slot(number) for number in range(3)}
    done, failed, skipped = heard.next(), heard.next(), heard.next()
    assert [each.number for each in (done, failed, skipped)] == [0, 1, 2]
    assert [each.slot for each in (done, failed, skipped)] == [slots[0], slots[1], slots[2]]
    assert [each.state for each in (done, failed, skipped)] == ["done", "failed", "skipped"]
    assert done.written[0][0].endswith("0.done")
    assert failed.fault.kind == "permanent"
    assert skipped.reason == "nothing to see"
    assert heard.child.take(slots[0]) == 0
    assert heard.child.take(slots[0]) is None


def test_a_child_ends_when_it_is_told(start: Callable[..., Heard]) -> None:
    """It finishes what it has, leaves the line, and ends well."""
    heard = start({}, seconds=0.05)
    heard.give(0, 1)
    heard.child.end()
    assert [heard.next().number, heard.next().number, heard.next()] == [0, 1, None]
    heard.child.reap()
    assert heard.child.process.exitcode == 0


def test_a_cancelled_task_stops(start: Callable[..., Heard]) -> None:
    """One that waits is never begun; one that is under way stops after its operator."""
    heard = start({0: "hangs_2_s"}, ahead=1)
    heard.give(0, 1, 2)
    wait_for(lambda: heard.child.progress(heard.slot(0)) is not None)
    assert heard.child.is_untouched(heard.slot(2))
    heard.child.cancel([(heard.slot(2), 2)])
    ended = [heard.next() for _ in range(3)]
    assert {each.number: each.state for each in ended} == {0: "done", 1: "done", 2: "lost"}


def test_a_child_is_seen_at_work(start: Callable[..., Heard]) -> None:
    """Its task, in which operator and how far within; network, reading and memory are counted."""
    heard = start({}, line=lines.shows_progress)
    ready = heard.next()
    heard.child.operators, heard.child.lanes = ready.operators, ready.lanes
    assert heard.child.seen(str).seconds is None
    assert heard.child.seen(str).network_seconds == 0.0
    heard.give(7)
    wait_for(lambda: any(task.done for task in heard.child.seen(str).tasks))
    heard.child.look()
    seen = heard.child.seen(lambda number: f"box {number}")
    (task,) = seen.tasks
    assert (task.box, task.operator, task.lane) == ("box 7", "network", "compute")
    assert (task.done, task.total) == (31, 68)
    assert 0 < task.seconds < LONG_S
    assert (seen.network_seconds, seen.read_bytes) == (1.5, 4096)
    assert seen.memory_bytes > 1e6
    assert seen.pid == heard.child.process.pid


def test_what_a_child_logs_is_told_to_its_supervisor(start: Callable[..., Heard]) -> None:
    """Warnings of libraries too, but no more than its supervisor wants to hear."""
    heard = start({}, line=lines.speaks)
    said = [heard.next() for _ in range(3)]
    assert [(each.level, each.text) for each in said[:2]] == [
        (logging.WARNING, "take care"),
        (logging.ERROR, "of a library"),
    ]
    assert "UserWarning: it is old" in said[2].text


def test_the_board_tells_where_a_dead_child_was(start: Callable[..., Heard]) -> None:
    """However fast the end comes: which task had begun, in which operator, and what Python says."""
    heard = start({3: "crashes"})
    heard.give(2, 3, 4)
    # The news of task 2 may die with the child; the board, which is shared memory, does not.
    first = heard.next()
    assert first is None or (first.number == 2 and heard.next() is None)
    heard.child.reap()
    heard.child.take(next(slot for slot, job in heard.child.jobs.items() if job == 2))
    assert heard.child.begun() == [heard.slot(3)]
    assert heard.child.operator(heard.slot(3)) == "operator acts"
    cause, said = heard.child.cause()
    assert cause == "killed by SIGSEGV (segmentation fault)"
    assert "in crashes" in said


def test_a_child_is_deaf_to_what_stops_workers(start: Callable[..., Heard]) -> None:
    """Terminals and Slurm send signals to all processes; only the supervisor decides."""
    heard = start({}, seconds=0.3)
    heard.give(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(heard.child.process.pid, number)
    assert heard.next().state == "done"


def test_a_hanging_child_tells_where_it_is(start: Callable[..., Heard]) -> None:
    """Asked, it writes down the stacks of its threads, and goes on."""
    heard = start({0: "hangs"})
    heard.give(0)
    wait_for(lambda: heard.child.progress(heard.slot(0)) is not None)
    heard.child.ask_where()
    wait_for(lambda: "in hangs" in heard.child._faults.text())
    assert heard.child.process.is_alive()


def test_a_line_that_cannot_be_made_is_told(start: Callable[..., Heard]) -> None:
    """The child says why, and whether the line itself is wrong."""
    heard = start({}, line=lines.wrong)
    broken = heard.next()
    assert isinstance(broken, Broken)
    assert broken.is_usage
    assert broken.fault.reason == "there is no such option"
    assert heard.next() is None


def test_a_broken_device_ends_the_process(start: Callable[..., Heard]) -> None:
    """After an error of the device the child says so and ends: the next task gets a new one."""
    heard = start({1: "breaks_device"})
    heard.give(0, 1, 2)
    assert isinstance(heard.next(), Ended)
    assert isinstance(broken := heard.next(), Broken)
    assert "CUDA error" in broken.fault.reason
    assert heard.next() is None
    heard.child.reap()
    assert heard.slot(1) in heard.child.begun()
    assert heard.slot(2) not in heard.child.begun()


def test_a_child_without_its_supervisor_ends(start: Callable[..., Heard]) -> None:
    """The end of its pipe ends it, also where the kernel does not."""
    heard = start({})
    with socket.socket(fileno=os.dup(heard.child._connection.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)
    heard.child.process.join(LONG_S)
    assert heard.child.process.exitcode == 1
