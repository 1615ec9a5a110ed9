"""The only loop over tasks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from chunkflow_py import BoundingBox, BoxGrid, Pipeline, Region, Task, Zyx
from chunkflow_py.cli.main import cli
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import ChunkError, ChunkflowError, OperatorError, OptionError
from chunkflow_py.pipeline.operator import Operator, Outline, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

GRID = BoxGrid.covering(BoundingBox.parse("0-6_0-1_0-1"), Zyx(1, 1, 1))
AHEAD = pytest.mark.parametrize("ahead", [0, 1, 3])


def box(text: str) -> BoundingBox:
    """Return a box whose x range is *text*, one voxel thick."""
    return BoundingBox.parse(f"0-1_0-1_{text}")


def make(
    name: str,
    body: Any = lambda task: task,
    lane: Any = "compute",
    *,
    reads: str = "",
    to: str = "",
) -> Operator:
    """Return an operator as a command would."""
    call = body if callable(body) else lambda task: task
    return Operator(name, lane, call, body, tuple(reads.split()), tuple(to.split()))


def run(operators: Sequence[Operator], boxes: Any = GRID, **settings: Any) -> list[Task]:
    """Check and run a line over tasks of *boxes*."""
    source = None if boxes is None else Source("boxes", TaskSource(boxes))
    pipeline = Pipeline(operators, source, **settings)
    pipeline.check()
    return list(pipeline.run())


def number(task: Task) -> int:
    """Return which of the tasks of `GRID` this is."""
    assert task.bbox is not None
    return task.bbox.start.z


# --- the loop ------------------------------------------------------------------------------------


@AHEAD
def test_operators_are_applied_in_order_to_every_task(ahead: int) -> None:
    """Each task passes every operator in the order of the line, and tasks keep their order."""

    def step(name: str) -> Callable[[Task], Task]:
        def body(task: Task) -> Task:
            task["trace"] = [*task.items.get("trace", []), name]
            return task

        return body

    lanes = ("read", "read", "compute", "write", "write")
    line = [make(n, step(n), lane) for n, lane in zip("abcde", lanes, strict=True)]
    tasks = run(line, ahead=ahead)
    assert [number(task) for task in tasks] == list(range(6))
    assert all(task["trace"] == list("abcde") for task in tasks)
    assert all(list(task.seconds) == list("abcde") for task in tasks)


def test_without_a_source_the_line_runs_once() -> None:
    """A line that no source begins gets one empty task."""
    (task,) = run([make("a")], boxes=None)
    assert (task.region, task.items, task.outcome) == (None, {}, None)


def test_a_source_alone_passes_its_tasks() -> None:
    """A line may consist of a source only."""
    assert len(run([])) == 6


def test_repeated_operators_are_numbered() -> None:
    """The second operator of a name is name#2, in timings too."""
    line = [make(name) for name in ("inference", "mask", "inference", "inference")]
    (task,) = run(line, boxes=None)
    assert list(task.seconds) == ["inference", "mask", "inference#2", "inference#3"]


@AHEAD
def test_failed_task_flows_to_the_end_and_the_rest_arrive(ahead: int) -> None:
    """Every third task fails; it arrives with its error, without chunks, and no other suffers."""
    later: list[int] = []

    def fail(task: Task) -> Task:
        task["chunk"] = "large"
        if number(task) % 3 == 0:
            msg = "shapes (1, 2) and (2, 1) differ"
            raise ChunkError(msg)
        return task

    def note(task: Task) -> Task:
        later.append(number(task))
        return task

    tasks = run([make("load", lane="read"), make("fail", fail), make("note", note)], ahead=ahead)
    assert [number(task) for task in tasks] == list(range(6))
    assert [task.failed for task in tasks] == [True, False, False] * 2
    assert later == [1, 2, 4, 5]
    failed = tasks[3]
    assert isinstance(failed.outcome, OperatorError)
    assert str(failed.outcome) == (
        "fail failed on task 3-4_0-1_0-1: shapes (1, 2) and (2, 1) differ"
    )
    assert isinstance(failed.outcome.__cause__, ChunkError)
    assert failed.outcome.__cause__.__traceback__ is not None
    assert not failed.items
    assert "note" not in failed.seconds


@AHEAD
def test_skipped_task_is_done_with_a_reason(ahead: int) -> None:
    """Skip ends a task early: it arrives, has not failed, carries its reason and no chunks."""

    def skip(task: Task) -> Task:
        task["chunk"] = "large"
        if number(task) == 2:
            reason = "all voxels are zero"
            raise Skip(reason)
        return task

    tasks = run([make("skip", skip), make("save", lane="write")], ahead=ahead)
    assert len(tasks) == 6
    skipped = tasks[2]
    assert not skipped.failed
    assert str(skipped.outcome) == "all voxels are zero"
    assert not skipped.items
    assert "save" not in skipped.seconds
    assert all(task.outcome is None for task in tasks if task is not skipped)


