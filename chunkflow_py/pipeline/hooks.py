"""What a body may tell the pipeline, all optional: the pipeline looks for these names.

`prepare`, `bounds`, `times`, `voxels`, `negotiate`  before the first task, in line order
`memory`, `check_memory`                             when all bodies have been entered
`required_input`, `face_offsets`, `order`, …         what it does to boxes and names
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Leftover
    from chunkflow_py.volume.engine.block_volume import Traffic
    from chunkflow_py.volume.labelling import Labelling

Boxes = BoxGrid | Sequence[BoundingBox]


@dataclass(frozen=True)
class Outline:
    """What is known about a line before its first task runs.

    Attributes:
        boxes: the boxes of all tasks as they reach the operator, or ``None`` if unknown (a line
            without a source, or one fed by a queue).
        domain: bounds of the volume that the operator's first input comes from, if known.
        has_tasks: whether tasks have boxes when they reach the operator, known or not.
        voxels: what the operator's first input holds, if known.
        times: length of the time axis of the volume that it comes from, if it has one.
        voxel_size_nm: of the operator's first input, zyx, if known.
        scale: voxels of the line's input, in which the boxes of tasks are, that make one of the
            operator's first input, zyx.
        labelling: how the objects of the operator's first input were numbered, if tasks have
            numbered them with ids that are unique in the volume.
        is_divided: whether each task has a part of a volume.
        saved_as: for an operator that `NumbersObjects`, types of the voxels of the volumes that
            take its labels, of those that are there or have their type from an option.
    """

    boxes: Boxes | None = None
    domain: BoundingBox | None = None
    has_tasks: bool = False
    voxels: Voxels | None = None
    times: int | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    scale: Zyx = Zyx(1, 1, 1)
    labelling: Labelling | None = None
    is_divided: bool = False
    saved_as: tuple[str, ...] = ()

    @property
    def region(self) -> BoundingBox | None:
        """The smallest box around all tasks."""
        return hull_of(self.boxes)

    @property
    def bounds(self) -> BoundingBox | None:
        """The smallest box around domain and tasks: what a new output volume has to hold."""
        if self.domain is None or self.region is None:
            return self.domain or self.region
        return self.domain.hull(self.region)


@runtime_checkable
class HasPrepare(Protocol):
    """A body that checks something about the whole line before the first task, in line order."""

    def prepare(self, outline: Outline) -> None:
        """Check, or raise one of our errors; must do no work of a task."""


@runtime_checkable
class HasBounds(Protocol):
    """A loader that knows the bounds of its volume before the first task."""

    def bounds(self) -> BoundingBox | None:
        """Return the bounds, or ``None`` where they depend on the task; follows `prepare`."""


@runtime_checkable
class HasTimes(Protocol):
    """A loader that knows how many time points its volume has; follows `prepare`."""

    @property
    def times(self) -> int | None:
        """The length of the time axis that tasks may name a point of, if there is one."""


@runtime_checkable
class HasVoxelSize(Protocol):
    """A loader that knows the voxel size of what it loads; follows `prepare`.

    What is made of one chunk has its voxel size, but for a body that `ShrinksVoxels`.
    """

    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return it, nanometres, zyx; ``None`` where it depends on the task."""


@runtime_checkable
class TakesAnySize(Protocol):
    """A body whose inputs may differ in voxel size, if *any_voxel_size*; others refuse that."""

    any_voxel_size: bool


@runtime_checkable
class MakesVoxels(Protocol):
    """A body that knows before the first task what voxels it makes."""

    def voxels(self) -> Voxels | dict[str, Voxels] | None:
        """Return their type, channels and meaning; by name, if there are several chunks.

        ``None`` where only a task will tell.
        """


@runtime_checkable
class KeepsVoxels(Protocol):
    """A body whose output holds what its first input holds, if *keeps_voxels*."""

    keeps_voxels: bool


@runtime_checkable
class NumbersObjects(Protocol):
    """A body that gives objects ids; follows `prepare`."""

    @property
    def labelling(self) -> Labelling | None:
        """How; ``None`` if ids are not unique in the volume, or objects are whole."""


