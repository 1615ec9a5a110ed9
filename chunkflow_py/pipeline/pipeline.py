"""`Pipeline` checks its operators as a whole, then applies them to every task of a source.

```
source -> load, load | filter, inference | save
          read stage | compute stage     | write stage
```

- The stages run in different threads. Between two stages, up to ``--ahead`` tasks wait.
- Inference starts a task before the previous task is finished.
- Thread-safe loaders and savers process several tasks at once, with one thread per task.
- Before the first task, the pipeline computes which input each operator needs for its output.
  The computation begins with the last operator and ends with the loaders. Then the loaders know
  the margin to read.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from threading import local
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.geometry import UNIT_SCALE, BoundingBox, Scale, Zyx
from chunkflow_py.core.interrupts import Interrupted, marked_interrupts
from chunkflow_py.core.outline import (
    Outline,
    ScaledBoxes,
    coarser_nm,
    largest_scaled,
    scaled_boxes,
)
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import (
    AlignmentError,
    ChunkflowError,
    GeometryError,
    LeaseLostError,
    OperatorError,
    OptionError,
    as_error,
    text_of,
)
from chunkflow_py.pipeline.checks import check_names, check_places, check_sizes, naming, noting
from chunkflow_py.pipeline.effects import (
    keeps_labels,
    moved_boxes,
    scale_of,
    turned,
    turned_back,
    voxels_made,
)
from chunkflow_py.pipeline.forecast import (
    PipelineMemory,
    choose_ahead,
    estimate_memory,
    largest_size,
    voxel_bytes,
)
from chunkflow_py.pipeline.overlap import Stage, stages_of
from chunkflow_py.pipeline.stream import mapped, overlapped, prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.core.operator_base import OperatorBase
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.volume.labelling import Labelling

logger = logging.getLogger(__name__)

# The box of the task that an operator processes in this thread, in voxels of the pipeline's input.
# Its box in voxels of the operator is rounded, and cannot be converted back exactly.
_current = local()


class _Item(NamedTuple):
    """Properties of an item that are known before the first task."""

    domain: BoundingBox | None = None
    times: int | None = None
    voxels: Voxels | None = None
    scale: Scale = UNIT_SCALE  # size of its voxel in voxels of the pipeline's input
    voxel_size_nm: tuple[float, float, float] | None = None
    labelling: Labelling | None = None


class _Made:
    def __init__(self, item: _Item) -> None:
        self.item = item
        self._voxels: Voxels | dict[str, Voxels] | None = None

    def ask(self, hooks: OperatorBase) -> None:
        """Store the results of the hooks; an error of one hook does not discard earlier results."""
        read = self.item.voxels
        if hooks.declares("bounds"):
            self.item = self.item._replace(domain=hooks.bounds())
        if hooks.declares("times"):
            self.item = self.item._replace(times=hooks.times)
        if hooks.declares("known_voxel_size_nm"):
            self.item = self.item._replace(voxel_size_nm=hooks.known_voxel_size_nm())
        self._voxels = voxels_made(hooks, read)
        if hooks.declares("labelling"):
            self.item = self.item._replace(labelling=hooks.labelling)
        elif not keeps_labels(hooks) or hooks.shrinks_by is not None:
            self.item = self.item._replace(labelling=None)

    def resize(self, hooks: OperatorBase) -> None:
        """Apply the hooks that enlarge voxels or permute axes."""
        domain, size_nm, scale = self.item.domain, self.item.voxel_size_nm, self.item.scale
        if (factor := scale_of(hooks)) is not None:
            if not hooks.declares("bounds"):
                domain = domain and factor.coarser(domain)
            if not hooks.declares("known_voxel_size_nm"):
                size_nm = size_nm and coarser_nm(size_nm, factor)
            scale = scale * factor
        self.item = self.item._replace(
            domain=domain, voxel_size_nm=size_nm, scale=turned(scale, hooks)
        )

    def voxels_of(self, outputs: Sequence[str]) -> dict[str, Voxels | None]:
        """Return dtype, channels and kind of each chunk, by name."""
        if isinstance(self._voxels, dict):
            return dict(self._voxels)
        return dict.fromkeys(outputs, self._voxels)


class Listener:
    """Base class of objects that receive a pipeline's events; its own methods do nothing."""

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        """Handle the start of the pipeline; *tasks* is the number of tasks, ``None`` if unknown."""

    def operator_started(self, label: str, task: Task) -> None:
        """Handle the start of an operator on a task."""

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:
        """Handle progress: an operator has completed *done* of its *total* units of work."""

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        """Handle the end of an operator on a task; the operator has taken *seconds*."""

    def task_finished(self, task: Task) -> None:
        """Handle the end of a task, with any outcome."""

    def run_finished(self) -> None:
        """Handle the end of the last task, or a stop of the pipeline."""