@pytest.mark.parametrize(
    ("returned", "said"), [(None, "returned None"), (3, "returned a int"), (Task(), "a Task")]
)
def test_operator_that_loses_its_task_is_caught(returned: object, said: str) -> None:
    """Forgetting to return the task is an error that names the operator and the remedy."""
    (task,) = run([make("plugin", lambda _: returned)], boxes=None)
    assert task.failed
    assert said in str(task.outcome)
    assert "plugin failed" in str(task.outcome)
    assert "raise Skip to drop a task" in str(task.outcome)


def test_error_of_the_source_reaches_the_consumer() -> None:
    """A source that breaks is no task's failure: tasks before it arrive, then its error."""

    def broken() -> Iterator[Task]:
        yield Task()
        msg = "queue is gone"
        raise OSError(msg)

    pipeline = Pipeline([make("a", lane="read"), make("b")], Source("s", broken()), ahead=1)
    pipeline.check()
    tasks = pipeline.run()
    assert not next(tasks).failed
    with pytest.raises(OSError, match="queue is gone"):
        next(tasks)


# --- lanes ---------------------------------------------------------------------------------------


def test_lanes_overlap() -> None:
    """One task is read, another computed and a third written at the same time."""
    together = threading.Barrier(3, timeout=20)

    def meet(which: int) -> Callable[[Task], Task]:
        def body(task: Task) -> Task:
            if number(task) == which:
                together.wait()
            return task

        return body

    line = [make("r", meet(2), "read"), make("c", meet(1)), make("w", meet(0), "write")]
    tasks = run(line, ahead=1)
    assert [task.outcome for task in tasks] == [None] * 6


def test_neighbours_of_one_lane_share_a_thread() -> None:
    """Threads belong to lanes, not to operators; the last lane runs in the caller's thread."""
    threads: dict[str, set[str]] = {}

    def note(name: str) -> Callable[[Task], Task]:
        def body(task: Task) -> Task:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return task

        return body

    lanes = {"a": "read", "b": "read", "c": "compute", "d": "write"}
    run([make(name, note(name), lane) for name, lane in lanes.items()], ahead=2)
    assert threads["a"] == threads["b"]
    assert [len(names) for names in threads.values()] == [1] * 4
    assert threads["d"] == {threading.current_thread().name}
    assert len(set.union(*threads.values())) == 3
    run([make(name, note(f"{name}0"), lane) for name, lane in lanes.items()], ahead=0)
    assert threads["a0"] == threads["c0"] == threads["d0"] == threads["d"]


@AHEAD
@pytest.mark.parametrize("at_once", [False, True])
def test_number_of_tasks_alive_is_bounded(ahead: int, at_once: bool) -> None:
    """At most 1 + lanes · ahead tasks hold memory at any time, however fast the reader is.

    One more where lanes work on several at once.
    """
    alive = most = 0
    lock = threading.Lock()

    class Large:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    def load(task: Task) -> Task:
        task["chunk"] = Large()
        return task

    grid = BoxGrid.covering(BoundingBox.parse("0-40_0-1_0-1"), Zyx(1, 1, 1))
    line = [make("load", Safe(load) if at_once else load, "read"), make("c")]
    line.append(make("save", Safe(wait_s=0.001) if at_once else lambda task: task, "write"))
    pipeline = Pipeline(line, Source("boxes", TaskSource(grid)), ahead=ahead)
    pipeline.check()
    for task in pipeline.run():
        del task
    assert most <= 1 + 3 * ahead + (at_once and ahead > 0)
    assert alive == 0


class Safe(OperatorBase):
    """A body for several threads, that counts how many tasks it works on at once."""

    thread_safe = hook_value(True)

    def __init__(self, work: Any = None, wait_s: float = 0.0) -> None:
        self.work, self.wait_s = work, wait_s
        self.now = self.most = 0
        self.threads: set[str] = set()
        self.lock = threading.Lock()

    def __call__(self, task: Task) -> Task:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.current_thread().name)
        try:
            time.sleep(self.wait_s)
            if self.work:
                self.work(task)
            return task
        finally:
            with self.lock:
                self.now -= 1


@AHEAD
def test_thread_safe_lanes_work_on_all_tasks_that_they_are_ahead(ahead: int) -> None:
    """Slow reads and writes go on at once, no more than may work ahead; tasks keep their order."""
    read, write = Safe(wait_s=0.02), Safe(wait_s=0.02)
    grid = BoxGrid.covering(BoundingBox.parse("0-12_0-1_0-1"), Zyx(1, 1, 1))
    line = [make("r", read, "read"), make("c"), make("w", write, "write")]
    tasks = run(line, grid, ahead=ahead)
    assert [number(task) for task in tasks] == list(range(12))
    assert [list(task.seconds) for task in tasks] == [["r", "c", "w"]] * 12
    assert read.most == (ahead + 2 if ahead else 1)
    assert ahead == 0 or 2 <= write.most <= ahead + 2
    if ahead == 0:
        assert read.threads == write.threads == {threading.current_thread().name}


