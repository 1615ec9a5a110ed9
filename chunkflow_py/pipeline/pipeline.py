"""The only loop over tasks: names, margins, timing, skips, failures, lanes and dry runs.

```
source -> read, read | compute, compute | write          one thread a lane, --ahead tasks between
                       inference begins on the next task while one is on its way
          loaders and savers that are thread-safe work on all tasks that they are ahead, at once
              <- required input, asked from the last operator back to the loaders
```
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.interrupts import Interrupted, marked_interrupts
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import (
    AlignmentError,
    ChunkflowError,
    LeaseLostError,
    OperatorError,
    as_error,
    text_of,
)
from chunkflow_py.pipeline.checks import check_names, check_places, check_sizes, naming, noting
from chunkflow_py.pipeline.forecast import (
    LineForecast,
    choose_ahead,
    forecast,
    largest_size,
    voxel_bytes,
)
from chunkflow_py.pipeline.hooks import (
    HasBounds,
    HasHalo,
    HasMargin,
    HasPrepare,
    HasStop,
    HasStoredType,
    HasTimes,
    HasVoxelSize,
    NumbersObjects,
    Outline,
    ReportsProgress,
    SetsBox,
    ShrinksVoxels,
    coarser_nm,
    keeps_labels,
    moved_boxes,
    shrunk_boxes,
    turned,
    turned_back,
    voxels_made,
)
from chunkflow_py.pipeline.lanes import Lane, lanes_of
from chunkflow_py.pipeline.stream import mapped, overlapped, prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.pipeline.hooks import Boxes
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.volume.labelling import Labelling

logger = logging.getLogger(__name__)


class _Item(NamedTuple):
    """What is known about an item before the first task: its place and its content."""

    domain: BoundingBox | None = None
    times: int | None = None
    voxels: Voxels | None = None
    scale: Zyx = Zyx(1, 1, 1)  # voxels of the line's input that make one of its own
    voxel_size_nm: tuple[float, float, float] | None = None
    labelling: Labelling | None = None


class _Made:
    """What is known about the output of an operator, from its first input and its hooks.

    Args:
        item: the first input.
    """

    def __init__(self, item: _Item) -> None:
        self.item = item
        self._voxels: Voxels | dict[str, Voxels] | None = None

    def ask(self, body: object) -> None:
        """Ask the operator; if it raises, the answers up to then are kept."""
        read = self.item.voxels
        if isinstance(body, HasBounds):
            self.item = self.item._replace(domain=body.bounds())
        if isinstance(body, HasTimes):
            self.item = self.item._replace(times=body.times)
        if isinstance(body, HasVoxelSize):
            self.item = self.item._replace(voxel_size_nm=body.known_voxel_size_nm())
        self._voxels = voxels_made(body, read)
        if isinstance(body, NumbersObjects):
            self.item = self.item._replace(labelling=body.labelling)
        elif not keeps_labels(body) or isinstance(body, ShrinksVoxels):
            self.item = self.item._replace(labelling=None)

    def resize(self, body: object) -> None:
        """Follow an operator that makes larger voxels or turns the axes."""
        domain, size_nm, scale = self.item.domain, self.item.voxel_size_nm, self.item.scale
        if isinstance(body, ShrinksVoxels):
            domain = domain and domain.coarser(body.shrinks_by)
            size_nm = size_nm and coarser_nm(size_nm, body.shrinks_by)
            scale = scale * body.shrinks_by
        self.item = self.item._replace(
            domain=domain, voxel_size_nm=size_nm, scale=turned(scale, body)
        )

    def voxels_of(self, outputs: Sequence[str]) -> dict[str, Voxels | None]:
        """Return what each chunk holds, by its name."""
        if isinstance(self._voxels, dict):
            return dict(self._voxels)
        return dict.fromkeys(outputs, self._voxels)


class Listener:
    """Hears what a pipeline does; every method may be left out."""

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        """The line is checked; *tasks* is their number, if known."""

    def operator_started(self, label: str, task: Task) -> None:
        """An operator was handed a task."""

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:
        """An operator has done part of its work on a task."""

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        """An operator is done with a task."""

    def task_finished(self, task: Task) -> None:
        """A task has reached the end of the line, whatever its outcome."""

    def run_finished(self) -> None:
        """The last task is done, or the run stopped."""


class Pipeline:
    """A line of operators, checked as a whole and run over tasks.

    Args:
        operators: in the order in which they are applied.
        source: what makes the tasks; without one the line runs once, on an empty task.
        ahead: how many tasks each lane may work ahead; 0 runs everything in this thread; ``None``
            is 1 if the memory which that takes is available, else 0.
        dry_run: leave out the operators of the write lane.
        in_place: let the line write to the volume that it loads, see `check_places`.
        listener: hears of progress.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        source: Source | None = None,
        *,
        ahead: int | None = 0,
        dry_run: bool = False,
        in_place: bool = False,
        listener: Listener | None = None,
    ) -> None:
        """Label repeated operators and remember the settings."""
        self.operators = list(operators)
        self.source = source
        self.ahead = ahead or 0
        self._asked_ahead = ahead
        self.dry_run, self.in_place = dry_run, in_place
        self.listener = listener or Listener()
        self._free_since: dict[str, float] = {}
        self._halt: Callable[[], None] = _nothing
        self._voxels: dict[str, dict[str, Voxels | None]] = {}
        self._extents: dict[str, Zyx] = {}
        self.outlines: dict[str, Outline] = {}  # what each operator is told, from `check`
        self._scales: list[tuple[Zyx, Zyx]] = []  # of first input and output of each operator
        seen: dict[str, int] = {}
        for stage in self.operators:
            seen[stage.name] = seen.get(stage.name, 0) + 1
            if seen[stage.name] > 1:
                stage.name = f"{stage.name}#{seen[stage.name]}"

    # --- before the first task -----------------------------------------------------------------

    def check(self, problems: list[ChunkflowError] | None = None) -> None:
        """Check the whole line before any work: names, outputs, margins.

        Args:
            problems: takes all that is wrong; without it, the first is raised.

        Raises:
            OptionError: an operator reads an item that nothing before it makes, two write to one
                place, or one reads where another writes.
            ChunkflowError: whatever an operator finds wrong with the plan.
        """
        for check_line in (check_names, partial(check_places, in_place=self.in_place)):
            with noting(problems):
                check_line(self.operators)
        boxes: Boxes | None = getattr(self.source.body, "boxes", None) if self.source else None
        has_tasks = self.source is not None
        is_divided = self.source is not None and getattr(self.source.body, "is_divided", True)
        known: dict[str, _Item] = {}
        cut_outputs: list[AlignmentError] = []
        self._scales.clear()
        for stage in self.operators:
            body = stage.body
            item = next((known[name] for name in stage.inputs if name in known), _Item())
            outline = Outline(
                boxes=boxes and shrunk_boxes(boxes, item.scale),
                domain=item.domain,
                has_tasks=has_tasks,
                voxels=item.voxels,
                times=item.times,
                voxel_size_nm=item.voxel_size_nm,
                scale=item.scale,
                labelling=item.labelling,
                is_divided=is_divided,
                saved_as=self._saved_as(stage) if isinstance(body, NumbersObjects) else (),
            )
            self.outlines[stage.name] = outline
            with noting(problems):
                check_sizes(stage, {n: known.get(n, _Item()).voxel_size_nm for n in stage.inputs})
            with noting(problems), naming(stage):
                try:
                    self._prepare_operator(stage, outline)
                except AlignmentError as error:  # all outputs that tasks would cut are named
                    cut_outputs.append(error)
            made = _Made(item)
            with noting(problems), naming(stage):
                made.ask(body)
            made.resize(body)
            self._scales.append((item.scale, made.item.scale))
            voxels = made.voxels_of(stage.outputs)
            for name in {*stage.outputs, *voxels}:
                known[name] = made.item._replace(voxels=voxels.get(name))
            self._voxels[stage.name] = voxels
            domain = made.item.domain
            if largest := largest_size(boxes) if has_tasks else domain and domain.size:
                self._extents[stage.name] = largest
            boxes = boxes and moved_boxes(boxes, body, item.scale)
            has_tasks = has_tasks or (isinstance(body, SetsBox) and body.set_bbox)
        if cut_outputs and problems is not None:
            problems += cut_outputs
        elif cut_outputs:
            message = "; and ".join(map(str, cut_outputs))
            raise cut_outputs[0] if len(cut_outputs) == 1 else AlignmentError(message)
        for index, stage in enumerate(self.operators):
            if isinstance(stage.body, HasMargin):
                stage.body.negotiate(partial(self.required_input, index))

    def _prepare_operator(self, stage: Operator, outline: Outline) -> None:
        is_left_out = self.dry_run and stage.lane == "write"
        if isinstance(stage.body, HasPrepare) and not is_left_out:
            stage.body.prepare(outline)

    def _saved_as(self, stage: Operator) -> tuple[str, ...]:
        """Return the types of the volumes to which the labels of *stage* are saved, if known."""
        names, types = set(stage.outputs), []
        for later in self.operators[self.operators.index(stage) + 1 :]:
            if not names.isdisjoint(later.inputs):
                if isinstance(later.body, HasStoredType):
                    types.append(later.body.stored_type())
                if keeps_labels(later.body):
                    names.update(later.outputs)
                    continue
            names.difference_update(later.outputs)
        return tuple(filter(None, types))

    def required_input(self, index: int, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return what operator number *index* must make so that the line can return *box*.

        Asked from the last operator back: a result that nothing later changes is needed on the
        task's box; before each operator its inputs are needed on its `required_input`.

        Args:
            index: position of the operator among all.
            box: the task's box, in voxels of the operator's first input.
            domain: bounds of the volume that is read, in voxels of what the operator makes.
        """
        need: dict[str, BoundingBox] = {}
        later = self.operators[index + 1 :]
        unit = Zyx(1, 1, 1)
        scales = self._scales[index + 1 :] or [(unit,) * 2] * len(later)
        taken, made = self._scales[index] if self._scales else (unit, unit)
        box = BoundingBox(box.start * taken, box.stop * taken)
        boxes, frames = [box], [(domain, made)]
        for stage, (fine, _) in zip(later, scales, strict=True):
            boxes += moved_boxes(boxes[-1:], stage.body, fine)
            frames.append((turned(frames[-1][0], stage.body), turned(frames[-1][1], stage.body)))
        for stage, own, (bounds, voxel), (fine, scale) in zip(
            reversed(later), reversed(boxes), reversed(frames[:-1]), reversed(scales), strict=False
        ):
            wanted = own.coarser(scale)
            for name in stage.outputs:
                wanted = wanted.hull(need.pop(name, wanted))
            if isinstance(stage.body, ShrinksVoxels):
                by = stage.body.shrinks_by
                wanted = BoundingBox(wanted.start * by, wanted.stop * by)
            wanted = turned_back(wanted, stage.body)
            if isinstance(stage.body, HasHalo):
                whole = bounds.coarser((fine // voxel).high(unit))
                wanted = stage.body.required_input(wanted, whole)
            for name in stage.inputs:
                need[name] = need.get(name, wanted).hull(wanted)
        result = box.coarser(made)
        for name in self.operators[index].outputs:
            result = result.hull(need.get(name, result))
        return result.intersection(domain) if not result.intersection(domain).is_empty else result

    # --- what a run will take --------------------------------------------------------------------

    def rehearse(self) -> LineForecast:
        """Enter every operator, as a run does, and return what the line will take of memory.

        `check` must have been called. Nothing is refused: another machine may have more.
        """
        with ExitStack() as stack:
            for stage in self.operators:
                stack.enter_context(_entered(stage))
            return self.foretold()

    def foretold(self) -> LineForecast:
        """Return what the line will take of memory; of operators not entered, what they know."""
        ahead = 1 if self._asked_ahead is None else self._asked_ahead
        return forecast(lanes_of(self.operators, ahead), self._voxels, self._extents)

    def output_bytes(self, tasks: int) -> int:
        """Return how many bytes the voxels take that *tasks* tasks store, as far as it is known.

        `check` must have been called. Before compression; boxes at the end of the volume count in
        full.
        """
        total = 0
        made: dict[str, Voxels | None] = {}
        size = largest_size(getattr(self.source.body, "boxes", None)) if self.source else None
        for stage in self.operators:
            held = made.get(stage.inputs[0]) if stage.inputs else None
            if stage.lane == "write" and held is not None and size is not None:
                total += tasks * size.product() * voxel_bytes(held)
            made |= self._voxels.get(stage.name, {})
        return total

    # --- the run -------------------------------------------------------------------------------

    def run(self) -> Generator[Task]:
        """Yield every task at the end of the line, failed and skipped ones included.

        The consumer decides what a failure means. `check` must have been called.
        """
        with ExitStack() as stack:
            stages = [s for s in self.operators if not (self.dry_run and s.lane == "write")]
            if self.source:
                stack.enter_context(_entered(self.source))  # released at the very end
            for stage in stages:
                stack.enter_context(_entered(stage))
            total: int | None = 1
            if self.source:
                sized: Any = self.source.body
                total = len(sized) if hasattr(sized, "__len__") else None
            self.ahead = choose_ahead(stages, self._asked_ahead, self._voxels, self._extents, total)
            self.listener.run_started(stages, total)
            stack.callback(self.listener.run_finished)
            stream: Iterable[Task] = _Tasks(self.source) if self.source else [Task()]
            if self.source and isinstance(self.source.body, HasStop):
                self._halt = self.source.body.stop  # or closing would wait for another task
            stream = self._line(stream, stages)
            if close := getattr(stream, "close", None):
                stack.callback(close)
            stack.callback(self._halt)
            for task in stream:
                self.listener.task_finished(task)
                yield task
                del task

    def _line(self, stream: Iterable[Task], stages: Sequence[Operator]) -> Iterable[Task]:
        """Join the lanes."""
        for number, lane in enumerate(lanes_of(stages, self.ahead)):
            name = f"{lane.name}-{number}"
            if lane.at_once:
                work = partial(self._through, lane.stages)
                stream = mapped(stream, work, lane.depth, name, self._halt)
            else:
                stream = prefetch(self._lane(stream, lane), lane.depth, name, self._halt)
        return stream

    def _lane(self, stream: Iterable[Task], lane: Lane) -> Iterator[Task]:
        """Apply the operators of one lane to every task; never raises for a task's sake."""
        stages = lane.stages
        if lane.begins:
            begin, stages = partial(self._begin, stages[0]), stages[1:]
            stream = overlapped(stream, begin, halt=self._halt)
        try:
            for task in stream:
                yield self._through(stages, task)
                del task  # free its chunks before the next task loads its own
        finally:
            if close := getattr(stream, "close", None):
                close()

    def _through(self, stages: Sequence[Operator], task: Task) -> Task:
        for stage in stages:
            if task.outcome is None:
                self._apply(stage, task)
        return task

    def _apply(self, stage: Operator, task: Task) -> None:
        self.listener.operator_started(stage.name, task)
        with self._failing(stage, task, perf_counter()):
            self._prepare(stage, task)
            result: object = stage.call(task)
            if result is not task:
                got = "None" if result is None else f"a {type(result).__name__}"
                msg = f"operator returned {got}, not its task; raise Skip to drop a task"
                raise ChunkflowError(msg)

    def _begin(self, stage: Operator, task: Task) -> Future[Task]:
        """Let *stage* begin on *task*, and return the future of the finished task."""
        done: Future[Task] = Future()
        if task.outcome is not None or stage.start is None or stage.finish is None:
            done.set_result(task)
            return done
        self.listener.operator_started(stage.name, task)
        begun, put = perf_counter(), stage.finish

        def finished(result: Future[Any]) -> None:
            # Time in which the stage was busy with the task before does not count.
            start = max(begun, self._free_since.get(stage.name, begun))
            try:
                with self._failing(stage, task, start):
                    put(task, result.result())
            except BaseException as error:  # noqa: BLE001  (raised where the task is waited for)
                done.set_exception(error)
            else:
                self._free_since[stage.name] = perf_counter()
                done.set_result(task)

        try:
            with marked_interrupts(), self._scaled(stage, task):
                self._prepare(stage, task)
                stage.start(task).add_done_callback(finished)
        except BaseException as error:  # noqa: BLE001  (`finished` makes it the task's outcome)
            failed: Future[Any] = Future()
            failed.set_exception(error)
            finished(failed)
        return done

    def _prepare(self, stage: Operator, task: Task) -> None:
        _check_lease(task)
        items = {name: task.items.get(name) for name in stage.inputs}
        check_sizes(stage, {n: getattr(item, "voxel_size_nm", None) for n, item in items.items()})
        if isinstance(stage.body, ReportsProgress):
            stage.body.on_progress = partial(self.listener.operator_progressed, stage.name, task)

    @contextmanager
    def _scaled(self, stage: Operator, task: Task) -> Iterator[None]:
        """Give the task the scale of what *stage* takes: `Task.bbox` is then in its voxels."""
        unit = Zyx(1, 1, 1)
        outline = self.outlines.get(stage.name)
        task.scale = unit if outline is None else outline.scale
        try:
            yield
        finally:
            task.scale = unit

    @contextmanager
    def _failing(self, stage: Operator, task: Task, start: float) -> Iterator[None]:
        """Turn whatever is raised inside into the outcome of the task, and take the time.

        That includes SystemExit, KeyboardInterrupt, CancelledError and the panics of extensions in
        Rust: only `Interrupted`, a real ctrl-C, ends the pipeline.
        """
        try:
            with marked_interrupts(), self._scaled(stage, task):
                yield
        except Skip as skip:
            task.outcome = skip
            task.items.clear()
            logger.info("%s: skipped by %s: %s", task, stage.name, text_of(skip))
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001  (the runner is the one place that catches all)
            box = None if task.region is None else str(task.region)
            task.outcome = OperatorError(stage.name, box, error)
            task.outcome.__cause__ = error
            task.items.clear()
        finally:
            seconds = perf_counter() - start
            task.seconds[stage.name] = task.seconds.get(stage.name, 0.0) + seconds
            self.listener.operator_finished(stage.name, task, seconds)


def _nothing() -> None:
    """Do nothing."""


@contextmanager
def _entered(stage: Operator | Source) -> Iterator[None]:
    """Enter the body of a command if it can be entered; what it raises names the command.

    It cannot suppress an exception: a pipeline that has failed must not look complete.
    """
    body = stage.body
    if not isinstance(body, AbstractContextManager):
        yield
        return
    with naming(stage):
        body.__enter__()
    try:
        yield
    except BaseException as error:
        with naming(stage):
            body.__exit__(type(error), error, error.__traceback__)
        raise
    with naming(stage):
        body.__exit__(None, None, None)


class _Tasks:
    """The tasks of a source; SystemExit and its kin become errors that name it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tasks: Iterator[Task] | None = None

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        try:
            with marked_interrupts():
                if self._tasks is None:
                    self._tasks = iter(self._source.body)
                return next(self._tasks)
        except (Exception, Interrupted):
            raise
        except BaseException as error:
            raise as_error(error, f"source {self._source.name}") from error

    def close(self) -> None:
        if close := getattr(self._tasks, "close", None):
            close()


def _check_lease(task: Task) -> None:
    """Stop a task that somebody else may have by now: what it would write is not ours to write."""
    if task.lease is not None and task.lease.lost:
        msg = f"the lease of {task} is lost and another worker may have it; it is stopped here"
        raise LeaseLostError(msg)