@runtime_checkable
class HasStoredType(Protocol):
    """A saver that knows before `prepare` what type of voxels it stores."""

    def stored_type(self) -> str | None:
        """Return it; ``None`` where the volume is yet to be made, of what the line makes."""


@runtime_checkable
class MapsVoxels(Protocol):
    """A body, or the function of one, whose first input tells what it makes.

    Of a ``functools.partial`` the function is asked (see `chunkflow_py.pipeline.operator.makes`).
    """

    def voxels_from(self, read: Voxels) -> Voxels:
        """Return what is made of an input that holds *read*."""


@runtime_checkable
class HasMargin(Protocol):
    """A body that makes as much as the rest of the line needs (``--expand-margin-size auto``)."""

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take the function (task box, domain) -> box that the rest of the line needs."""


@runtime_checkable
class HasHalo(Protocol):
    """A body that needs more input than the box it returns."""

    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input box needed for output *box* of a volume with bounds *domain*."""


@runtime_checkable
class MovesFaces(Protocol):
    """A body that changes the box of the task."""

    face_offsets: tuple[Zyx, Zyx]  # in voxels of its first input; without one, of the line's input


class LooksAtChunk(Protocol):
    """A body in the compute lane whose result depends on all of its first input.

    A function may say so, too. What *cut_remedy* says against that is logged, once, when the chunk
    is a part of a volume. With *margin_helps* the result is meant to be joined across tasks, and
    nothing is logged where the chunk reaches beyond the box of its task.
    """

    cut_remedy: str | None
    margin_helps: bool  # may be left out


@runtime_checkable
class TurnsAxes(Protocol):
    """A body that changes the order of axes, those of the task's box included."""

    order: tuple[int, ...]  # the old axes that become z, y and x


@runtime_checkable
class ShrinksVoxels(Protocol):
    """A body whose output has larger voxels: one of it is *shrinks_by* of its first input's.

    The regions of tasks stay in voxels of the line's input, which name them. What comes after such
    a body gets boxes in voxels of its own first input: in its `Outline` (`shrunk_boxes`), as
    ``Task.bbox``, and as what it asks the rest of the line for (`HasMargin`).
    """

    shrinks_by: Zyx


@runtime_checkable
class SetsBox(Protocol):
    """A body that gives the task the box of its chunk, if *set_bbox*."""

    set_bbox: bool


@runtime_checkable
class RemovesItems(Protocol):
    """A body after which items are no more."""

    removes: tuple[str, ...]


@runtime_checkable
class ReadsFrom(Protocol):
    """A body that reads from a place in which nothing of the line may write."""

    @property
    def origin(self) -> str:
        """The address of a file or folder, or ``ADDRESS at mip N``: see `volume.array_identity`."""


@runtime_checkable
class ReadsFromSeveral(Protocol):
    """A body that reads from several such places."""

    @property
    def origins(self) -> tuple[str, ...]:
        """The places."""


@runtime_checkable
class WritesTo(Protocol):
    """A body that writes to one place, in which nothing else of the line may write."""

    @property
    def destination(self) -> str:
        """The place, as `ReadsFrom.origin` is written."""


@runtime_checkable
class WritesToSeveral(Protocol):
    """A body that writes to several such places."""

    @property
    def destinations(self) -> tuple[str, ...]:
        """The places."""


def places_read(body: object) -> tuple[str, ...]:
    """Return the places that a body reads from."""
    if isinstance(body, ReadsFromSeveral):
        return body.origins
    origin = body.origin if isinstance(body, ReadsFrom) else None
    return () if origin is None else (origin,)


def places_written(body: object) -> tuple[str, ...]:
    """Return the places that a body writes to."""
    if isinstance(body, WritesToSeveral):
        return body.destinations
    return (body.destination,) if isinstance(body, WritesTo) else ()


@runtime_checkable
class StoresOutputs(Protocol):
    """A body that stores objects which the record of a task names; follows `prepare`.

    Of a body that `WritesTo` places and does not say so, all that lies there is its output.
    """

    def stores(self) -> tuple[Output, ...]:
        """Return where, so that a run can tell whether a record names all that it should."""