def test_a_lane_is_at_once_only_if_all_of_it_is() -> None:
    """One operator that is not thread-safe keeps the whole lane on one thread."""
    read = Safe(wait_s=0.005)
    line = [make("r", read, "read"), make("r", lane="read"), make("w", Safe(), "write")]
    run(line, ahead=2)
    assert (read.most, len(read.threads)) == (1, 1)


@AHEAD
@pytest.mark.parametrize("where", ["read", "write"])
def test_what_goes_wrong_in_one_of_several_threads_is_its_task_s_own(
    where: str, ahead: int
) -> None:
    """Failed and skipped tasks arrive in their places, the others are whole."""

    def work(task: Task) -> None:
        time.sleep(0.002 * (number(task) % 2))
        if number(task) == 1:
            msg = "no such block"
            raise ChunkError(msg)
        if number(task) == 4:
            reason = "nothing there"
            raise Skip(reason)

    bodies = {lane: Safe(work if lane == where else None) for lane in ("read", "write")}
    line = [make(lane, body, lane) for lane, body in bodies.items()]
    tasks = run([line[0], make("c"), line[1]], ahead=ahead)
    assert [number(task) for task in tasks] == list(range(6))
    assert [task.failed for task in tasks] == [n == 1 for n in range(6)]
    assert str(tasks[1].outcome) == f"{where} failed on task 1-2_0-1_0-1: no such block"
    assert str(tasks[4].outcome) == "nothing there"


def seconds_of(ahead: int, *, read: float, compute: float, write: float) -> float:
    """Return how long a line of three lanes takes for 8 tasks, each lane sleeping so long."""
    grid = BoxGrid.covering(BoundingBox.parse("0-8_0-1_0-1"), Zyx(1, 1, 1))

    def work(task: Task) -> Task:
        time.sleep(compute)
        return task

    line = [make("r", Safe(wait_s=read), "read"), make("c", work)]
    line.append(make("w", Safe(wait_s=write), "write"))
    start = time.perf_counter()
    assert len(run(line, grid, ahead=ahead)) == 8
    return time.perf_counter() - start


# Another process may take the processor meanwhile: of several tries one has to be fast, which none
# is where lanes wait for each other.


def test_a_line_takes_as_long_as_its_slowest_lane() -> None:
    """Reading and writing hide behind computing: in all within 10 % of its time."""
    tries = (seconds_of(1, read=0.01, compute=0.1, write=0.01) for _ in range(8))
    assert any(seconds <= 1.10 * 0.8 for seconds in tries)


def test_lanes_that_keep_pace_are_much_faster_than_one_after_the_other() -> None:
    """Where reading and writing wait for a network and all lanes keep pace: at least 2.5 times."""
    one_after_the_other = 8 * (0.08 + 0.04 + 0.08)
    tries = (seconds_of(1, read=0.08, compute=0.04, write=0.08) for _ in range(8))
    assert any(one_after_the_other >= 2.5 * seconds for seconds in tries)
    assert seconds_of(0, read=0.008, compute=0.004, write=0.008) >= one_after_the_other / 10


@AHEAD
@pytest.mark.parametrize("at_once", [False, True])
def test_leaving_early_ends_threads_and_contexts(ahead: int, at_once: bool) -> None:
    """A consumer that stops leaves no thread and no open operator behind."""
    before = set(threading.enumerate())
    opened = Opened()
    opened.thread_safe = at_once
    line = [make("load", opened, "read"), make("c"), make("w", Safe(), "write")]
    pipeline = Pipeline(line, Source("boxes", TaskSource(GRID)), ahead=ahead)
    pipeline.check()
    tasks = pipeline.run()
    next(tasks)
    tasks.close()
    assert not set(threading.enumerate()) - before
    assert opened.events[0] == "enter"
    assert opened.events[-1] == "exit with GeneratorExit"


# --- set-up and tear-down ------------------------------------------------------------------------


@dataclass
class Opened(OperatorBase):
    """A body that must be entered, and writes down what happens to it."""

    events: list[str] = field(default_factory=list)
    broken: Exception | None = None
    thread_safe: bool = field(default=False, metadata=HOOK)

    def __enter__(self) -> Opened:
        self.events.append("enter")
        if self.broken:
            raise self.broken
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.events.append(f"exit with {kind.__name__}" if kind else "exit")

    def __call__(self, task: Task) -> Task:
        self.events.append("call")
        return task


@dataclass
class Refuses(OperatorBase):
    """A body that finds something wrong with the line before it runs."""

    error: Exception

    @hook
    def prepare(self, outline: Outline) -> None:
        raise self.error


