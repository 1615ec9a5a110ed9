"""`OperatorBase` and `SourceBase`: all hooks of operators and sources, with their defaults.

A hook is a method or attribute through which an operator informs the pipeline, such as
``required_input``. All hooks are optional. A subclass marks the hooks that it overrides, so that a
mistyped name raises an error when the class is defined:

```
class Smoother(OperatorBase):
    keeps_voxels = hook_value(True)                     # a constant
    origin: str = hook_value()                          # assigned in __init__

    @hook
    def required_input(self, box, domain): ...          # a method

    @property
    @hook
    def destination(self): ...                          # a property
```

A hook that is a field of a dataclass is declared with ``field(metadata=HOOK)``. A function that is
an operator declares its hooks with the decorator ``with_hooks(keeps_voxels=True)``.
"""

from __future__ import annotations

import difflib
from dataclasses import Field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from chunkflow_py.core.geometry import Scale

if TYPE_CHECKING:
    from builtins import property as default_value
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.outline import Boxes, Outline
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.inference.memory_estimate import MemoryEstimate
    from chunkflow_py.inference.placement import Placement
    from chunkflow_py.store.store_protocol import Leftover
    from chunkflow_py.tasks.task_plan import Plan
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.engine.block_volume import Traffic
    from chunkflow_py.volume.labelling import Labelling

HOOK = {"chunkflow_py.hook": True}  # metadata of a dataclass field
_Function = TypeVar("_Function", bound="Callable[..., Any]")


class _HookValue:
    """An attribute that overrides a hook; each object may assign a value of its own."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type) -> Any:
        if self.values:
            return self.values[0]
        msg = (
            f"{kind.__name__} declares the hook {self.name}, but has not assigned a value to it; "
            f"assign self.{self.name} in __init__"
        )
        raise AttributeError(msg)


def hook_value(*value: Any) -> Any:
    """Declare an attribute as a hook, with a constant value or a value that __init__ assigns."""
    return _HookValue(value)


def hook(function: _Function) -> _Function:
    """Mark a method, or the function below ``@property``, as a hook."""
    function._is_hook = True  # type: ignore[attr-defined]
    return function


def with_hooks(**values: Any) -> Callable[[_Function], _Function]:
    """Declare the hooks of a function that is an operator: ``@with_hooks(keeps_voxels=True)``.

    Raises:
        TypeError: one of the names is not the name of a hook.
    """
    _check("with_hooks", set(values), set(), OperatorBase.hook_names)

    def give(function: _Function) -> _Function:
        for name, value in values.items():
            setattr(function, name, value)
        return function

    return give


if not TYPE_CHECKING:

    class default_value:  # noqa: N801  (a decorator)
        """Like `property`, for the default of a hook; an object may assign another value."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, owner: object, kind: type) -> Any:
            return self if owner is None else self.function(owner)


class WritersByPlace(Protocol):
    """Lookup of the task that writes a voxel; see `chunkflow_py.run.task_boxes`."""

    def number(self, voxel: Zyx, time: int | None) -> int | None:
        """Return the number of the task that writes *voxel*; ``None`` if there is no such task.

        *voxel* is a position in voxels of the operator's input.
        """


def _is_marked(attribute: object) -> bool:
    if isinstance(attribute, Field):
        return "chunkflow_py.hook" in attribute.metadata
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, cached_property):
        attribute = attribute.func
    return isinstance(attribute, _HookValue) or getattr(attribute, "_is_hook", False) is True


def _check(owner: str, marked: set[str], names: set[str], known: frozenset[str]) -> None:
    for name in sorted(marked - known):
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        msg = f"{owner}.{name} is marked as a hook, but no hook has that name{hint}"
        raise TypeError(msg)
    for name in sorted((names & known) - marked):
        msg = (
            f"{owner}.{name} has the name of a hook but is not marked: put @hook above the "
            f"function (below @property), write {name} = hook_value(...), or, for the field of a "
            f"dataclass, field(metadata=HOOK); if it is not a hook, rename {name}"
        )
        raise TypeError(msg)