class Pipeline:
    """A sequence of operators, checked as a whole and applied to each task.

    Args:
        operators: operators, in the order in which they are applied.
        source: source of the tasks (default: one empty task).
        ahead: number of tasks to prefetch per stage; 0 runs everything in the caller's thread;
            ``None`` chooses 1 if enough memory is available, else 0.
        dry_run: omit the operators of the write stage.
        in_place: allow a saver to replace the voxels that a loader reads without a margin.
        listener: receiver of the events.

    Attributes:
        make_part_store: function that returns a store for the results of patches that lie in
            several tasks. Through this store, a task reuses patches that another task has computed.
            If the function or its result is ``None``, each task computes all its patches.
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
        self.operators = [
            each for operator in operators for each in (*operator.before, operator, *operator.after)
        ]
        self.source = source
        self.ahead = ahead or 0
        self._asked_ahead = ahead
        self.dry_run, self.in_place = dry_run, in_place
        self.listener = listener or Listener()
        self.make_part_store: Callable[[], Any] | None = _local_parts
        self._idle_since: dict[str, float] = {}
        self._halt: Callable[[], None] = _nothing
        self._voxels: dict[str, dict[str, Voxels | None]] = {}
        self._extents: dict[str, Zyx] = {}
        self.outlines: dict[str, Outline] = {}  # by operator; set by `check`
        self._boxes: list[Boxes | None] = []  # in voxels of each operator
        self._scales: list[tuple[Scale, Scale]] = []  # first input and output of each operator
        seen: dict[str, int] = {}
        for operator in self.operators:
            seen[operator.name] = seen.get(operator.name, 0) + 1
            if seen[operator.name] > 1:
                operator.name = f"{operator.name}#{seen[operator.name]}"

    # --- before the first task -----------------------------------------------------------------

    def check(self, problems: list[ChunkflowError] | None = None) -> None:
        """Check item names, addresses, margins and outputs before the first task.

        Args:
            problems: list to which every problem is appended. By default, the first problem is
                raised as an error.

        Raises:
            OptionError: no earlier operator makes an item that an operator reads, two operators
                write to the same address, or an operator writes to an address that another
                operator reads.
            ChunkflowError: an operator cannot process the tasks or its input.
        """
        for check in (check_names, partial(check_places, in_place=self.in_place)):
            with noting(problems):
                check(self.operators)
        boxes = self.source.hooks.boxes if self.source else None
        has_tasks = self.source is not None
        plan = self.source.hooks.plan if self.source else None
        is_divided = self.source is not None and self.source.hooks.is_divided
        known: dict[str, _Item] = {}
        cut_outputs: list[AlignmentError] = []
        self._scales.clear()
        self._boxes.clear()
        for operator in self.operators:
            hooks = operator.hooks
            item = next((known[name] for name in operator.inputs if name in known), _Item())
            outline = Outline(
                boxes=boxes and scaled_boxes(boxes, item.scale),
                domain=item.domain,
                has_tasks=has_tasks,
                has_times=None if plan is None else bool(plan.time_points),
                time_points=1 if plan is None else max(1, len(plan.time_points)),
                voxels=item.voxels,
                times=item.times,
                voxel_size_nm=item.voxel_size_nm,
                scale=item.scale,
                labelling=item.labelling,
                is_divided=is_divided,
                saved_as=self._saved_as(operator) if hooks.declares("labelling") else (),
            )
            self.outlines[operator.name] = outline
            self._boxes.append(outline.boxes)
            with noting(problems):
                check_sizes(
                    operator, {n: known.get(n, _Item()).voxel_size_nm for n in operator.inputs}
                )
            with noting(problems), naming(operator):
                try:
                    self._prepare_operator(operator, outline)
                except AlignmentError as error:  # raised below, with those of other outputs
                    cut_outputs.append(error)
            made = _Made(item)
            with noting(problems), naming(operator):
                made.ask(hooks)
            made.resize(hooks)
            self._scales.append((item.scale, made.item.scale))
            voxels = made.voxels_of(operator.outputs)
            for name in {*operator.outputs, *voxels}:
                known[name] = made.item._replace(voxels=voxels.get(name))
            self._voxels[operator.name] = voxels
            domain = made.item.domain
            if has_tasks and (largest := largest_size(boxes)):
                self._extents[operator.name] = largest_scaled(largest, made.item.scale)
            elif domain is not None and not has_tasks:
                self._extents[operator.name] = domain.size
            with noting(problems):
                boxes = boxes and _boxes_after(operator, boxes, item.scale)
            has_tasks = has_tasks or hooks.set_bbox
        if cut_outputs and problems is not None:
            problems += cut_outputs
        elif cut_outputs:
            message = "; and ".join(map(str, cut_outputs))
            raise cut_outputs[0] if len(cut_outputs) == 1 else AlignmentError(message)
        for index, operator in enumerate(self.operators):
            operator.hooks.negotiate(partial(self.required_input, index))

    def _prepare_operator(self, operator: Operator, outline: Outline) -> None:
        hooks = operator.hooks
        if outline.time_points > 1 and hooks.destinations and not hooks.separates_times:
            msg = (
                f"tasks cover {outline.time_points} time points, but {operator.name} writes files "
                "whose names have no time index, so each time point would replace the files of the "
                "previous time point; run the pipeline once for each time point, each time with "
                f"one index in --time-points and a different address for {operator.name}"
            )
            raise OptionError(msg)
        is_left_out = self.dry_run and operator.stage == "write"
        if not is_left_out:
            operator.hooks.prepare(outline)

    def _saved_as(self, operator: Operator) -> tuple[str, ...]:
        """Return the dtypes, if known, in which savers store the labels of *operator*."""
        names, types = set(operator.outputs), []
        for later in self.operators[self.operators.index(operator) + 1 :]:
            if not names.isdisjoint(later.inputs):
                types.append(later.hooks.stored_type())
                if keeps_labels(later.hooks):
                    names.update(later.outputs)
                    continue
            names.difference_update(later.outputs)
        return tuple(filter(None, types))

    def required_input(self, index: int, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box that the output of an operator must cover for the later operators.

        The computation begins with the last operator, whose output must cover the task's box, and
        goes backwards. From the output box of an operator, the operator's hook
        `OperatorBase.required_input` computes the input box that earlier operators must cover.

        Args:
            index: position of the operator in the pipeline, from 0.
            box: the task's box, in voxels of the operator's first input.
            domain: bounds of the input volume, in voxels of the operator's output.
        """
        need: dict[str, BoundingBox] = {}
        later = self.operators[index + 1 :]
        scales = self._scales[index + 1 :] or [(UNIT_SCALE,) * 2] * len(later)
        taken, made = self._scales[index] if self._scales else (UNIT_SCALE, UNIT_SCALE)
        region: BoundingBox | None = getattr(_current, "region", None)
        boxes = self._boxes[index] if self._boxes else None
        if region is None or taken.coarser(region) != box:
            region = boxes.unscaled(box) if isinstance(boxes, ScaledBoxes) else None
        box = taken.finer(box) if region is None else region
        boxes, domains = [box], []
        frame = domain, made
        known = dict.fromkeys(self.operators[index].outputs, domain)
        for operator, (fine, _) in zip(later, scales, strict=True):
            hooks = operator.hooks
            boxes += moved_boxes(boxes[-1:], hooks, fine)
            # An item from elsewhere is taken to cover the same volume.
            bounds = next((known[name] for name in operator.inputs if name in known), None)
            domains.append(bounds or (fine * frame[1].inverse).coarser(frame[0]))
            frame = turned(frame[0], hooks), turned(frame[1], hooks)
            if bounds is not None:
                by, own_bounds = scale_of(hooks), hooks.bounds()
                made_bounds = bounds if by is None else by.coarser(bounds)
                made_bounds = own_bounds or turned(made_bounds, hooks)
                known |= dict.fromkeys(operator.outputs, made_bounds)
        rows = zip(later, boxes[1:], domains, scales, strict=True)
        for operator, own, whole, (_, scale) in reversed(list(rows)):
            wanted = scale.coarser(own)
            for name in operator.outputs:
                wanted = wanted.hull(need.pop(name, wanted))
            wanted = turned_back(wanted, operator.hooks)
            wanted = operator.hooks.required_input(wanted, whole)
            if wanted.is_empty:  # the operator makes nothing in the task's box
                continue
            for name in operator.inputs:
                need[name] = need.get(name, wanted).hull(wanted)
        result = made.coarser(box)
        for name in self.operators[index].outputs:
            result = result.hull(need.get(name, result))
        return result.intersection(domain) if not result.intersection(domain).is_empty else result

    # --- estimates -------------------------------------------------------------------------------

    def entered_memory(self) -> PipelineMemory:
        """Call ``__enter__`` of every operator, as a run does, and estimate the peak memory.

        After ``__enter__``, the memory of a loaded network, for example, is known. `check` must
        have been called. No error is raised if this machine has too little memory, because another
        machine may execute the run.
        """
        with ExitStack() as stack:
            for operator in self.operators:
                stack.enter_context(_entered(operator))
            return self.estimated_memory()

    def estimated_memory(self, ahead: int | None = None) -> PipelineMemory:
        """Estimate the peak memory without loading anything.

        Memory that an operator knows only after its ``__enter__``, such as the memory of a network,
        counts as unknown if ``__enter__`` has not been called; see `entered_memory`.

        Args:
            ahead: number of tasks to prefetch per stage (default: the pipeline's own *ahead*).
        """
        if ahead is None:
            ahead = 1 if self._asked_ahead is None else self._asked_ahead
        return estimate_memory(stages_of(self.operators, ahead), self._voxels, self._extents)

    def output_bytes(self, tasks: int) -> int:
        """Estimate how many bytes a given number of tasks stores, without compression.

        `check` must have been called. Outputs of unknown size count as 0. Each task counts as much
        as the largest task, although tasks at the end of the volume may be smaller.
        """
        total = 0
        made: dict[str, Voxels | None] = {}
        size = largest_size(self.source.hooks.boxes) if self.source else None
        for operator in self.operators:
            held = made.get(operator.inputs[0]) if operator.inputs else None
            if operator.stage == "write" and held is not None and size is not None:
                total += tasks * size.product() * voxel_bytes(held)
            made |= self._voxels.get(operator.name, {})
        return total

    # --- the run -------------------------------------------------------------------------------

    def run(self) -> Generator[Task]:
        """Yield every task after its last operator, including failed and skipped tasks.

        The error of a failed task is in `Task.outcome`. `check` must have been called.
        """
        with ExitStack() as stack:
            operators = [s for s in self.operators if not (self.dry_run and s.stage == "write")]
            if self.source:
                stack.enter_context(_entered(self.source))  # released at the end
            for operator in operators:
                # The store of exchanged patches is closed after the network that writes to it.
                stack.enter_context(self._exchanging(operator))
                stack.enter_context(_entered(operator))
            total: int | None = 1
            if self.source:
                sized: Any = self.source.body
                total = len(sized) if hasattr(sized, "__len__") else None
            self.ahead = choose_ahead(
                operators, self._asked_ahead, self._voxels, self._extents, total
            )
            self.listener.run_started(operators, total)
            stack.callback(self.listener.run_finished)
            stream: Iterable[Task] = _Tasks(self.source) if self.source else [Task()]
            if self.source:
                self._halt = self.source.hooks.stop  # otherwise closing would wait for a task
            stream = self._overlapped(stream, operators)
            if close := getattr(stream, "close", None):
                stack.callback(close)
            stack.callback(self._halt)
            for task in stream:
                self.listener.task_finished(task)
                yield task
                del task

    @contextmanager
    def _exchanging(self, operator: Operator) -> Iterator[None]:
        # A network with two tasks or more receives a store for patches that lie in several tasks.
        boxes = self.source.hooks.boxes if self.source else None
        make = self.make_part_store
        if make is None or not operator.hooks.declares("part_store") or len(boxes or ()) < 2:
            yield
            return
        if (store := make()) is None:
            yield
            return
        with closing(store):
            operator.hooks.part_store = store
            try:
                yield
            finally:
                operator.hooks.part_store = None

    def _overlapped(self, stream: Iterable[Task], operators: Sequence[Operator]) -> Iterable[Task]:
        """Connect the stages by background threads."""
        for number, stage in enumerate(stages_of(operators, self.ahead)):
            name = f"{stage.name}-{number}"
            if stage.at_once:
                work = partial(self._through, stage.operators)
                stream = mapped(stream, work, stage.depth, name, self._halt)
            else:
                stream = prefetch(self._stage(stream, stage), stage.depth, name, self._halt)
        return stream

    def _stage(self, stream: Iterable[Task], stage: Stage) -> Iterator[Task]:
        """Apply the operators of one stage to every task; exceptions become outcomes of tasks."""
        operators = stage.operators
        if stage.begins:
            begin, operators = partial(self._begin, operators[0]), operators[1:]
            stream = overlapped(stream, begin, halt=self._halt)
        try:
            for task in stream:
                yield self._through(operators, task)
                del task  # frees its chunks before the next task loads others
        finally:
            if close := getattr(stream, "close", None):
                close()

    def _through(self, operators: Sequence[Operator], task: Task) -> Task:
        for operator in operators:
            if task.outcome is None:
                self._apply(operator, task)
        return task

    def _apply(self, operator: Operator, task: Task) -> None:
        self.listener.operator_started(operator.name, task)
        with self._failing(operator, task, perf_counter()):
            self._prepare(operator, task)
            result: object = operator.call(task)
            if result is not task:
                got = "None" if result is None else f"a {type(result).__name__}"
                msg = f"operator returned {got}, not its task; raise Skip to drop a task"
                raise ChunkflowError(msg)

    def _begin(self, operator: Operator, task: Task) -> Future[Task]:
        done: Future[Task] = Future()
        if task.outcome is not None or operator.start is None or operator.finish is None:
            done.set_result(task)
            return done
        self.listener.operator_started(operator.name, task)
        begun, store = perf_counter(), operator.finish

        def finished(result: Future[Any]) -> None:
            # exclude the time in which the operator was busy with the previous task
            start = max(begun, self._idle_since.get(operator.name, begun))
            try:
                with self._failing(operator, task, start):
                    store(task, result.result())
            except BaseException as error:  # noqa: BLE001  (raised where the task is waited for)
                done.set_exception(error)
            else:
                self._idle_since[operator.name] = perf_counter()
                done.set_result(task)

        try:
            with self._scaled(operator, task):
                self._prepare(operator, task)
                operator.start(task).add_done_callback(finished)
        except BaseException as error:  # noqa: BLE001  (`finished` makes it the task's outcome)
            failed: Future[Any] = Future()
            failed.set_exception(error)
            finished(failed)
        return done

    def _prepare(self, operator: Operator, task: Task) -> None:
        _check_lease(task)
        items = {name: task.items.get(name) for name in operator.inputs}
        check_sizes(
            operator, {n: getattr(item, "voxel_size_nm", None) for n, item in items.items()}
        )
        if operator.hooks.declares("task_time"):
            operator.hooks.task_time = None if task.region is None else task.region.time
        if operator.hooks.declares("on_progress"):
            operator.hooks.on_progress = partial(
                self.listener.operator_progressed, operator.name, task
            )

    def _failing(self, operator: Operator, task: Task, start: float) -> _Failing:
        return _Failing(self, operator, task, start)

    def _scaled(self, operator: Operator, task: Task) -> _Scaled:
        """Return a context manager; within it, `Task.bbox` is in voxels of the operator's input."""
        outline = self.outlines.get(operator.name)
        return _Scaled(task, UNIT_SCALE if outline is None else outline.scale)