def test_bodies_are_entered_after_all_checks() -> None:
    """Heavy set-up of the first operator waits until the last one has agreed."""
    opened = Opened()
    error = ChunkflowError("not aligned")
    with pytest.raises(ChunkflowError, match="not aligned"):
        run([make("load", opened, "read"), make("save", Refuses(error), "write")])
    assert not opened.events
    run([make("load", opened, "read")], boxes=None)
    assert opened.events == ["enter", "call", "exit"]


def test_bodies_are_exited_when_a_later_one_fails_to_enter() -> None:
    """What was opened is closed when the next cannot be opened; the message names that one."""
    opened, broken = Opened(), Opened(broken=RuntimeError("no such device"))
    with pytest.raises(OperatorError, match="inference failed: RuntimeError: no such device"):
        run([make("load", opened, "read"), make("inference", broken)])
    assert opened.events == ["enter", "exit with OperatorError"]
    assert broken.events == ["enter"]


def test_own_errors_of_set_up_are_left_alone() -> None:
    """Our own errors are sentences already and are not wrapped."""
    with pytest.raises(ChunkError, match="^bad$"):
        run([make("a", Opened(broken=ChunkError("bad")))])
    with pytest.raises(OperatorError, match="a failed: ZeroDivisionError: oh"):
        run([make("a", Refuses(ZeroDivisionError("oh")))])


@AHEAD
def test_bodies_are_exited_when_a_task_fails(ahead: int) -> None:
    """A failed task does not keep the operators from being closed properly."""
    opened = Opened()

    def fail(task: Task) -> Task:
        raise ValueError

    run([make("load", opened, "read"), make("fail", fail)], ahead=ahead)
    assert opened.events == ["enter", *["call"] * 6, "exit"]


def test_dry_run_leaves_out_what_saves() -> None:
    """In a dry run operators of the write lane are not checked, entered or called."""
    load, save = Opened(), Opened()
    refuses = make("create", Refuses(ChunkflowError("x")), "write")
    tasks = run([make("load", load, "read"), make("save", save, "write"), refuses], dry_run=True)
    assert not save.events
    assert len(load.events) == 8
    assert [list(task.seconds) for task in tasks] == [["load"]] * 6


# --- checks before the first task ----------------------------------------------------------------


def test_names_are_checked_before_work() -> None:
    """An item that nothing makes is a usage error, before anything is opened."""
    opened = Opened()
    line = [
        make("load", opened, "read", to="chunk"),
        make("inference", reads="chunk", to="affinity"),
        make("mask", reads="image"),
    ]
    with pytest.raises(
        OptionError,
        match=r"mask reads 'image', which no operator before it makes \(made so far: affinity, "
        r"chunk\); change --input-name or add a loader",
    ):
        run(line)
    assert not opened.events
    with pytest.raises(OptionError, match="made so far: none"):
        run([make("mask", reads="image"), make("load", to="image")])


@dataclass
class Loader(OperatorBase):
    """A loader that knows its bounds and takes the margin that the line asks for."""

    volume: BoundingBox | None = None
    required: Any = None

    @hook
    def bounds(self) -> BoundingBox | None:
        return self.volume

    @hook
    def negotiate(self, required: Any) -> None:
        self.required = required

    def __call__(self, task: Task) -> Task:
        return task


@dataclass
class Halo(OperatorBase):
    """A body that needs *low* and *high* more voxels in x than it returns."""

    low: int
    high: int

    @hook
    def required_input(self, wanted: BoundingBox, domain: BoundingBox) -> BoundingBox:
        return wanted.grow(Zyx(0, 0, self.low), Zyx(0, 0, self.high))

    def __call__(self, task: Task) -> Task:
        return task


@dataclass
class Moves(OperatorBase):
    """A body that moves the faces of the task's box."""

    face_offsets: tuple[Zyx, Zyx] = field(metadata=HOOK)

    def __call__(self, task: Task) -> Task:
        return task


@dataclass
class Looks(OperatorBase):
    """A body that keeps the outline it was shown."""

    seen: list[Outline] = field(default_factory=list)

    @hook
    def prepare(self, outline: Outline) -> None:
        self.seen.append(outline)

    def __call__(self, task: Task) -> Task:
        return task


def required(*later: Operator, wanted: str = "10-20", domain: str = "0-100") -> str:
    """Return the x range that a loader of `chunk` must read for the rest of the line."""
    loader = Loader()
    pipeline = Pipeline([make("load", loader, "read", to="chunk"), *later])
    pipeline.check()
    answer = loader.required(box(wanted), box(domain))
    assert (answer.start[:2], answer.stop[:2]) == ((0, 0), (1, 1))
    return f"{answer.start.x}-{answer.stop.x}"


def halo(low: int, high: int, reads: str = "chunk", to: str = "chunk") -> Operator:
    """Return an operator with a halo."""
    return make("filter", Halo(low, high), reads=reads, to=to)


