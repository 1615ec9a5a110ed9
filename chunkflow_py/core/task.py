"""`Task`: a region of the volume, its chunks and its outcome; `Output`: where tasks write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from chunkflow_py.core.geometry import UNIT_SCALE, BoundingBox, Scale, Zyx
from chunkflow_py.errors import MissingChunkError, OperatorError

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Region
    from chunkflow_py.store.store_protocol import Stored


BOX = "BOX"  # stands for the task's box in the address of an `Output`
Kind = TypeVar("Kind")


class Skip(Exception):  # noqa: N818  (a normal way to end a task, not an error)
    """Raised by an operator to end its task early, with the reason; the task counts as finished."""


class Lease(Protocol):
    """The right to work on a task from a queue, until the task is acknowledged or released."""

    @property
    def lost(self) -> bool:
        """Whether the lease has expired, so that work on the task must stop."""

    def acknowledge(self) -> None:
        """Delete the message from the queue, because the task is finished."""

    def release(self) -> None:
        """Return the task to the queue, where another worker may receive it immediately."""


@dataclass(slots=True)
class Task:
    """A task on its way through a pipeline.

    Attributes:
        region: the box (and time index) of the task, or ``None`` if the task has no box.
        items: chunks and other results of operators, by name.
        seconds: seconds that each operator spent on the task, by operator label.
        outcome: a `Skip` or an `OperatorError` that says why the task ended early, or ``None``.
        lease: lease of the task's message; ``None`` if the task did not come from a queue.
        written: records of the objects that operators have stored for the task.
        missing_blocks: number of blocks that the task read although they are not stored; their
            voxels were set to the fill value.
        scale: size of a voxel of the current operator's input, in voxels of *region*, zyx; the
            pipeline sets it for each operator.
    """

    region: Region | None = None
    items: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    outcome: Skip | OperatorError | None = None
    lease: Lease | None = None
    written: list[Stored] = field(default_factory=list)
    missing_blocks: int = 0
    scale: Scale = UNIT_SCALE

    @property
    def bbox(self) -> BoundingBox | None:
        """The box of the task, in voxels of the current operator's input; ``None`` without a box.

        The attribute `region` stays in voxels of the pipeline's input, because the task is named
        after the region.
        """
        return None if self.region is None else self.scale.coarser(self.region.bbox)

    @property
    def own_region(self) -> Region | None:
        """The task's region (box and time index), in voxels of the current operator's input."""
        return self.region and self.region.with_box(self.scale.coarser(self.region.bbox))

    def move_faces(self, low: Zyx, high: Zyx) -> None:
        """Add *low* to the start and *high* to the stop of the task's box.

        Args:
            low: offset of the start, in voxels of the current operator's input, zyx.
            high: offset of the stop, in voxels of the current operator's input, zyx.

        Raises:
            GeometryError: the new box would contain no voxel, or an offset is not a whole number of
                voxels of the pipeline's input.
        """
        if self.region is not None:
            offsets = map(self.scale.whole_offset, (low, high))
            box = self.region.bbox.between(*offsets)
            self.region = self.region.with_box(box)

    @property
    def failed(self) -> bool:
        """Whether an operator failed on this task."""
        return isinstance(self.outcome, OperatorError)

    def __getitem__(self, name: str) -> Any:
        """Return the item (chunk or other result) called *name*.

        Raises:
            MissingChunkError: no earlier operator has made an item of this name.
        """
        try:
            return self.items[name]
        except KeyError:
            known = ", ".join(sorted(self.items)) or "none"
            msg = (
                f"no chunk named {name!r} (chunks so far: {known}); change --input-name, or add "
                "an operator that makes this chunk earlier in the pipeline"
            )
            raise MissingChunkError(msg) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.items[name] = value

    def chunk(self, name: str) -> Chunk:
        """Return the item called *name*, which must be a chunk.

        Raises:
            MissingChunkError: the item does not exist, or is not a chunk.
        """
        from chunkflow_py.core.chunk import Chunk

        return self.item(name, Chunk)

    def item(self, name: str, kind: type[Kind]) -> Kind:
        """Return the item (chunk or other result) called *name*, which must have type *kind*.

        Args:
            name: name of the item.
            kind: required type, such as `Points` or `Synapses`.

        Raises:
            MissingChunkError: the item does not exist, or has another type.
        """
        value = self[name]
        if isinstance(value, kind):
            return value
        if value is None:
            found = "None (the task has no result)"
            remedy = f"put skip-none -i {name} before this operator, or change --input-name"
        else:
            found, remedy = _with_article(type(value).__name__), "change --input-name"
        msg = f"item {name!r} is {found}, not {_with_article(kind.__name__)}; {remedy}"
        raise MissingChunkError(msg)

    def __str__(self) -> str:
        """Return the box, such as ``0-64_0-512_0-512``, or ``task`` if there is no box."""
        return "task" if self.region is None else str(self.region)


@dataclass(frozen=True)
class Output:
    """A volume, file or set of objects that an operator writes for every task.

    The spec of a run lists its outputs. From them, `chunkflow_py.run.coverage` derives which
    blocks, shards and files the ledger must name for a finished task.

    Attributes:
        kind: what a task writes. With ``volume``, a task saves a box at one resolution level, and
            writes each write unit (block or shard) that intersects the box. With ``file``, a task
            writes a file of its own, or all tasks write the same file. With ``objects``, a task
            writes any number of objects, such as meshes.
        url: for ``volume``, the address that `open_volume` accepts. For ``file``, the address of
            the file, with `BOX` in place of the task's box. For ``objects``, the common prefix of
            their addresses.
        mip: resolution level of the volume; 0 is the finest.
        format: format of the volume, if the address does not determine it.
        time: time index in the volume, if it differs from the time index of the task.
        shrink: voxels of the operator's chunk per voxel of the volume, along z, y and x.
    """

    kind: Literal["volume", "file", "objects"]
    url: str
    mip: int = 0
    format: str | None = None
    time: int | None = None
    shrink: tuple[int, int, int] = (1, 1, 1)


def _with_article(kind: str) -> str:
    if kind in ("Chunk", "Skeleton"):
        return f"a {kind.lower()}"
    return kind if kind in ("Annotations", "Points", "Synapses") else f"a {kind}"
