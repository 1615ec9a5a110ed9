"""`Source` and `Operator`, the commands of a pipeline, and the decorators that make them.

Each operator is a file of `chunkflow_py.ops` with a function ``command``, which has one of the
three decorators in the table. ``command`` receives the options once, checks them, and returns an
object that is called for every task. Expensive set-up, such as loading a network, belongs in the
``__enter__`` of that object. The pipeline calls ``__enter__`` after all commands have accepted
their options.

| decorator                        | ``command`` returns                                       |
|----------------------------------|-----------------------------------------------------------|
| ``@transform``                   | a function that takes a chunk (and, if its signature has  |
|                                  | ``bbox``, the task's box) and returns a chunk             |
| ``@operator(stage)``             | a function that takes and returns a task                  |
| ``@source``                      | an iterable of tasks; see `TaskSource`                    |

The object that ``command`` returns can have hooks (see `chunkflow_py.hooks`), which inform the
pipeline about boxes, outputs and memory.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.operator_base import (
    HOOK,
    OperatorBase,
    SourceBase,
    hooks_of,
    source_hooks_of,
    with_hooks,
)
from chunkflow_py.core.outline import Boxes, Outline
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import ChunkflowError
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

StageName = Literal["read", "compute", "write"]
_Body = TypeVar("_Body", bound="Callable[..., Any]")


@dataclass
class Operator:
    """One command of a pipeline, ready to be called for every task.

    Attributes:
        name: label for timings and messages.
        stage: stage that runs the operator: ``read``, ``compute`` or ``write``.
        call: function that takes and returns a task.
        body: object that the command returned.
        inputs: names of the items of a task that the operator reads.
        outputs: names of the items of a task that the operator makes.
        start: function that starts a task before the previous task is finished, and returns a
            future; or ``None``.
        finish: function that stores the result of the future of *start* in the task.
        options: options of the command by name, including defaults.
        files: plugin files that a run stores for its workers. The keys are the paths as typed; each
            value is the word ``code``.
        code: descriptions of the code outside this package that the command runs.
        argv: name of the command, followed by its arguments as typed.
        before: operators of the same command that the pipeline runs before this operator. A network
            at another voxel size, for example, needs an operator that resamples its input.
        after: operators of the same command that the pipeline runs after this operator.
        hooks: hooks of the body; for a plain function, the defaults.

    Raises:
        TypeError: an attribute of the body has the name of a hook, but the body does not inherit
            from `OperatorBase`.
    """

    name: str
    stage: StageName
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
    before: tuple[Operator, ...] = ()
    after: tuple[Operator, ...] = ()
    hooks: OperatorBase = field(init=False)

    def __post_init__(self) -> None:
        self.hooks = hooks_of(self.body)

    @property
    def is_local(self) -> bool:
        """Whether output voxels depend on nearby input only; see `OperatorBase.is_local`."""
        return self.hooks.is_local or not self.outputs

    @property
    def runs_code(self) -> tuple[str, ...]:
        """Descriptions of all code outside this package that the operator runs."""
        return self.code + self.hooks.code


@dataclass(frozen=True)
class Surrounded:
    """The result of a command whose operator runs between two other operators.

    Attributes:
        body: object that is called for every task.
        around: function that takes the name of the command's operator. The function returns two
            operators: the first runs before the command's operator, the second after it.
    """

    body: Any
    around: Callable[[str], tuple[Operator, Operator]]


@dataclass
class Source:
    """The first command of a pipeline; this command generates the tasks.

    Attributes:
        name: label for messages.
        body: object that the command returned.
        options: options of the command by name, including defaults.
        work: operator that is applied to each task before the operators of the pipeline.
        argv: name of the command, followed by its arguments as typed.
        hooks: hooks of the body; for a plain iterable, the defaults.

    Raises:
        TypeError: an attribute of the body has the name of a hook, but the body does not inherit
            from `SourceBase`.
    """

    name: str
    body: Iterable[Task]
    options: dict[str, Any] = field(default_factory=dict)
    work: Operator | None = None
    argv: tuple[str, ...] = ()
    hooks: SourceBase = field(init=False)

    def __post_init__(self) -> None:
        self.hooks = source_hooks_of(self.body)


@dataclass
class TaskSource(SourceBase):
    """A source whose task boxes are known before the first task runs.

    Attributes:
        boxes: grid or list of the tasks' boxes, voxels, zyx.
        regions: function that returns the regions of the tasks, in order. A region is a box with an
            optional time index. By default, the regions are *boxes* without a time index.
        is_divided: true if the tasks divide a volume; false if the user chose a single box.
    """

    boxes: Boxes = field(metadata=HOOK)
    regions: Callable[[], Iterable[Region]] | None = None
    is_divided: bool = field(default=True, metadata=HOOK)

    def __iter__(self) -> Iterator[Task]:
        """Yield one task for each region."""
        regions = (Region(box) for box in self.boxes) if self.regions is None else self.regions()
        return (Task(region) for region in regions)

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes)


class OperatorCommand(Command):
    """A click command that returns an `Operator` or a `Source`."""

    def __init__(self, *args: Any, make: Callable[..., Operator | Source], **kwargs: Any) -> None:
        """Add the option --name, which all commands have."""
        super().__init__(*args, **kwargs)
        self._make = make
        self.params.append(
            click.Option(
                ["--name", "label"], help="Label for timings and messages.", metavar="TEXT"
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace a margin ``auto`` by one ``auto`` per axis, then parse as click does."""
        return super().parse_args(ctx, spread_auto(self.params, args))

    def invoke(self, ctx: click.Context) -> Operator | Source:
        """Call the command with its options; return its result as an `Operator` or a `Source`."""
        label = ctx.params.pop("label") or ctx.info_name
        options = dict(ctx.params)
        body = super().invoke(ctx)
        if body is None:
            msg = f"command of {ctx.info_name} returned None; it must return an operator"
            raise ChunkflowError(msg)
        around = None
        if isinstance(body, Surrounded):
            body, around = body.body, body.around
        named: dict[str, list[str]] = {"in": [], "out": []}
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, ItemName) and value:
                named[param.type.direction].append(value)
            elif isinstance(param.type, ItemNames) and value:
                named[param.type.direction].extend(value)
        names = tuple(named["in"]), tuple(named["out"])
        try:
            operator = self._make(label, body, *names, ctx.params)
        except TypeError as error:
            msg = f"the operator {ctx.info_name} declares its hooks wrongly: {error}"
            raise ChunkflowError(msg) from error
        operator.options = options
        if around is not None and isinstance(operator, Operator):
            before, after = around(operator.name)
            operator.before, operator.after = (before,), (after,)
        if isinstance(operator, Source) and operator.work is not None:
            operator.work.options = options
        return operator