def moves(low: int, high: int) -> Operator:
    """Return an operator that moves the two faces in x."""
    return make("adjust-bbox", Moves((Zyx(0, 0, low), Zyx(0, 0, high))))


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], "10-20"),
        ([make("save", reads="chunk", lane="write")], "10-20"),
        ([halo(1, 2)], "9-22"),
        ([halo(1, 2), halo(3, 4)], "6-26"),
        ([make("threshold", reads="chunk", to="chunk"), halo(3, 4)], "7-24"),
        ([halo(1, 2), make("save", reads="chunk", lane="write")], "9-22"),
        # Two consumers of one name: what each needs, together.
        ([halo(5, 0, to="a"), halo(0, 7, to="b")], "5-27"),
        ([halo(5, 0, to="a"), halo(1, 1, reads="a", to="b"), halo(0, 7, to="c")], "4-27"),
        # What is made of something else does not count.
        ([make("create", to="other"), halo(9, 9, reads="other", to="other")], "10-20"),
        # A second loader of the same name ends the need for the first.
        ([make("load-again", to="chunk", lane="read"), halo(9, 9)], "10-20"),
        # The task's box is another one after adjust-bbox.
        ([moves(-2, 3), halo(1, 1)], "7-24"),
        ([halo(1, 1), moves(-2, 3)], "9-21"),
        ([halo(1, 1), moves(-2, 3), make("save", reads="chunk", lane="write")], "7-24"),
        ([moves(4, -4), halo(5, 5)], "9-21"),
        ([moves(-1, 1), moves(-2, 2), halo(1, 1)], "6-24"),
        # Never more than there is.
        ([halo(50, 200)], "0-100"),
    ],
)
def test_required_input_is_composed_from_the_last_operator_back(
    later: list[Operator], expected: str
) -> None:
    """A loader reads what all later operators together need, and no more."""
    assert required(*later) == expected


def test_required_input_outside_of_the_volume() -> None:
    """Where the volume holds nothing of the box, the loader is told the box it should have had."""
    assert required(halo(1, 1), domain="50-60") == "9-21"


def test_margins_of_two_loaders() -> None:
    """Each loader is asked for what is made of its own chunk."""
    image, mask = Loader(), Loader()
    line = [
        make("load", image, "read", to="image"),
        make("load", mask, "read", to="mask"),
        halo(3, 3, reads="image", to="image"),
        make("multiply", reads="image mask", to="image"),
    ]
    Pipeline(line).check()
    assert image.required(box("10-20"), box("0-100")) == box("7-23")
    assert mask.required(box("10-20"), box("0-100")) == box("10-20")


def test_outline_follows_the_line() -> None:
    """Each operator is shown the boxes as they reach it and the bounds of what it reads."""
    first, second, third = Looks(), Looks(), Looks()
    volume = BoundingBox.parse("-5-50_0-1_0-1")
    line = [
        make("a", first),
        make("load", Loader(volume), "read", to="image"),
        make("create", to="other"),
        make("b", second, reads="image", to="map"),
        make("adjust-bbox", Moves((Zyx(-1, 0, 0), Zyx(2, 0, 0)))),
        make("c", third, "write", reads="map"),
        make("d", first, "write", reads="other"),
    ]
    run(line)
    assert (first.seen[0].boxes, first.seen[0].domain) == (GRID, None)
    assert (second.seen[0].region, second.seen[0].domain) == (GRID.bounds, volume)
    assert third.seen[0].region == BoundingBox.parse("-1-8_0-1_0-1")
    assert third.seen[0].domain == volume
    assert first.seen[1].domain is None


@pytest.mark.parametrize("respect_stop", [True, False])
def test_moved_grid_is_the_grid_of_moved_boxes(respect_stop: bool) -> None:
    """Moving the faces of a grid gives what moving the faces of each box gives."""
    grid = BoxGrid.covering(
        BoundingBox.parse("0-10_0-10_0-10"), Zyx(4, 4, 4), respect_stop=respect_stop
    )
    seen = []
    for boxes in (grid, list(grid)):
        looks = Looks()
        low, high = Zyx(-1, 0, 1), Zyx(1, 2, 3)
        run([make("adjust-bbox", Moves((low, high))), make("look", looks)], boxes=boxes)
        assert looks.seen[0].boxes is not None
        seen.append(list(looks.seen[0].boxes))
    assert seen[0] == seen[1]


def test_without_known_boxes_the_outline_is_empty() -> None:
    """A line without a source, or fed by a queue, is checked without boxes."""
    looks = Looks()
    run([make("adjust-bbox", Moves((Zyx(0, 0, 0), Zyx(0, 0, 0)))), make("a", looks)], boxes=None)
    Pipeline([make("a", looks)], Source("queue", iter([Task()]))).check()
    assert looks.seen == [Outline(), Outline(has_tasks=True, is_divided=True)]