@runtime_checkable
class CreatesOutput(Protocol):
    """A body that writes to a volume which has to be there before a fleet starts."""

    def create_output(self) -> str | None:
        """Create it, unless it is there; return its address if this call has made it.

        Follows `prepare`.

        Raises:
            OptionError: what it would hold is not known before the first chunk; says what to add.
        """


class WritersByPlace(Protocol):
    """Which task writes where, in a plan; see `chunkflow_py.run.task_boxes.TaskBoxes`."""

    def number(self, voxel: Zyx, time: int | None) -> int | None:
        """Return the number of the task that writes a voxel of the body's input, if any does."""


@runtime_checkable
class HasLeftovers(Protocol):
    """A body that can list what lies already where tasks will write; follows `create_output`.

    Of other bodies the files are looked for that are named after the boxes of tasks.
    """

    def leftovers(self, tasks: WritersByPlace) -> Iterator[Leftover]:
        """Yield what lies inside of the boxes of *tasks*."""


@runtime_checkable
class KeepsStored(Protocol):
    """A body that takes what is stored for done, so that it is meant to stay."""

    @property
    def kept(self) -> str | None:
        """The place of it; ``None`` if it stands for all that a task writes; empty for none."""


@runtime_checkable
class HasStop(Protocol):
    """A source whose next task may be waited for without a bound."""

    def stop(self) -> None:
        """Take no more tasks; called while one may be waited for in another thread."""


@runtime_checkable
class HasSettle(HasStop, Protocol):
    """A source whose tasks were lent to it, so that each is given back after the line.

    A task that fails does not end the line of such a source.
    """

    def settle(self, task: Task) -> None:
        """Take back a task that has left the line, whatever its outcome."""


@runtime_checkable
class HasSingleWriter(Protocol):
    """A body that may write to what one process at a time may write to; follows `prepare`."""

    @property
    def single_writer(self) -> bool:
        """Whether it does, so that several workers cannot share the work."""


@runtime_checkable
class HasFiles(Protocol):
    """A body that needs files beside the volumes: a network, its weights, a plugin."""

    @property
    def needed_files(self) -> dict[str, str]:
        """Path of each, as it was typed -> ``code`` (it is run), or ``data``."""


@runtime_checkable
class RunsCode(Protocol):
    """A body that runs code which is not part of this package."""

    @property
    def code(self) -> tuple[str, ...]:
        """What it runs, in words for a person; nothing if all is built in."""


@runtime_checkable
class HasProfile(Protocol):
    """A body whose bytes depend on what they are computed with."""

    @property
    def profile(self) -> dict[str, str] | None:
        """The numerical profile, when the body has been entered; ``None`` if not known yet."""


@runtime_checkable
class ReportsProgress(Protocol):
    """A body with news from inside one call: it calls on_progress(done, total)."""

    on_progress: Callable[[int, int], None] | None


@runtime_checkable
class RunsNetwork(Protocol):
    """A body that runs a network."""

    @property
    def network_seconds(self) -> float:
        """For how long the network has run so far; asked at any time, from any thread."""