def _decorate(
    function: Callable[..., Any],
    make: Callable[..., Operator | Source],
    extra: Iterable[Any] = (),
    cls: type[OperatorCommand] = OperatorCommand,
) -> OperatorCommand:
    for option in extra:
        function = option(function)
    params = list(reversed(getattr(function, "__click_params__", [])))
    module = inspect.getmodule(function)
    text = inspect.getdoc(module) if module else None
    return cls(
        name=function.__module__.rpartition(".")[2].replace("_", "-"),
        callback=function,
        params=params,
        # After \b, click does not wrap lines, so that an example can be pasted.
        help=text and text.replace("\nExample:", "\n\b\nExample:"),
        make=make,
    )


def operator(
    stage: StageName, *, cls: type[OperatorCommand] = OperatorCommand
) -> Callable[[Callable[..., Any]], OperatorCommand]:
    """Return a decorator that turns a function into a command.

    The decorated function receives the options of the command and returns another function, which
    takes and returns a task.

    Args:
        stage: stage that runs the operator: ``read``, ``compute`` or ``write``.
        cls: class of the command; a subclass may parse arguments differently.
    """

    def make(
        name: str,
        body: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        _: object,
    ) -> Operator:
        made = Operator(name, stage, body, body, inputs, outputs)
        if made.hooks.declares("cut_remedy") and inputs:
            warn_of_cut = _cut_warning(name, made.hooks)

            def call(task: Task) -> Task:
                warn_of_cut(task.chunk(inputs[0]), task.bbox)
                result: Task = body(task)
                return result

            made.call = call
        return made

    return lambda function: _decorate(function, make, cls=cls)