# --- listener ------------------------------------------------------------------------------------


class Notes(Listener):
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        self.heard.append(("run", [stage.name for stage in operators], tasks))

    def operator_started(self, label: str, task: Task) -> None:
        self.heard.append(("start", label))

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:
        self.heard.append(("progress", label, done, total))

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        self.heard.append(("finish", label))
        assert seconds == task.seconds[label] >= 0

    def task_finished(self, task: Task) -> None:
        self.heard.append(("task", task.failed))

    def run_finished(self) -> None:
        self.heard.append(("end",))


class Works(OperatorBase):
    """A body with news from inside one call."""

    on_progress: Any = hook_value(None)

    def __call__(self, task: Task) -> Task:
        self.on_progress(1, 2)
        return task


def test_listener_hears_everything_in_order() -> None:
    """Start, progress and end of operators, tasks and the run are told, failures too."""

    def fail(task: Task) -> Task:
        raise ValueError

    notes = Notes()
    run([make("a", Works()), make("b", fail), make("c")], boxes=None, listener=notes)
    assert notes.heard == [
        ("run", ["a", "b", "c"], 1),
        ("start", "a"),
        ("progress", "a", 1, 2),
        ("finish", "a"),
        ("start", "b"),
        ("finish", "b"),
        ("task", True),
        ("end",),
    ]


def test_listener_is_told_how_many_tasks() -> None:
    """The number of tasks is that of the source, or unknown."""
    notes = Notes()
    run([make("a")], listener=notes)
    list(Pipeline([], Source("queue", iter([Task()])), listener=notes).run())
    assert [heard for heard in notes.heard if heard[0] == "run"] == [
        ("run", ["a"], 6),
        ("run", [], None),
    ]


def test_end_of_the_run_is_told_when_it_breaks() -> None:
    """A progress bar is closed even when the source fails."""

    def broken() -> Iterator[Task]:
        raise OSError
        yield

    notes = Notes()
    with pytest.raises(OSError, match=r"^$"):
        list(Pipeline([make("a")], Source("s", broken()), listener=notes).run())
    assert notes.heard[-1] == ("end",)