class HookBase:
    """Base class of `OperatorBase` and `SourceBase`; checks that overridden hooks are marked.

    Raises:
        TypeError: a subclass overrides a hook without marking it, or marks a name that is not a
            hook.
    """

    declared_hooks: ClassVar[frozenset[str]] = frozenset()
    hook_names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, adds_hooks: bool = False, **settings: Any) -> None:
        """Check the hooks that the class and its base classes override.

        Args:
            adds_hooks: whether the public names of this class are hooks, which subclasses may
                override.
            settings: class arguments of other base classes.
        """
        super().__init_subclass__(**settings)
        if adds_hooks:
            cls.hook_names = frozenset(name for name in vars(cls) if not name.startswith("_"))
            return
        declared: set[str] = set()
        for base in cls.__mro__:
            if base is object or "hook_names" in vars(base):
                continue
            if base is not cls and issubclass(base, HookBase):  # checked when it was defined
                declared |= base.declared_hooks
                continue
            marked = {name for name, attribute in vars(base).items() if _is_marked(attribute)}
            names = {*vars(base), *vars(base).get("__annotations__", ())}
            _check(cls.__name__, marked, names, cls.hook_names)
            declared |= marked
        cls.declared_hooks = frozenset(declared)

    def __setattr__(self, name: str, value: object) -> None:
        """Assign an attribute; raise a `TypeError` for a hook that the class does not declare."""
        if name in self.hook_names and name not in self.declared_hooks:
            kind = type(self).__name__
            msg = f"{kind} assigns the hook {name}; declare it in {kind} with {name} = hook_value()"
            raise TypeError(msg)
        object.__setattr__(self, name, value)

    def declares(self, name: str) -> bool:
        """Return whether the class or the object overrides the hook *name*."""
        return name in self.declared_hooks