def makes(rule: Callable[[Voxels], Voxels], *, is_local: bool = False) -> Callable[[_Body], _Body]:
    """Return a decorator that declares dtype, channels and kind of an operator's output voxels.

    Args:
        rule: function that takes the `Voxels` (dtype, channels and kind) of the first input and
            returns the `Voxels` of the output.
        is_local: whether output voxels depend on nearby input only; see `OperatorBase.is_local`.
    """
    return with_hooks(voxels_from=rule, is_local=is_local)


def transform(function: Callable[..., Any]) -> OperatorCommand:
    """Turn *function* into a command with the options --input-name and --output-name.

    *function* receives the other options and returns a function that takes and returns a chunk. If
    the returned function has a parameter ``bbox``, it also receives the task's box. Instead of one
    chunk, the returned function may return a dict that maps item names to chunks.
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
        except ValueError:  # compiled functions, such as NumPy's, have no signature
            wants_box = False
        source, target = params["input_name"], params["output_name"]
        hooks = hooks_of(body)
        warn_of_cut = _cut_warning(name, hooks)
        named = list(outputs)
        named.remove(target)  # a function that returns several chunks by name may omit it
        outputs = tuple(named) or outputs

        def call(task: Task) -> Task:
            chunk = task.chunk(source)
            warn_of_cut(chunk, task.bbox)
            finish(task, body(chunk, bbox=task.bbox) if wants_box else body(chunk))
            return task

        def start(task: Task) -> Future[Any]:
            return hooks.start(task.chunk(source), bbox=task.bbox)

        def finish(task: Task, result: Any) -> None:
            if result is None:
                msg = "operator returned None, not a chunk; raise Skip to drop a task"
                raise ChunkflowError(msg)
            for item, chunk in (result if isinstance(result, dict) else {target: result}).items():
                task[item] = chunk

        ahead = start if hooks.declares("start") else None
        return Operator(name, "compute", call, body, inputs, outputs, ahead, finish)

    def without_names(*args: Any, **options: Any) -> Any:
        options.pop("input_name")
        options.pop("output_name")
        return function(*args, **options)

    without_names.__module__ = function.__module__
    without_names.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return _decorate(without_names, make, (output_option(), input_option()))


def _cut_warning(name: str, hooks: OperatorBase) -> Callable[[Chunk, BoundingBox | None], None]:
    # The returned function warns at most once, if the result depends on the division into tasks.
    remedies = [hooks.cut_remedy] if hooks.cut_remedy else []

    def warn(chunk: Chunk, box: BoundingBox | None) -> None:
        if hooks.margin_helps and box is not None and not box.contains(chunk.bbox):
            return
        if remedies and chunk.bbox != chunk.domain:
            logger.warning(
                "%s uses the whole chunk %s, but the volume is %s: the result depends on how the "
                "volume is cut into tasks; %s",
                *(name, chunk.bbox, chunk.domain, remedies.pop()),
            )

    return warn


def source(function: Callable[..., Any]) -> OperatorCommand:
    """Turn *function* into a command that must be the first command of a pipeline.

    *function* receives the options of the command and returns an iterable of tasks.
    """

    def make(name: str, body: Iterable[Task], *_: object) -> Source:
        made = Source(name, body)
        if (work := made.hooks.work) is not None:
            made.work = Operator(name, "write", work, work)
        return made

    return _decorate(function, make)