class _Scaled(marked_interrupts):
    """Sets the scale of a task while one operator runs; raises `Interrupted` on ctrl-C."""

    __slots__ = ("_scale", "_task")

    def __init__(self, task: Task, scale: Scale) -> None:
        self._task, self._scale = task, scale

    def __enter__(self) -> None:
        super().__enter__()
        self._task.scale = self._scale
        region = self._task.region
        _current.region = None if region is None else region.bbox

    def __exit__(self, *details: object) -> None:
        _current.region = None
        self._task.scale = UNIT_SCALE
        super().__exit__(*details)


class _Failing:
    """Records the time that an operator takes for a task; makes an exception the task's outcome.

    Exceptions include SystemExit, KeyboardInterrupt, CancelledError and panics of Rust extensions.
    Only `Interrupted`, raised for ctrl-C, ends the pipeline.
    """

    __slots__ = ("_operator", "_pipeline", "_scaled", "_start", "_task")

    def __init__(self, pipeline: Pipeline, operator: Operator, task: Task, start: float) -> None:
        self._pipeline, self._operator, self._task = pipeline, operator, task
        self._start, self._scaled = start, pipeline._scaled(operator, task)

    def __enter__(self) -> None:
        self._scaled.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        task, name = self._task, self._operator.name
        self._scaled.__exit__(kind, error, trace)
        try:
            if isinstance(error, Skip):
                task.outcome = error
                task.items.clear()
                logger.info("%s: skipped by %s: %s", task, name, text_of(error))
            elif error is not None and not isinstance(error, Interrupted):
                box = None if task.region is None else str(task.region)
                task.outcome = OperatorError(name, box, error)
                task.outcome.__cause__ = error
                task.items.clear()
        finally:
            seconds = perf_counter() - self._start
            task.seconds[name] = task.seconds.get(name, 0.0) + seconds
            self._pipeline.listener.operator_finished(name, task, seconds)
        return error is not None and not isinstance(error, Interrupted)