class OperatorBase(HookBase, adds_hooks=True):
    """Base class of operators, with all hooks and their defaults.

    If an operator does not override a hook, the pipeline may assume a value. If the operator
    overrides the hook and returns ``None`` ("unknown"), the pipeline assumes nothing. `declares`
    returns whether an operator overrides a hook.
    """

    # --- before the first task, in the order of the pipeline --------------------------------------

    def prepare(self, outline: Outline) -> None:
        """Check, before the first task, that the operator can process the tasks and their input.

        Raises:
            ChunkflowError: the operator cannot process the tasks or the input in *outline*.
        """

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Receive a function that computes which box the later operators need for a task.

        Called after `prepare`, if the pipeline uses ``--expand-margin-size auto``.

        Args:
            required: function with two arguments, the box of a task and the domain. The function
                returns the box that the later operators read for this task.
        """

    def create_output(self) -> str | None:
        """Create the output volume unless it exists; return the address of a new volume.

        ``None`` is returned if no volume was created. Called after `prepare`, once, before workers
        start.

        Raises:
            OptionError: dtype, channels or kind of the voxels (such as ``image``) are not known
                before the first chunk; the message names the option to add.
        """
        return None

    # --- boxes ------------------------------------------------------------------------------------

    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input box needed for the output in *box*, in a volume with bounds *domain*.

        The output box is in voxels of the output. The input box and *domain* are in voxels of the
        first input. The two kinds of voxels differ in size if the operator declares `shrinks_by`.
        """
        del domain
        return box if self.shrinks_by is None else Scale.of(self.shrinks_by).finer(box)

    @default_value
    def face_offsets(self) -> tuple[Zyx, Zyx] | None:
        """Offsets that the operator adds to the start and the stop of the task's box.

        The offsets are in voxels of the operator's first input or, if it has no input, in voxels of
        the pipeline's input.
        """
        return None

    @default_value
    def order(self) -> tuple[int, ...] | None:
        """The input axes that become z, y and x of the output; ``None`` if no axes change."""
        return None

    @default_value
    def shrinks_by(self) -> Zyx | Scale | None:
        """Size of an output voxel in voxels of the first input, zyx.

        The regions of tasks stay in voxels of the pipeline's input, because tasks are named after
        their regions. Later operators get boxes in voxels of their own first input: in their
        `Outline`, as ``Task.bbox``, and in `required_input`.
        """
        return None

    @default_value
    def set_bbox(self) -> bool:
        """Whether the operator sets the task's box to the box of its chunk."""
        return False

    @default_value
    def is_local(self) -> bool:
        """Whether an output voxel depends only on the input within its `required_input`.

        A local operator computes the same value for a voxel in every chunk or task that contains
        the voxel. ``False`` if unknown. An operator that adds no chunk or value to the task counts
        as local even if it does not declare this hook; see
        `chunkflow_py.pipeline.operator.Operator.is_local`.
        """
        return False

    @default_value
    def cut_remedy(self) -> str | None:
        """Advice for the log, if the operator's first input chunk does not cover the whole volume.

        An operator declares this hook if its result depends on the whole volume; for example, an
        operator that computes a distance map.
        """
        return None

    @default_value
    def margin_helps(self) -> bool:
        """Whether to omit the advice of `cut_remedy` if chunks are larger than the task's box."""
        return False

    @default_value
    def cutout(self) -> Cutout | None:
        """For a loader: the part of the volume that its options select, with the margin."""
        return None

    @default_value
    def placement(self) -> Placement | None:
        """For a network: the positions of its patches."""
        return None

    # --- output -----------------------------------------------------------------------------------

    def bounds(self) -> BoundingBox | None:
        """For a loader: return the bounds of its volume; ``None`` if they depend on the task.

        Called after `prepare`. Operators that do not override this hook keep the bounds of their
        input.
        """
        return None

    @default_value
    def times(self) -> int | None:
        """For a loader: length of the time axis of its volume; ``None`` without a time axis."""
        return None

    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """For a loader: return the voxel size, nm, zyx; ``None`` if the size depends on the task.

        For operators that do not override this hook, the voxel size of the output is that of their
        input, multiplied by `shrinks_by`.
        """
        return None

    @default_value
    def any_voxel_size(self) -> bool:
        """Whether the inputs of the operator may have different voxel sizes."""
        return False

    def voxels(self) -> Voxels | dict[str, Voxels] | None:
        """Return dtype, channels and kind (such as ``image``) of the output.

        If the operator makes several chunks, return a dict of `Voxels` by chunk name. Return
        ``None`` if these three properties are not known before a task runs. If an operator does not
        override this hook, the pipeline uses `keeps_voxels` and `voxels_from`.
        """
        return None

    @default_value
    def keeps_voxels(self) -> bool:
        """Whether the output has the same dtype, channels and kind of voxels as the first input."""
        return False

    def voxels_from(self, read: Voxels) -> Voxels | None:
        """Return dtype, channels and kind of the output.

        Args:
            read: dtype, channels and kind of the first input.
        """
        del read
        return None

    @default_value
    def labelling(self) -> Labelling | None:
        """For an operator that labels objects: how ids are assigned, known after `prepare`.

        ``None`` if ids are not unique in the volume, or if no object is cut by a task boundary.
        """
        return None

    def stored_type(self) -> str | None:
        """For a saver: return the dtype of the stored voxels, if known before `prepare`."""
        return None

    @default_value
    def removes(self) -> tuple[str, ...]:
        """Names of the items that the operator removes from the task."""
        return ()

    # --- addresses --------------------------------------------------------------------------------

    @default_value
    def origin(self) -> str | None:
        """Address that the operator reads: a file, a folder, or ``ADDRESS at mip N``.

        No operator of the pipeline may write to this address; see
        `chunkflow_py.volume.array_identity`.
        """
        return None

    @default_value
    def origins(self) -> tuple[str, ...]:
        """All addresses that the operator reads: files, folders, or ``ADDRESS at mip N``."""
        return () if self.origin is None else (self.origin,)

    @default_value
    def destination(self) -> str | None:
        """Address that the operator writes to: a file, a folder, or ``ADDRESS at mip N``.

        ``None`` if there is no such address or more than one; see `destinations`.
        """
        return None

    @default_value
    def destinations(self) -> tuple[str, ...]:
        """All addresses that the operator writes to: files, folders, or ``ADDRESS at mip N``."""
        return () if self.destination is None else (self.destination,)

    @default_value
    def separates_times(self) -> bool:
        """Whether tasks of different time points write different objects.

        ``False`` for operators that write files whose names do not contain the time index.
        """
        return True

    def stores(self) -> tuple[Output, ...] | None:
        """Return the outputs that the record of each task must list; called after `prepare`.

        ``None`` means that the record must list everything at `destinations`.
        """
        return None

    def leftovers(self, tasks: WritersByPlace) -> Iterator[Leftover] | None:
        """Yield objects of earlier runs at addresses where the tasks will write.

        Called after `create_output`. If this hook returns ``None``, the pipeline searches
        `destinations` for files that are named after boxes.

        Args:
            tasks: lookup of the task that writes a voxel.
        """
        del tasks
        return None

    @default_value
    def kept(self) -> str | None:
        """Address of the output whose existence shows that a task is finished.

        ``None`` if a marker file shows that a task is finished; an empty text if the operator does
        not skip finished tasks.
        """
        return ""

    @default_value
    def missing_output(self) -> str | None:
        """Address of the output volume, if the volume does not exist yet."""
        return None

    @default_value
    def tells_missing(self) -> bool:
        """For a loader: whether it can distinguish a missing block from a block of zeros."""
        return True

    # --- memory -----------------------------------------------------------------------------------

    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory estimate for a first input of extent *size*; ``None`` if unknown.

        Called after the context managers of all operators have been entered. An operator that does
        not override this hook is assumed to make chunks as large as its first input.
        """
        del size
        return None

    def check_memory(self, line_bytes: int) -> None:
        """Check that the pipeline, which needs *line_bytes* bytes in total, fits in memory.

        Raises:
            OptionError: the pipeline does not fit; the message names options with which it fits.
        """

    @default_value
    def expected(self) -> MemoryEstimate | None:
        """For a loaded network: the estimate of the memory that it needs on host and device."""
        return None

    # --- running ----------------------------------------------------------------------------------

    @default_value
    def thread_safe(self) -> bool:
        """Whether several threads may call the operator at the same time."""
        return False

    def start(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Future[Any]:
        """For a transform: start computing on *chunk*; return a future of the result."""
        del chunk, bbox
        raise TypeError(type(self).__name__ + " cannot compute a chunk ahead of time")

    # Declared by an operator that reports its progress. The pipeline assigns a function, which the
    # operator calls with the number of parts done and of all parts.
    on_progress: Callable[[int, int], None] | None = None

    # For a network: where tasks exchange the patches that they share, assigned by the pipeline;
    # see `chunkflow_py.inference.patch_exchange.PartStore`.
    part_store: Any = None

    # Declared by an operator that distinguishes time points. The pipeline assigns the time index of
    # the task before each call.
    task_time: int | None = None

    @default_value
    def single_writer(self) -> bool:
        """Whether only one process at a time may write to the output; known after `prepare`."""
        return False

    @default_value
    def backend_is_open(self) -> bool:
        """For a network with ``--backend auto``: whether no backend has been chosen yet."""
        return False

    def choose_backend(self) -> str:
        """For ``--backend auto``: time the backends, select the fastest and return its name."""
        raise TypeError(type(self).__name__ + " has no backend to choose")

    # --- records of a run -------------------------------------------------------------------------

    @default_value
    def needed_files(self) -> dict[str, str]:
        """Files that workers need: a dict from address or path to ``code`` or ``data``.

        Volumes are not included.
        """
        return {}

    @default_value
    def fetched_files(self) -> dict[str, str]:
        """Downloaded `needed_files`: a dict from the address of a file to the path of its copy."""
        return {}

    @default_value
    def code(self) -> tuple[str, ...]:
        """Descriptions of the code outside this package that the operator runs."""
        return ()

    @default_value
    def profile(self) -> dict[str, str] | None:
        """Compute profile: the backend, device, threads and precision that determine output bytes.

        ``None`` until the profile is known.
        """
        return None

    @default_value
    def network_seconds(self) -> float:
        """For a network: total seconds of its forward passes so far; any thread may read this."""
        return 0.0

    @default_value
    def patch_counts(self) -> dict[str, int]:
        """For a network in a run: counts of patches and of exchanged bytes so far.

        The keys are those of `chunkflow_py.run.ledger.ledger_record.PATCH_COUNTS`.
        """
        return {}

    @default_value
    def traffic(self) -> Traffic | None:
        """Totals of the operator's reads so far, such as bytes; ``None`` if not counted."""
        return None


