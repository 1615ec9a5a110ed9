"""What a command of a line is: a Source of tasks, or an Operator called for every task.

An operator is one file of `chunkflow_py.ops` that holds a function ``command`` under one of three
decorators. ``command`` receives the options once, checks them, and returns the *body*: what is
called for every task. Heavy set-up (loading a network) belongs in the body's ``__enter__``, which
the pipeline calls after every command of the line has accepted its options.

| decorator                        | body                                  |
|----------------------------------|---------------------------------------|
| ``@transform``                   | chunk -> chunk (bbox= if it wants it) |
| ``@operator("read")`` and others | task -> task                          |
| ``@source``                      | iterable of tasks, see `TaskSource`   |

A body may have any of the hooks of `chunkflow_py.hooks`; the pipeline looks for them by name.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.operator_base import with_hooks
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.hooks import Boxes, Outline, RunsCode, StartsAhead
from chunkflow_py.pipeline.params import (
    ItemName,
    ItemNames,
    input_option,
    output_option,
    spread_auto,
)
from chunkflow_py.pipeline.terminal import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from chunkflow_py.core.chunk import Chunk, Voxels


__all__ = [
    "Operator",
    "Outline",
    "Skip",
    "Source",
    "TaskSource",
    "makes",
    "operator",
    "source",
    "transform",
]

logger = logging.getLogger(__name__)

Lane = Literal["read", "compute", "write"]
_Body = TypeVar("_Body", bound="Callable[..., Any]")


@dataclass
class Operator:
    """One command of a line, set up and ready to be called for every task.

    Attributes:
        name: label for timings and messages.
        lane: which of the three lanes it runs in; neighbours of one lane share a thread.
        call: task -> task.
        body: what the command returned; may have hooks.
        inputs: names of the items it reads.
        outputs: names of the items it makes.
        start: task -> future, to begin on the next task while one is on its way (or ``None``).
        finish: puts what the future holds into the task.
        options: of the command, by their names, defaults included.
        files: that the command itself was read from: path as it was typed -> ``code``.
        code: what that command runs that is not part of this package, in words.
        argv: the command as it was typed, its name first.
    """

    name: str
    lane: Lane
    call: Callable[[Task], Task]
    body: Any
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    start: Callable[[Task], Future[Any]] | None = None
    finish: Callable[[Task, Any], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    @property
    def runs_code(self) -> tuple[str, ...]:
        """All that it runs which is not part of this package, in words."""
        return self.code + (self.body.code if isinstance(self.body, RunsCode) else ())


@dataclass
class Source:
    """The first command of a line: it makes the tasks.

    Attributes:
        name: label for messages.
        body: what the command returned.
        options: of the command, by their names, defaults included.
        work: what is done with each task before the rest of the line, if the body brings it:
            ``work``, task -> task.
        argv: the command as it was typed, its name first.
    """

    name: str
    body: Iterable[Task]
    options: dict[str, Any] = field(default_factory=dict)
    work: Operator | None = None
    argv: tuple[str, ...] = ()


@dataclass
class TaskSource:
    """Tasks for boxes that are known before the first one runs.

    Attributes:
        boxes: a grid or a list.
        regions: the regions of the tasks in order, when they are more than all of *boxes*.
        is_divided: whether each task has a part of a volume, as opposed to one box that a person
            has chosen.
    """

    boxes: Boxes
    regions: Callable[[], Iterable[Region]] | None = None
    is_divided: bool = True

    def __iter__(self) -> Iterator[Task]:
        """Yield one task a region."""
        regions = (Region(box) for box in self.boxes) if self.regions is None else self.regions()
        return (Task(region) for region in regions)

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes)


class StageCommand(Command):
    """A click command that returns a stage instead of doing work."""

    def __init__(self, *args: Any, make: Callable[..., Operator | Source], **kwargs: Any) -> None:
        """Add the options that every command has."""
        super().__init__(*args, **kwargs)
        self._make = make
        self.params.append(
            click.Option(
                ["--name", "label"], help="Label for timings and messages.", metavar="TEXT"
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out ``auto`` for margins, then parse as click does."""
        return super().parse_args(ctx, spread_auto(self.params, args))

    def invoke(self, ctx: click.Context) -> Operator | Source:
        """Call the command with its options and wrap what it returns."""
        label = ctx.params.pop("label") or ctx.info_name
        options = dict(ctx.params)
        body = super().invoke(ctx)
        if body is None:
            msg = f"command of {ctx.info_name} returned None; it must return what runs on a task"
            raise ChunkflowError(msg)
        named: dict[str, list[str]] = {"in": [], "out": []}
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, ItemName) and value:
                named[param.type.direction].append(value)
            elif isinstance(param.type, ItemNames) and value:
                named[param.type.direction].extend(value)
        stage = self._make(label, body, tuple(named["in"]), tuple(named["out"]), ctx.params)
        stage.options = options
        if isinstance(stage, Source) and stage.work is not None:
            stage.work.options = options
        return stage