def _boxes_after(operator: Operator, boxes: Boxes, scale: Scale) -> Boxes:
    try:
        return moved_boxes(boxes, operator.hooks, scale)
    except GeometryError as error:
        msg = f"{operator.name}: {error}"
        raise GeometryError(msg) from error


def _local_parts() -> Any:
    from chunkflow_py.inference.local_exchange_store import LocalParts

    return LocalParts()


def _nothing() -> None:
    """Do nothing."""


@contextmanager
def _entered(operator: Operator | Source) -> Iterator[None]:
    """Enter the body of a command, if the body is a context manager; errors name the command.

    The body cannot suppress exceptions, so that a failed pipeline never looks complete.
    """
    body = operator.body
    if not isinstance(body, AbstractContextManager):
        yield
        return
    with naming(operator):
        body.__enter__()
    try:
        yield
    except BaseException as error:
        with naming(operator):
            body.__exit__(type(error), error, error.__traceback__)
        raise
    with naming(operator):
        body.__exit__(None, None, None)


class _Tasks:
    """Iterator over the tasks of a source.

    Exceptions that would end the process, such as SystemExit, are replaced by an error that names
    the source.
    """

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
    """Raise an error if the task's lease is lost: another worker may be executing the task."""
    if task.lease is not None and task.lease.lost:
        msg = (
            f"the lease of task {task} was lost, so another worker may execute the task; this "
            "worker stops executing it"
        )
        raise LeaseLostError(msg)