class SourceBase(HookBase, adds_hooks=True):
    """Base class of sources (iterables of tasks), with all hooks and their defaults."""

    @default_value
    def boxes(self) -> Boxes | None:
        """The boxes of all tasks, if they are known before the first task."""
        return None

    @default_value
    def is_divided(self) -> bool:
        """Whether the tasks divide a volume; ``False`` if the user gives the box of one task."""
        return True

    @default_value
    def plan(self) -> Plan | None:
        """The numbered tasks, if all are known before the first task."""
        return None

    @default_value
    def work(self) -> Callable[[Task], Task] | None:
        """Function to apply to each task before the first operator; ``None`` for no function."""
        return None

    def create_output(self) -> str | None:
        """Create output volumes before workers start; return the address of the first new volume.

        ``None`` if no volume was created.
        """
        return None

    def stop(self) -> None:
        """Stop making tasks; called from another thread, even while the source is blocked."""

    def settle(self, task: Task) -> None:
        """Receive each task at the end of the pipeline, whether it is done, skipped or failed.

        A source that leases its tasks, such as a queue, declares this hook. With such a
        source, a failed task does not end the pipeline.
        """


class _Wrapped(OperatorBase):
    """The hooks of a plain function: values from `with_hooks`, and defaults for the others."""

    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, declared_hooks=frozenset(values))