def test_a_pipeline_needs_no_listener() -> None:
    """The listener of a pipeline that was given none hears everything and does nothing."""
    (task,) = run([make("a", Works())], boxes=[Region.parse("0-1_0-1_0-1").bbox])
    assert task.outcome is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("save-h5 -f a.h5", "save-h5 -f ./a.h5"),
        ("save-h5 -f a", "save-h5 -f a"),
        ("save-pngs -o p", "save-pngs -o p/"),
        ("save-zarr -s v", "save-zarr -s zarr://file://v"),
        ("save-precomputed -v v", "save-precomputed -v precomputed://v"),
    ],
)
def test_two_commands_that_write_to_one_place_are_refused(
    first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second would replace what the first has written; nothing is written at all."""
    monkeypatch.chdir(tmp_path)
    line = f"create-chunk -s 4 4 4 {first} threshold {second}"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert f"{first.split(maxsplit=1)[0]}#2 both write to " in result.output
    assert not list(tmp_path.iterdir())


def test_a_volume_that_cannot_take_the_output_is_refused_before_any_work(tmp_path, capsys):
    """Channels and type of the network's output are compared with an existing volume first."""
    from chunkflow_py.cli.main import main

    store = str(tmp_path / "map.zarr")
    make = "--quiet create-chunk -s 8 16 16"
    network = "inference -f identity -s 8 16 16 -v 0 0 0 -c"

    def run(line):
        with pytest.raises(SystemExit) as stop:
            main(line.split())
        return stop.value.code, capsys.readouterr().err

    assert run(f"{make} {network} 2 save-zarr -s {store}") == (0, "")
    for rest in ("save-zarr -s", "crop-margin -m 1 1 1 1 1 1 save-zarr -s"):
        code, said = run(f"{make} {network} 3 {rest} {store}")
        assert code == 1
        assert said.startswith("Error: the pipeline makes 3 channels of float32, but")
    code, said = run(f"{make} {network} 2 --output-dtype uint8 save-zarr -s {store}")
    assert "makes 2 channels of uint8, but" in said
    other = f"{make} {network} 3 --output-dtype uint8 save-zarr -s {store}"
    assert run(other)[1].startswith("Error: the pipeline makes 3 channels of uint8, but")


# --- beginning ahead -----------------------------------------------------------------------------


class Ahead(OperatorBase):
    """A body of a transform whose work is done by one thread, so that it can begin ahead."""

    def __init__(self, work: Any, refuse: Any = None) -> None:
        self.work, self.refuse = work, refuse
        self.in_flight: list[int] = []
        self.most = 0
        self.pool = ThreadPoolExecutor(1)

    def __call__(self, chunk: int) -> Any:
        return self.work(chunk)

    @hook
    def start(self, chunk: int, bbox: Any = None) -> Future[Any]:
        if self.refuse:
            self.refuse(chunk)
        self.in_flight.append(chunk)
        self.most = max(self.most, len(self.in_flight))

        def work() -> Any:
            try:
                return self.work(chunk)
            finally:
                self.in_flight.remove(chunk)

        return self.pool.submit(work)


def ahead_line(body: Any, lane: Any = "compute", name: str = "infer") -> Operator:
    """Return an operator around *body*, as `transform` would make it, on numbers of tasks."""

    def finish(task: Task, result: Any) -> None:
        task["chunk"] = result

    def call(task: Task) -> Task:
        finish(task, body(number(task)))
        return task

    start = (lambda task: body.start(number(task), bbox=task.bbox)) if body else None
    return Operator(name, lane, call, body, (), ("chunk",), start, finish)


@AHEAD
def test_a_body_with_start_overlaps_only_if_lanes_run_ahead(ahead: int) -> None:
    """With --ahead 0 it is called; else two tasks are in flight, never more; order is kept."""
    threads = set()

    def work(chunk: int) -> int:
        threads.add(threading.current_thread())
        time.sleep(0.005)
        return -chunk

    body = Ahead(work)
    tasks = run([make("r", lane="read"), ahead_line(body), make("w", lane="write")], ahead=ahead)
    assert [number(task) for task in tasks] == list(range(6))
    assert [task["chunk"] for task in tasks] == [-n for n in range(6)]
    assert body.most == (2 if ahead else 0)
    assert (threads == {threading.main_thread()}) == (ahead == 0)


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("where", ["start", "future", "skip in start", "skip in future"])
def test_what_goes_wrong_ahead_is_the_outcome_of_its_task(where: str, ahead: int) -> None:
    """Every third task fails or is skipped, with the operator's name; the others arrive whole."""

    def fail(chunk: int) -> int:
        if chunk % 3 == 0:
            if "skip" in where:
                reason = "nothing there"
                raise Skip(reason)
            msg = "shapes differ"
            raise ChunkError(msg)
        return chunk

    body = Ahead(lambda chunk: chunk, fail) if "start" in where else Ahead(fail)
    later: list[int] = []

    def note(task: Task) -> Task:
        later.append(number(task))
        return task

    line = [make("r", lane="read"), ahead_line(body), make("c", note), make("w", lane="write")]
    tasks = run(line, ahead=ahead)
    assert [number(task) for task in tasks] == list(range(6))
    assert later == [1, 2, 4, 5]
    for task in tasks:
        if number(task) % 3:
            assert task.outcome is None
            assert task["chunk"] == number(task)
            continue
        assert not task.items
        assert "w" not in task.seconds
        assert task.seconds.keys() == {"r", "infer"}
        assert task.failed == ("skip" not in where)
        if task.failed:
            assert str(task.outcome).startswith("infer failed on task")
            assert "shapes differ" in str(task.outcome)
            assert isinstance(task.outcome.__cause__, ChunkError)  # type: ignore[union-attr]
        else:
            assert str(task.outcome) == "nothing there"


def test_a_task_that_has_failed_already_is_not_begun() -> None:
    """What failed while it was read passes by, in its place."""

    def fail(task: Task) -> Task:
        if number(task) == 2:
            msg = "no such file"
            raise ChunkError(msg)
        return task

    begun: list[int] = []
    body = Ahead(lambda chunk: chunk, begun.append)
    tasks = run([make("r", fail, "read"), ahead_line(body)], ahead=2)
    assert begun == [0, 1, 3, 4, 5]
    assert [task.failed for task in tasks] == [False, False, True, False, False, False]
    assert [number(task) for task in tasks] == list(range(6))


def test_a_listener_that_breaks_ends_the_run_instead_of_stopping_it() -> None:
    """An error of the listener in the thread of the work reaches the consumer, no one waits."""

    class Broken(Listener):
        def operator_finished(self, label: str, task: Task, seconds: float) -> None:
            if label == "infer" and number(task) == 1:
                msg = "standard error is closed"
                raise BrokenPipeError(msg)

    body = Ahead(lambda chunk: chunk)
    with pytest.raises(BrokenPipeError, match="standard error is closed"):
        run([make("r", lane="read"), ahead_line(body)], ahead=1, listener=Broken())


def test_work_that_exits_is_the_outcome_of_its_task() -> None:
    """sys.exit() in a model file fails one task, and nothing waits for it for ever."""

    def leave(chunk: int) -> int:
        if chunk == 1:
            raise SystemExit(3)
        return chunk

    tasks = run([make("r", lane="read"), ahead_line(Ahead(leave))], ahead=1)
    assert [task.failed for task in tasks] == [False, True, *[False] * (len(tasks) - 2)]
    assert "SystemExit: 3" in str(tasks[1].outcome)


def test_times_ahead_add_up_to_the_wall_time() -> None:
    """Waiting for the task before is not counted: the times of all tasks fill the wall time."""

    def work(chunk: int) -> int:
        time.sleep(0.05)
        return chunk

    start = time.perf_counter()
    tasks = run([make("r", lane="read"), ahead_line(Ahead(work))], ahead=1)
    wall = time.perf_counter() - start
    total = sum(task.seconds["infer"] for task in tasks)
    assert 6 * 0.05 <= total <= wall * 1.02
    assert all(task.seconds["infer"] < 0.15 for task in tasks) or wall > 0.6


def test_operators_before_it_run_while_it_computes() -> None:
    """What lies before it in the compute lane works on the next task meanwhile."""
    together = threading.Barrier(2, timeout=20)

    def before(task: Task) -> Task:
        if number(task) == 1:
            together.wait()
        return task

    def work(chunk: int) -> int:
        if chunk == 0:
            together.wait()
        return chunk

    line = [make("r", lane="read"), make("before", before), ahead_line(Ahead(work))]
    tasks = run([*line, make("after"), make("w", lane="write")], ahead=1)
    assert [task.outcome for task in tasks] == [None] * 6


def test_two_that_begin_ahead_overlap_each_other() -> None:
    """The first works on the next task while the second works on this one."""
    together = threading.Barrier(2, timeout=20)

    def meet(which: int) -> Any:
        def work(chunk: int) -> int:
            if chunk == which:
                together.wait()
            return chunk

        return Ahead(work)

    line = [make("r", lane="read"), ahead_line(meet(1)), ahead_line(meet(0))]
    tasks = run(line, ahead=1)
    assert [task.outcome for task in tasks] == [None] * 6
    assert [list(task.seconds) for task in tasks] == [["r", "infer", "infer#2"]] * 6


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("at_once", [False, True])
def test_number_of_tasks_alive_is_bounded_if_one_begins_ahead(ahead: int, at_once: bool) -> None:
    """At most 1 + lanes x ahead tasks hold memory, one more than that while two are in flight."""
    alive = most = 0
    lock = threading.Lock()

    class Large:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    def load(task: Task) -> Task:
        task["image"] = Large()
        return task

    def work(chunk: int) -> int:
        time.sleep(0.001)
        return chunk

    grid = BoxGrid.covering(BoundingBox.parse("0-40_0-1_0-1"), Zyx(1, 1, 1))
    line = [make("load", load, "read"), ahead_line(Ahead(work)), make("save", lane="write")]
    if at_once:
        line = [make("load", Safe(load), "read"), line[1], make("save", Safe(), "write")]
    pipeline = Pipeline(line, Source("boxes", TaskSource(grid)), ahead=ahead)
    pipeline.check()
    for task in pipeline.run():
        time.sleep(0.002)
        del task
    assert most <= 1 + 3 * ahead + 1
    assert alive == 0


def test_leaving_early_while_work_is_in_flight() -> None:
    """A consumer that stops does not wait for more than what has begun, and leaves no thread."""
    before = set(threading.enumerate())
    begun: list[int] = []
    body = Ahead(lambda chunk: chunk, begun.append)
    line = [make("r", lane="read"), ahead_line(body), make("w", lane="write")]
    pipeline = Pipeline(line, Source("boxes", TaskSource(GRID)), ahead=1)
    pipeline.check()
    tasks = pipeline.run()
    next(tasks)
    tasks.close()
    assert len(begun) <= 5
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in names if name.startswith(("overlapped", "read-", "compute-"))]


# --- what a line knows ---------------------------------------------------------------------------


class Movie(Loader):
    """A loader of a volume with a time axis."""

    times = hook_value(7)


def test_an_operator_is_told_how_many_time_points_its_input_has() -> None:
    """The length of the time axis goes with what a loader makes, until something else is made."""
    first, second = Looks(), Looks()
    line = [
        make("load", Movie(BoundingBox.parse("0-6_0-1_0-1")), "read", to="movie"),
        make("other", Loader(), "read", to="image"),
        make("first", first, reads="movie", to="map"),
        make("second", second, reads="image"),
    ]
    run(line)
    assert [look.seen[0].times for look in (first, second)] == [7, None]


def test_several_places_of_one_operator_are_each_its_own() -> None:
    """An operator that writes to several places shares none of them with another."""

    class Several(Safe):
        destinations = hook_value()

        def __init__(self, *places: str) -> None:
            super().__init__()
            self.destinations = places

    run([make("a", Several("em", "em/log"), "write"), make("b", Several("seg"), "write")])
    with pytest.raises(OptionError, match="a and b both write to em/log, so one would"):
        run([make("a", Several("em", "em/log"), "write"), make("b", Several("em/log"), "write")])
