"""A task: one region of the volume, its items, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import MissingChunkError, OperatorError

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Region
    from chunkflow_py.store.store_protocol import Stored


BOX = "BOX"  # stands for the box of a task in the address of its file
Kind = TypeVar("Kind")


class Skip(Exception):  # noqa: N818  (a normal way to end a task, not an error)
    """Raised by an operator to end its task early: skipped is done, with a reason."""


class Lease(Protocol):
    """The right to work on a message of a queue, kept until it is acknowledged or released."""

    @property
    def lost(self) -> bool:
        """Whether the lease has expired, so that work on the task must stop."""

    def acknowledge(self) -> None:
        """Tell the queue that the task is finished."""

    def release(self) -> None:
        """Give the task back so that another worker may take it at once."""


@dataclass(slots=True)
class Task:
    """What flows through a pipeline.

    Attributes:
        region: the box (and time index) this task is about, or ``None`` if it has none.
        items: named chunks and other results of operators; nothing else lives here.
        seconds: time spent, by operator label.
        outcome: why the task ended early (a `Skip` or an `OperatorError`), else ``None``.
        lease: set when the task came from a queue.
        written: what operators have stored for good, for the record of the task.
        missing_blocks: of volumes, that are not stored and were read as the fill value.
        scale: voxels of *region* that make one voxel of what the current operator takes, zyx; set
            by the pipeline around each operator.
    """

    region: Region | None = None
    items: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    outcome: Skip | OperatorError | None = None
    lease: Lease | None = None
    written: list[Stored] = field(default_factory=list)
    missing_blocks: int = 0
    scale: Zyx = Zyx(1, 1, 1)

    @property
    def bbox(self) -> BoundingBox | None:
        """The box of the task, if any, in voxels of the current operator's input.

        The region keeps the voxels of the pipeline's input: it names the task, whatever the scale.
        """
        return None if self.region is None else self.region.bbox.coarser(self.scale)

    @property
    def own_region(self) -> Region | None:
        """The region with `bbox` as its box, in voxels of the current operator's input."""
        return self.region and self.region.with_box(self.region.bbox.coarser(self.scale))

    def move_faces(self, low: Zyx, high: Zyx) -> None:
        """Add *low* to the start and *high* to the stop of the box, in voxels of `bbox`."""
        if self.region is not None:
            start, stop = self.region.bbox.start, self.region.bbox.stop
            box = BoundingBox(start + low * self.scale, stop + high * self.scale)
            self.region = self.region.with_box(box)

    @property
    def failed(self) -> bool:
        """Whether an operator failed on this task."""
        return isinstance(self.outcome, OperatorError)

    def __getitem__(self, name: str) -> Any:
        """Return the item called *name*.

        Raises:
            MissingChunkError: no earlier operator made it.
        """
        try:
            return self.items[name]
        except KeyError:
            known = ", ".join(sorted(self.items)) or "none"
            msg = (
                f"no chunk named {name!r} (chunks so far: {known}); add an operator that makes it "
                "earlier in the pipeline or change --input-name"
            )
            raise MissingChunkError(msg) from None

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep *value* under *name*."""
        self.items[name] = value

    def chunk(self, name: str) -> Chunk:
        """Return the item called *name*, which must be a chunk.

        Raises:
            MissingChunkError: no earlier operator made it, or it is not a chunk.
        """
        from chunkflow_py.core.chunk import Chunk

        return self.item(name, Chunk)

    def item(self, name: str, kind: type[Kind]) -> Kind:
        """Return the item called *name*, which must be of one type.

        Args:
            name: of the item.
            kind: such as `Points` or `Synapses`.

        Raises:
            MissingChunkError: no earlier operator made it, or it is something else.
        """
        value = self[name]
        if isinstance(value, kind):
            return value
        if value is None:
            found = "None, a task without a result"
            remedy = f"put skip-none -i {name} before, or change --input-name"
        else:
            found, remedy = _with_article(type(value).__name__), "change --input-name"
        msg = f"item {name!r} is {found}, not {_with_article(kind.__name__)}; {remedy}"
        raise MissingChunkError(msg)

    def __str__(self) -> str:
        """Return the box string, or ``task`` for a task without a box."""
        return "task" if self.region is None else str(self.region)


@dataclass(frozen=True)
class Output:
    """One place to which an operator writes for every task.

    Attributes:
        kind: ``volume``: the write units of one level of a volume that the saved box touches;
            ``file``: one file a task, or one for all; ``objects``: any number of objects, such as
            meshes.
        url: address of the volume as `open_volume` takes it; of the file, with `BOX` for the box of
            the task; or how the addresses of the objects begin.
        mip: level of the volume.
        format: of the volume, where the address does not say it.
        time: time index of the volume that is written, where it is not the task's.
        shrink: voxels of the operator's chunk that make one of the volume, zyx.
    """

    kind: Literal["volume", "file", "objects"]
    url: str
    mip: int = 0
    format: str | None = None
    time: int | None = None
    shrink: tuple[int, int, int] = (1, 1, 1)


def _with_article(kind: str) -> str:
    """Return the name of a type as it stands in a sentence."""
    if kind in ("Chunk", "Skeleton"):
        return f"a {kind.lower()}"
    return kind if kind in ("Points", "Synapses") else f"a {kind}"