class _WrappedSource(SourceBase):
    """The hooks of an iterable of tasks that is not a `SourceBase`: all have their defaults."""


def hooks_of(operator: object) -> OperatorBase:
    """Return *operator* if it is an `OperatorBase`, else a wrapper that has all hooks.

    Raises:
        TypeError: an attribute has the name of a hook, but the object is not an `OperatorBase`.
    """
    if isinstance(operator, OperatorBase):
        return operator
    if isinstance(operator, partial):
        return hooks_of(operator.func)
    if hasattr(operator, "__name__") and not isinstance(operator, type):  # a function
        values = getattr(operator, "__dict__", {})
        return _Wrapped({k: values[k] for k in OperatorBase.hook_names & values.keys()})
    _refuse_plain(operator, OperatorBase)
    return _Wrapped({})


def source_hooks_of(source: object) -> SourceBase:
    """Return *source* if it is a `SourceBase`, else an object with the defaults of all hooks.

    Raises:
        TypeError: an attribute has the name of a hook, but the object is not a `SourceBase`.
    """
    if isinstance(source, SourceBase):
        return source
    _refuse_plain(source, SourceBase)
    return _WrappedSource()


def _refuse_plain(operator: object, base: type[HookBase]) -> None:
    names = {*dir(type(operator)), *getattr(operator, "__dict__", ())} & base.hook_names
    if names:
        kind, name = type(operator).__name__, min(names)
        msg = (
            f"{kind}.{name} has the name of a hook, but {kind} does not inherit from "
            f"{base.__name__}; inherit from {base.__name__} and put @hook above each hook, or "
            f"rename {name}"
        )
        raise TypeError(msg)
