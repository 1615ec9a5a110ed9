"""Whatever operators, sources and contexts raise, each task has one outcome, and nothing hangs."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigs import lines, raising
from rigs.workers import row

from chunkflow_py.core.interrupts import Interrupted
from chunkflow_py.core.operator_base import OperatorBase, SourceBase, hook
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError, OperatorError
from chunkflow_py.pipeline import stream
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.run.worker.failure_policy import LONGEST_TRACEBACK, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 30.0
TASKS = 6
KIND = st.sampled_from(sorted(raising.KINDS))


def within(call: Callable[[], Any]) -> Any:
    """Return what *call* returns in a thread, or raise what it raises; fail if it takes long."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(LIMIT_S)


def tasks_of(count: int) -> list[Task]:
    """Return tasks of a row of boxes."""
    plan = row(count)
    return [Task(plan.region(number)) for number in plan]


@given(
    acts=st.dictionaries(
        st.integers(0, 3), st.dictionaries(st.integers(0, TASKS - 1), KIND, max_size=TASKS)
    ),
    ahead=st.integers(0, 3),
    threaded=st.booleans(),
)
def test_each_task_has_one_outcome(
    acts: dict[int, dict[int, str]], ahead: int, threaded: bool
) -> None:
    """Exceptions of any kind, at any operator, with up to 3 tasks ahead: each fails its task."""
    pipeline = raising.line(acts, ahead, tasks_of(TASKS))
    tasks = within(lambda: list(pipeline.run())) if threaded else list(pipeline.run())
    assert [lines.number_of(task) for task in tasks] == list(range(TASKS))
    for number, task in enumerate(tasks):
        first = next((position for position in range(4) if number in acts.get(position, {})), None)
        assert task.failed == (first is not None)
        if first is None:
            continue
        fault = fault_of(task.outcome)
        assert fault.kind == "permanent"
        assert f"-{first} failed on task" in fault.reason
        assert len(fault.reason) < 5000
        assert len(fault.traceback) <= 2 * LONGEST_TRACEBACK
        assert (fault.reason + fault.traceback).encode()
        if "unreadable" not in acts[first][number]:
            assert "in __call__" in fault.traceback or acts[first][number] == "long"


class Starts(OperatorBase):
    """An operator that begins ahead, and whose work raises at a point of it."""

    def __init__(self, acts: dict[int, tuple[str, str]]) -> None:
        self.acts = acts

    @hook
    def start(self, task: Task) -> Future[Any]:
        kind, where = self.acts.get(lines.number_of(task), ("", ""))
        if where == "start":
            raise raising.KINDS[kind]()
        future: Future[Any] = Future()
        if where == "cancelled":
            future.cancel()
        elif where == "future":
            threading.Timer(0.001, lambda: future.set_exception(raising.KINDS[kind]())).start()
        else:
            future.set_result((kind, where))
        return future

    def finish(self, task: Task, result: tuple[str, str]) -> None:
        if result[1] == "finish":
            raise raising.KINDS[result[0]]()


@given(
    acts=st.dictionaries(
        st.integers(0, TASKS - 1),
        st.tuples(KIND, st.sampled_from(["start", "future", "finish", "cancelled"])),
    ),
    ahead=st.integers(1, 3),
)
def test_work_that_begins_ahead(acts: dict[int, tuple[str, str]], ahead: int) -> None:
    """Whatever `start`, its future or `finish` raises is the outcome of its task."""
    body = Starts(acts)
    begins = Operator("begins", "compute", lambda task: task, body)
    begins.start, begins.finish = body.start, body.finish
    line = lines.pipeline(
        [lines.operator("r", lambda task: task, "read"), begins], tasks_of(TASKS), ahead
    )
    tasks = within(lambda: list(line.run()))
    assert [task.failed for task in tasks] == [number in acts for number in range(TASKS)]


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "Panic", "GeneratorExit"])
def test_a_source_that_exits(kind: str, ahead: int) -> None:
    """What is no Exception becomes an error that names the source; the process goes on."""

    def tasks() -> Iterator[Task]:
        yield from tasks_of(2)
        raise raising.KINDS[kind]()

    line = raising.line({}, ahead, tasks())
    with pytest.raises(ChunkflowError, match=f"source feed failed: {kind}"):
        within(lambda: list(line.run()))


@pytest.mark.parametrize("where", ["prepare", "__enter__", "__exit__"])
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "Panic", "CancelledError"])
def test_set_up_that_exits(kind: str, where: str) -> None:
    """An error that names the operator is raised, and a context cannot hide a failure."""
    with pytest.raises(OperatorError, match="sets-up failed"):
        list(raising.enters(kind, where, tasks_of(1)).run())


def test_a_context_cannot_hide_that_a_run_has_failed() -> None:
    """`__exit__` that returns True suppresses nothing: a run cut short would look complete."""

    def tasks() -> Iterator[Task]:
        yield from tasks_of(1)
        msg = "the queue is gone"
        raise OSError(msg)

    with pytest.raises(OSError, match="the queue is gone"):
        list(raising.enters("ValueError", "nowhere", tasks()).run())


class Endless(SourceBase):
    """A source that waits for its next task until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def __iter__(self) -> Iterator[Task]:
        yield from tasks_of(2)
        self.stopped.wait()

    @hook
    def stop(self) -> None:
        self.stopped.set()


class Broken:
    """A listener that fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def hear(*_: object) -> None:
            if name == "operator_finished":
                raise self.error

        return hear


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
@pytest.mark.parametrize("error", [SystemExit(1), ValueError("x"), asyncio.CancelledError()])
def test_a_lane_that_ends_does_not_wait_for_another_task(ahead: int, error: BaseException) -> None:
    """What fails beside the operators ends the run, though the source waits for its next task."""
    line = raising.line({}, ahead, Endless())
    line.listener = Broken(error)
    with pytest.raises(type(error)):
        within(lambda: list(line.run()))


def test_ctrl_c_in_an_operator_interrupts() -> None:
    """A real signal is no outcome of a task, whichever operator it meets: ctrl-C works."""

    def act(task: Task) -> Task:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        return task

    line = lines.pipeline([lines.operator("acts", act)], tasks_of(2))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(Interrupted):
            list(line.run())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "run_ahead",
    [
        lambda items: stream.prefetch(items, 1, "dies"),
        lambda items: stream.mapped(items, str, 1, "dies"),
        lambda items: stream.overlapped(items, done_with, "dies"),
    ],
    ids=["prefetch", "mapped", "overlapped"],
)
def test_a_dead_thread_is_noticed(
    run_ahead: Callable[[Iterator[int]], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that others have ended is not waited for: libraries of timeouts do that."""
    monkeypatch.setattr(stream, "LOOK_S", 0.05)

    def consume() -> None:
        for _ in run_ahead(iter(range(100))):
            time.sleep(0.02)  # the threads wait for more to do by now
            for thread in threading.enumerate():
                if thread.name.startswith("dies") and thread.ident:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
                    )

    with pytest.raises((ChunkflowError, SystemExit)):
        within(consume)


def done_with(item: int) -> Future[int]:
    """Return a future that is done."""
    future: Future[int] = Future()
    future.set_result(item)
    return future
