"""Count what the tasks of a pipeline will read, write and compute, before the tasks run.

```
volume   |----------------------------------------|
blocks   |------|------|------|------|------|-----|
task              |--------|
read           |--------------|                      with the margin of the network
touched  |      |--------------------|               whole blocks are fetched: read amplification
patches        |------|                              patches that cross a task boundary are computed
                   |------|                          for both tasks: recomputation
                       |------|
```

Each amount, such as the number of voxels that a task reads, is a product of three numbers, one per
axis. Each number depends only on the extent of the task's box along that axis. Therefore, the tasks
of a grid are counted axis by axis, not one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx, hull_of
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.inference.patch_grid import PatchGrid
from chunkflow_py.inference.shared_patches import SharedPatches, part_voxel_bytes, too_small
from chunkflow_py.pipeline.forecast import largest_size, voxel_bytes
from chunkflow_py.pipeline.operator import TaskSource
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan
from chunkflow_py.volume.files.file_saver import FileSaver
from chunkflow_py.volume.loader import VolumeLoader
from chunkflow_py.volume.location import Location, volume_name
from chunkflow_py.volume.new_volume import plan_blocks
from chunkflow_py.volume.output import VolumeOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Operator, Outline, Source
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.tasks.task_plan import Plan
    from chunkflow_py.volume.saver import VolumeSaver

    Measure = Callable[[BoundingBox], Sequence[float]]

_LOOKED_AT = 512  # minimum number of tasks that represent all tasks of a plan
_MOST = 512  # maximum number of boxes, per axis or list, that represent all boxes


@dataclass(frozen=True)
class Transfer:
    """Amounts that all tasks together read from a volume, or write to it.

    Attributes:
        operator: label of the loader or saver.
        place: address of the volume, without credentials.
        protocol: protocol of the address, such as ``file``, ``s3`` or ``gs``.
        task_bytes: uncompressed bytes that a task in the middle of the plan reads (with its margin)
            or writes.
        total_bytes: uncompressed bytes that all tasks read or write.
        volume_bytes: uncompressed bytes of the part of the volume that tasks cover; each voxel is
            counted once.
        block_bytes: uncompressed bytes of all blocks that tasks fetch; ``None`` for writes, and for
            volumes without blocks.
        task_requests: number of requests of a task in the middle of the plan.
        requests: upper limit of the number of requests of all tasks; a cache may save requests for
            blocks that several tasks read.
        unit: block size (reads) or write unit (writes), voxels, zyx; ``None`` for volumes without
            blocks.
        unit_is_fixed: whether the volume or an option sets the unit; if false, the unit is chosen
            to fit the tasks.
    """

    operator: str
    place: str
    protocol: str
    task_bytes: int
    total_bytes: int
    volume_bytes: int
    block_bytes: int | None = None
    task_requests: int = 0
    requests: int = 0
    unit: Zyx | None = None
    unit_is_fixed: bool = False

    def times(self, share: float) -> Transfer:
        """Return a copy with the amounts of all tasks multiplied by *share*.

        These amounts are `total_bytes`, `volume_bytes`, `block_bytes` and `requests`.
        """
        blocks = self.block_bytes
        return replace(
            self,
            total_bytes=round(self.total_bytes * share),
            volume_bytes=round(self.volume_bytes * share),
            block_bytes=None if blocks is None else round(blocks * share),
            requests=round(self.requests * share),
        )

    @property
    def amplification(self) -> float:
        """Bytes that are read or written for each byte of the covered part of the volume."""
        return self.total_bytes / max(1, self.volume_bytes)

    @property
    def block_amplification(self) -> float | None:
        """Bytes fetched per byte that tasks need; ``None`` if the volume has no blocks."""
        return None if self.block_bytes is None else self.block_bytes / max(1, self.total_bytes)


@dataclass(frozen=True)
class Patches:
    """Numbers of patches that a network computes.

    Attributes:
        operator: label of the inference operator.
        computed: number of patches that all tasks together compute; a patch that two tasks compute
            counts twice.
        ideal: number of patches that a single task for the whole volume would compute.
        of_task: numbers of patches of a task in the middle of the plan, along each axis, zyx.
        input_voxels: number of voxels of an input patch.
        amplification: voxels that the network computes per output voxel.
        batch_size: number of patches per forward pass.
        box: function that returns, for the box of a task, the numbers of patches along z, y and x.
        output_voxels: number of voxels of the part of the volume that tasks cover.
        patch_size: size of an output patch, voxels, zyx.
        part_voxel_bytes: bytes of one voxel in the exchange of patches, with all channels.
        part_bytes: upper limit of the total bytes that a task in the middle of the plan stores for
            other tasks.
        sharing: function that returns, for a grid of tasks, the patches that these tasks share;
            ``None`` if tasks do not exchange patches.
        no_exchange: reason why tasks do not exchange patches, or why the exchange is not estimated;
            ``None`` if the exchange is estimated, or if there is only one task.
    """

    operator: str
    computed: int
    ideal: int
    of_task: Zyx
    input_voxels: int
    amplification: float
    batch_size: int
    box: Measure
    output_voxels: int = 0
    patch_size: Zyx = Zyx(1, 1, 1)
    part_voxel_bytes: int = 0
    part_bytes: int = 0
    sharing: Callable[[BoxGrid], SharedPatches] | None = None
    no_exchange: str | None = None

    def times(self, share: float) -> Patches:
        """Return a copy in which `computed` and `ideal` are multiplied by *share*."""
        computed, ideal = round(self.computed * share), round(self.ideal * share)
        return replace(self, computed=computed, ideal=ideal)

    @property
    def recomputation(self) -> float:
        """The number *computed*, divided by the number *ideal*."""
        return self.computed / max(1, self.ideal)


def total(boxes: Boxes, measure: Measure) -> float:
    """Return the sum over all boxes of an amount, such as the number of voxels.

    The amount for a box is the product of the three numbers that *measure* returns for this box.

    Args:
        boxes: boxes of the tasks.
        measure: function that returns one number per axis for a box. Each number must depend only
            on the extent of the box along that axis.
    """
    if not isinstance(boxes, BoxGrid):
        some = boxes[:: max(1, len(boxes) // _MOST)]
        return sum(prod(measure(box)) for box in some) * len(boxes) / max(1, len(some))
    middle, result = boxes.count // 2, 1.0
    for axis in range(3):
        count = boxes.count[axis]
        looked_at = min(count, _MOST)
        cells = [k * (count - 1) // max(1, looked_at - 1) for k in range(looked_at)]
        boxes_here = (
            boxes.box([cell if a == axis else middle[a] for a in range(3)]) for cell in cells
        )
        result *= sum(measure(box)[axis] for box in boxes_here) / looked_at * count
    return result


def middle_box(boxes: Boxes) -> BoundingBox:
    """Return the box of a task in the middle, if possible with neighbours on all sides."""
    return boxes.box(boxes.count // 2) if isinstance(boxes, BoxGrid) else boxes[len(boxes) // 2]


def reads_of(pipeline: Pipeline) -> list[Transfer]:
    """Return the amounts that the loaders of a checked pipeline read."""
    found = (_read(stage, pipeline.outlines[stage.name]) for stage in pipeline.operators)
    return [transfer for transfer in found if transfer is not None]


def writes_of(pipeline: Pipeline) -> list[Transfer]:
    """Return the amounts that savers of a checked pipeline write, if known before the tasks run."""
    found = (_written(stage, pipeline.outlines[stage.name]) for stage in pipeline.operators)
    return [transfer for transfer in found if transfer is not None]


def patches_of(pipeline: Pipeline) -> list[Patches]:
    """Return the numbers of patches that the networks of a checked pipeline compute."""
    found = (_patches(stage, pipeline.outlines[stage.name]) for stage in pipeline.operators)
    return [patches for patches in found if patches is not None]


def domain_of(pipeline: Pipeline) -> BoundingBox | None:
    """Return the bounds of the volume that the first loader reads; ``None`` if unknown."""
    for stage in pipeline.operators:
        if stage.hooks.declares("bounds"):
            try:
                return stage.hooks.bounds()
            except ChunkflowError:  # reported as a problem of the plan
                return None
    return None


# --- reading --------------------------------------------------------------------------------------


def _read(stage: Operator, outline: Outline) -> Transfer | None:
    body, cutout = stage.body, stage.hooks.cutout
    if stage.stage != "read" or cutout is None:
        return None
    try:
        bounds, held = stage.hooks.bounds(), stage.hooks.voxels()  # of one chunk
    except ChunkflowError:  # reported as a problem of the plan
        return None
    boxes = outline.boxes if outline.has_tasks else None
    if bounds is None or (outline.has_tasks and not boxes):
        return None
    boxes = boxes or [bounds]
    volume = body.volume if isinstance(body, VolumeLoader) and body.source.is_shared else None
    origin = bounds.start if volume is None else volume.bounds.start
    block = None if volume is None else volume.block_size

    def read(box: BoundingBox) -> BoundingBox:
        inside = box.intersection(bounds)
        if inside.is_empty or not outline.has_tasks:
            return inside
        return cutout.box(bounds, box, stage.name)[0]

    def touched(box: BoundingBox) -> BoundingBox:
        found = read(box)
        return found if block is None else found.aligned_outward(block, origin).intersection(bounds)

    def blocks(box: BoundingBox) -> Sequence[float]:
        return (0, 0, 0) if volume is None else _count(read(box), volume.block_size, origin)

    def shards(box: BoundingBox) -> Sequence[float]:
        return (0, 0, 0) if volume is None else _count(read(box), volume.write_unit, origin)

    def requests(count: Callable[[Measure], float]) -> int:
        # a shard needs further requests, for the positions of its blocks
        indexes = 0 if volume is None or volume.write_unit == block else 2 * count(shards)
        return round((count(blocks) + indexes) * getattr(volume, "channel_blocks", 1))

    item, middle = voxel_bytes(None if isinstance(held, dict) else held), middle_box(boxes)
    region = _covered(boxes, bounds)
    return Transfer(
        operator=stage.name,
        place=stage.hooks.origin or "" if volume is None else volume.url,
        protocol="file" if volume is None else Location.parse(volume.url).protocol,
        task_bytes=read(middle).voxels * item,
        total_bytes=round(total(boxes, lambda box: read(box).size)) * item,
        volume_bytes=region.voxels * item,
        block_bytes=None
        if block is None
        else round(total(boxes, lambda box: touched(box).size)) * item,
        task_requests=requests(lambda measure: prod(measure(middle))),
        requests=requests(lambda measure: total(boxes, measure)),
        unit=block,
        unit_is_fixed=block is not None,
    )


def _count(box: BoundingBox, unit: Zyx, origin: Zyx) -> Zyx:
    """Return the number of blocks or shards, of size *unit*, that a box touches along each axis."""
    return Zyx(0, 0, 0) if box.is_empty else box.aligned_outward(unit, origin).size // unit


def _covered(boxes: Boxes, bounds: BoundingBox | None) -> BoundingBox:
    """Return the smallest box that contains all tasks, clipped to *bounds*."""
    region = hull_of(boxes)
    return _inside(region or boxes[0], bounds)


# --- writing --------------------------------------------------------------------------------------


def _written(stage: Operator, outline: Outline) -> Transfer | None:
    body: Any = stage.body
    boxes: Boxes | None = outline.boxes
    if not boxes and outline.domain is not None and not outline.has_tasks:
        boxes = [outline.domain]
    if not isinstance(body, VolumeOutput | FileSaver) or not boxes:
        return None
    item = voxel_bytes(outline.voxels)
    if isinstance(body, FileSaver):
        voxels = round(total(boxes, lambda box: _inside(box, outline.domain).size))
        one = _inside(middle_box(boxes), outline.domain).voxels
        return Transfer(
            stage.name, body.destination, "file", one * item, voxels * item, voxels * item,
            task_requests=1, requests=len(boxes),
        )  # fmt: skip
    saver = body.saver
    bounds, unit, is_fixed = _where(saver, outline, boxes)
    dtype = saver.dtype if saver.volume is None else saver.volume.dtype
    channels = 1 if outline.voxels is None else outline.voxels.channels
    if dtype is not None:
        item = dtype.itemsize * channels
    parts = 1 if saver.place.format in ("precomputed", "n5") else channels
    parts = getattr(saver.volume, "channel_blocks", parts)

    def units(box: BoundingBox) -> Sequence[float]:
        if unit is None or bounds is None:
            return (0, 0, 0)
        return _count(_inside(box, bounds), unit, bounds.start)

    voxels = round(total(boxes, lambda box: _inside(box, bounds).size))
    middle = middle_box(boxes)
    is_one_file = saver.place.format == "h5"
    return Transfer(
        operator=stage.name,
        place=saver.place.url,
        protocol=saver.place.protocol,
        task_bytes=_inside(middle, bounds).voxels * item,
        total_bytes=voxels * item,
        volume_bytes=_covered(boxes, bounds).voxels * item,
        task_requests=0 if is_one_file else round(prod(units(middle)) * parts),
        requests=0 if is_one_file else round(total(boxes, units) * parts),
        unit=unit,
        unit_is_fixed=is_fixed,
    )


def _where(
    saver: VolumeSaver, outline: Outline, boxes: Boxes
) -> tuple[BoundingBox | None, Zyx | None, bool]:
    """Return three values: bounds and write unit of the output, and whether the unit is fixed.

    The write unit, a block or shard, is fixed if the volume or an option sets it.
    """
    if saver.volume is not None:
        return saver.volume.bounds, saver.volume.write_unit, True
    announced = saver.announced.get(volume_name(saver.place))
    if announced is not None:
        spec = announced()
        if spec is None:
            return outline.bounds, None, False
        spec = spec.level(saver.mip)
        return spec.bounds, spec.shard_size or spec.block_size, True
    bounds = saver.known_bounds() or saver.bounds or outline.bounds
    unit = saver.shard_size or saver.block_size
    if unit is None and bounds is not None:
        return bounds, plan_blocks(boxes, bounds, saver.url, fixed=True)[1], False
    return bounds, unit, True


def _inside(box: BoundingBox, bounds: BoundingBox | None) -> BoundingBox:
    return box if bounds is None else box.intersection(bounds)


# --- computing ------------------------------------------------------------------------------------


def _patches(stage: Operator, outline: Outline) -> Patches | None:
    placement = stage.hooks.placement
    domain, boxes = outline.domain, outline.boxes
    if placement is None or domain is None or (outline.has_tasks and not boxes):
        return None
    boxes = boxes if boxes and outline.has_tasks else [domain]
    settings = placement.settings
    geometry = settings.geometry
    try:
        grid = settings.grid(domain)
    except ChunkflowError:  # reported as a problem of the plan
        return None

    def asked(box: BoundingBox) -> BoundingBox:
        inside = box.intersection(domain)
        if inside.is_empty:
            return inside
        if placement.needed is not None:
            inside = inside.hull(placement.needed(inside, domain))
        found: BoundingBox = inside.grow(placement.output_margin).intersection(grid.cover)
        return found

    def of_box(box: BoundingBox) -> Sequence[float]:
        found = asked(box)
        if found.is_empty:
            return (0, 0, 0)
        if placement.grid != "chunk":
            return tuple(grid.count(found))
        chunk = placement.required_input(box.intersection(domain), domain)
        if any(a < b for a, b in zip(chunk.size, geometry.input_patch_size, strict=True)):
            return (1, 1, 1)
        legacy = PatchGrid(geometry, chunk, "none")
        return tuple(legacy.count(legacy.cover))

    def sharing(tasks: BoxGrid) -> SharedPatches:
        middle, targets = tasks.count // 2, []
        for axis in range(3):
            cells = ([k if a == axis else middle[a] for a in range(3)]
                     for k in range(tasks.count[axis]))  # fmt: skip
            found = (asked(tasks.box(cell)) for cell in cells)
            targets.append(
                [None if box.is_empty else (box.start[axis], box.stop[axis]) for box in found]
            )
        return SharedPatches.of(grid, targets)

    region, middle = asked(_covered(boxes, domain)), asked(middle_box(boxes))
    computed = round(total(boxes, of_box))
    part_voxel = part_voxel_bytes(settings.num_output_channels, settings.patch_itemsize)
    reason = _no_exchange(stage, placement, boxes)
    return Patches(
        operator=stage.name,
        computed=computed,
        ideal=grid.count(region).product() if not region.is_empty else 0,
        of_task=Zyx.of(int(n) for n in of_box(middle_box(boxes))),
        input_voxels=geometry.input_patch_size.product(),
        amplification=computed * geometry.output_patch_size.product() / max(1, region.voxels),
        batch_size=settings.batch_size,
        box=of_box,
        output_voxels=region.voxels,
        patch_size=geometry.output_patch_size,
        part_voxel_bytes=part_voxel,
        part_bytes=0 if middle.is_empty else grid.voxels_outside(middle) * part_voxel,
        sharing=sharing if len(boxes) > 1 and reason is None else None,
        no_exchange=reason if len(boxes) > 1 else None,
    )


def _no_exchange(stage: Operator, placement: Any, boxes: Boxes) -> str | None:
    """Return why the exchange of patches is not estimated; ``None`` if it can be estimated."""
    if placement.grid == "chunk" or not stage.hooks.is_local:
        return "patches start at the corner of each chunk, so tasks have no patches in common"
    if not isinstance(boxes, BoxGrid):
        return "not estimated, because the tasks are not a grid"
    return too_small(boxes, placement.settings.geometry.output_patch_size) or None


def largest_task(boxes: Boxes | None, domain: BoundingBox | None) -> Zyx | None:
    """Return the size of the largest task, or of the domain if there are no tasks; voxels, zyx."""
    if boxes:
        return largest_size(boxes)
    return None if domain is None else domain.size


# --- representative tasks --------------------------------------------------------------------


def plan_of(source: Source) -> Plan:
    """Return the plan of a source: the numbered list of its tasks.

    Raises:
        OptionError: the source, such as a queue, does not know all its tasks in advance.
    """
    body = source.body
    if isinstance(body, TaskSource) and body.regions is None:  # such as the source create-bbox
        boxes = body.boxes
        return GridPlan(boxes) if isinstance(boxes, BoxGrid) else ListPlan([*map(Region, boxes)])
    if (plan := source.hooks.plan) is None:
        msg = (
            f"{source.name} does not know all its tasks in advance, so the pipeline cannot be "
            "planned; use generate-tasks instead"
        )
        raise OptionError(msg)
    return plan


def middle_tasks(plan: Plan, limit: int) -> list[int]:
    """Return the numbers of at most *limit* consecutive tasks from the middle of the plan.

    The tasks have neighbours on all sides, like typical tasks of a run, unless the plan is small.
    """
    first = 0 if len(plan) <= limit else len(plan) // 2
    if isinstance(plan, GridPlan):  # whose tasks can be found by number
        part = range(len(plan)) if plan.indexes is None else plan.indexes
        found = list(replace(plan, indexes=part[first : first + limit]))
    else:
        found = list(islice(plan, first, first + limit))
    half = len(found) // 2 if len(plan) <= limit else 0
    return found[half:] + found[:half]


def spread_boxes(plan: Plan) -> list[BoundingBox]:
    """Return the boxes of at least 512 evenly spaced tasks, or of all tasks of a smaller plan."""
    step = max(1, len(plan) // _LOOKED_AT)
    return [plan.region(number).bbox for number in islice(plan, 0, None, step)]