@runtime_checkable
class HasMemory(Protocol):
    """A body that foretells how much memory it takes; asked when all bodies have been entered."""

    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return it, for a first input of extent *size* (if known), or ``None`` if unknown."""


@runtime_checkable
class ChecksMemory(Protocol):
    """A body that knows what would fit into memory where the line does not."""

    def check_memory(self, line_bytes: int) -> None:
        """Raise `OptionError` if the line does not fit, of which it is one operator."""


@runtime_checkable
class HasTraffic(Protocol):
    """A body that counts what it reads, see `chunkflow_py.volume.engine.block_volume.Traffic`."""

    @property
    def traffic(self) -> Traffic | None:
        """What reading has cost so far, if it is counted."""


@runtime_checkable
class ThreadSafe(Protocol):
    """A body that may work on several tasks at once, in several threads, if *thread_safe*."""

    thread_safe: bool


@runtime_checkable
class StartsAhead(Protocol):
    """A body of a transform that can begin on the next chunk while one is on its way."""

    def start(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Future[Any]:
        """Begin, and return the future of what a call would return."""


def voxels_made(body: object, held: Voxels | None) -> Voxels | dict[str, Voxels] | None:
    """Return what a body makes of a first input that holds *held*, as far as it is known."""
    if isinstance(body, MakesVoxels):
        return body.voxels()
    if isinstance(body, KeepsVoxels) and body.keeps_voxels:
        return held
    rule = getattr(body, "func", body)
    return rule.voxels_from(held) if held is not None and isinstance(rule, MapsVoxels) else None


def keeps_labels(body: object) -> bool:
    """Tell whether what a body makes of labels are the same labels, as far as it says."""
    from chunkflow_py.core.chunk import Voxels

    labels = Voxels("uint64", 1, "segmentation")
    return not isinstance(body, MakesVoxels) and voxels_made(body, labels) == labels


# --- boxes on their way down the line -------------------------------------------------------------


_Turned = TypeVar("_Turned", BoundingBox, Zyx)


def turned(value: _Turned, body: object) -> _Turned:
    """Return a box or three numbers as they are after a body, which may turn axes."""
    return value.turned(body.order) if isinstance(body, TurnsAxes) else value


def turned_back(box: BoundingBox, body: object) -> BoundingBox:
    """Return a box after a body, which may turn axes, as it is before."""
    if not isinstance(body, TurnsAxes):
        return box
    return box.turned([body.order.index(axis) for axis in range(3)])


def moved_boxes(boxes: Boxes, body: object, scale: Zyx) -> Boxes:
    """Return *boxes* as they leave a body, which may move their faces or turn their axes.

    Args:
        boxes: of tasks.
        body: of an operator.
        scale: voxels of *boxes* that make one of the body's first input, zyx.
    """
    if isinstance(body, TurnsAxes):
        return turned_boxes(boxes, body.order)
    return boxes_between(boxes, *moved_by(body, scale)) if isinstance(body, MovesFaces) else boxes


def moved_by(body: MovesFaces, scale: Zyx) -> tuple[Zyx, Zyx]:
    """Return by how much a body moves the faces of a task's box, in voxels of that box."""
    low, high = body.face_offsets
    return low * scale, high * scale


def turned_boxes(boxes: Boxes, order: Sequence[int]) -> Boxes:
    """Return *boxes* with the old axes that become z, y and x."""
    if not isinstance(boxes, BoxGrid):
        return [box.turned(order) for box in boxes]
    grid = (boxes.start, boxes.size, boxes.stride, boxes.count)
    start, size, stride, count = (value.turned(order) for value in grid)
    clip = boxes.clip_stop and boxes.clip_stop.turned(order)
    return BoxGrid(start, size, stride, count, clip)


def boxes_between(boxes: Boxes, low: Zyx, high: Zyx) -> Boxes:
    """Return *boxes* with *low* added to their starts and *high* to their stops."""
    if isinstance(boxes, BoxGrid):
        clip = None if boxes.clip_stop is None else boxes.clip_stop + high
        return BoxGrid(boxes.start + low, boxes.size + high - low, boxes.stride, boxes.count, clip)
    return [BoundingBox(box.start + low, box.stop + high) for box in boxes]


def shrunk_boxes(boxes: Boxes, factor: Zyx) -> Boxes:
    """Return *boxes* in voxels that are *factor* times larger, as large as what they touch."""
    if factor == (1, 1, 1):
        return boxes
    if isinstance(boxes, BoxGrid) and not any((*(boxes.start % factor), *(boxes.stride % factor))):
        clip = None if boxes.clip_stop is None else -(-boxes.clip_stop // factor)
        start, size = boxes.start // factor, -(-boxes.size // factor)
        return BoxGrid(start, size, boxes.stride // factor, boxes.count, clip)
    return [box.coarser(factor) for box in boxes]


def coarser_nm(size_nm: tuple[float, float, float], factor: Zyx) -> tuple[float, float, float]:
    """Return the size of voxels that are *factor* times larger."""
    z, y, x = (nm * f for nm, f in zip(size_nm, factor, strict=True))
    return z, y, x