def _decorate(
    function: Callable[..., Any],
    make: Callable[..., Operator | Source],
    extra: Iterable[Any] = (),
    cls: type[StageCommand] = StageCommand,
) -> StageCommand:
    for option in extra:
        function = option(function)
    params = list(reversed(getattr(function, "__click_params__", [])))
    module = inspect.getmodule(function)
    text = inspect.getdoc(module) if module else None
    return cls(
        name=function.__module__.rpartition(".")[2].replace("_", "-"),
        callback=function,
        params=params,
        # After \b click leaves lines as they are: an example can be pasted.
        help=text and text.replace("\nExample:", "\n\b\nExample:"),
        make=make,
    )


def operator(
    lane: Lane, *, cls: type[StageCommand] = StageCommand
) -> Callable[[Callable[..., Any]], StageCommand]:
    """Make a command whose body is task -> task, run in *lane*.

    Args:
        lane: ``read``, ``compute`` or ``write``.
        cls: of the command, for one that reads its part of the line in its own way.
    """

    def make(
        name: str,
        body: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        _: object,
    ) -> Operator:
        tell_of_cut = _cut_teller(name, body)

        def call(task: Task) -> Task:
            tell_of_cut(task.chunk(inputs[0]), task.bbox)
            result: Task = body(task)
            return result

        looks = hasattr(body, "cut_remedy") and inputs
        return Operator(name, lane, call if looks else body, body, inputs, outputs)

    return lambda function: _decorate(function, make, cls=cls)


def makes(rule: Callable[[Voxels], Voxels]) -> Callable[[_Body], _Body]:
    """Declare what voxels a function makes, given those of its first input."""
    return with_hooks(voxels_from=rule)


def transform(function: Callable[..., Any]) -> StageCommand:
    """Make a command whose body is chunk -> chunk; adds --input-name and --output-name.

    A body with a parameter ``bbox`` is given the task's box as well. It may return several chunks
    by their names instead of one.
    """

    def make(
        name: str,
        body: Callable[..., Any],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        params: dict[str, Any],
    ) -> Operator:
        try:
            wants_box = "bbox" in inspect.signature(body).parameters
        except ValueError:  # compiled functions, such as NumPy's, do not tell
            wants_box = False
        source, target = params["input_name"], params["output_name"]
        tell_of_cut = _cut_teller(name, body)
        named = list(outputs)
        named.remove(target)  # which is not made where the body names its chunks itself
        outputs = tuple(named) or outputs

        def call(task: Task) -> Task:
            chunk = task.chunk(source)
            tell_of_cut(chunk, task.bbox)
            finish(task, body(chunk, bbox=task.bbox) if wants_box else body(chunk))
            return task

        def start(task: Task) -> Future[Any]:
            future: Future[Any] = body.start(task.chunk(source), bbox=task.bbox)  # type: ignore[attr-defined]
            return future

        def finish(task: Task, result: Any) -> None:
            if result is None:
                msg = "operator returned None, not a chunk; raise Skip to drop a task"
                raise ChunkflowError(msg)
            for item, chunk in (result if isinstance(result, dict) else {target: result}).items():
                task[item] = chunk

        ahead = start if isinstance(body, StartsAhead) else None
        return Operator(name, "compute", call, body, inputs, outputs, ahead, finish)

    def without_names(*args: Any, **options: Any) -> Any:
        options.pop("input_name")
        options.pop("output_name")
        return function(*args, **options)

    without_names.__module__ = function.__module__
    without_names.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return _decorate(without_names, make, (output_option(), input_option()))


def _cut_teller(name: str, body: object) -> Callable[[Chunk, BoundingBox | None], None]:
    """Return what warns, once, of a chunk that is cut where the result depends on all of it."""
    function = getattr(body, "func", body)
    remedy = getattr(function, "cut_remedy", None)
    margin_helps = getattr(function, "margin_helps", False)
    untold = [remedy] if remedy else []

    def tell(chunk: Chunk, box: BoundingBox | None) -> None:
        if margin_helps and box is not None and not box.contains(chunk.bbox):
            return
        if untold and chunk.bbox != chunk.domain:
            logger.warning(
                "%s looks at all of chunk %s, which is a part of %s: the result depends on how the "
                "volume is cut into tasks; %s", name, chunk.bbox, chunk.domain, untold.pop(),
            )  # fmt: skip

    return tell


def source(function: Callable[..., Any]) -> StageCommand:
    """Make a command whose body is an iterable of tasks; it can only begin a line."""

    def make(name: str, body: Iterable[Task], *_: object) -> Source:
        work = getattr(body, "work", None)
        return Source(name, body, work=work and Operator(name, "write", work, work))

    return _decorate(function, make)
