"""Find a better task size for a pipeline: one that fits in memory and needs less work or memory."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoxGrid, Zyx, hull_of
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.forecast import voxel_bytes
from chunkflow_py.planning.task_amounts import domain_of, largest_task, total
from chunkflow_py.volume.loader import VolumeLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.inference.task_size import TaskSizes
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.planning.exchange_estimate import Exchange
    from chunkflow_py.planning.task_amounts import Patches, Transfer

_MARGIN = 0.9  # allows for margins, which are a larger part of smaller tasks
_STEP = 0.9  # ratio of the voxels of successive sizes
KEPT = "blocks kept for later tasks"  # name of this part in the estimates of loaders
_SAME = 0.98  # a new size must need at most this share of the present work
_LESS = 0.75  # if the work is the same, at most this share of the present memory


@dataclass(frozen=True)
class Suggestion:
    """A better task size than the present one.

    Attributes:
        size: suggested task size, voxels, zyx.
        amplification: mean number of voxels that the network computes per output voxel at the
            suggested task size; ``None`` without a network.
        instead_of: mean number of voxels that the network computes per output voxel at the present
            task size, without an exchange of patches.
        memory_bytes: memory that a process needs at the suggested task size.
        exchanged_bytes: bytes that tasks write for other tasks per output voxel, in the exchange of
            patches. Tasks read as many bytes. ``None`` if the suggestion is for tasks without an
            exchange.
    """

    size: Zyx
    amplification: float | None
    instead_of: float | None
    memory_bytes: int
    exchanged_bytes: float | None = None

    def __str__(self) -> str:
        """Return the option that sets the suggested size, such as ``--chunk-size 64 512 512``."""
        return f"--chunk-size {self.size.as_option}"


def better_task_size(
    pipeline: Pipeline,
    writes: Sequence[Transfer],
    patches: Sequence[Patches],
    memory_bytes: int,
    line_bytes: int,
    fixed_bytes: int,
    processes: int = 1,
    exchange: Callable[[BoxGrid], Exchange | None] | None = None,
) -> Suggestion | None:
    """Return a better task size, or ``None`` if the present size is as good.

    Without an exchange of patches, the better size is the one with the least work. With an
    exchange, all sizes need the same work, so the better size is one that needs less memory.

    Args:
        pipeline: a checked pipeline.
        writes: amounts that the savers of the pipeline write.
        patches: numbers of patches that the networks of the pipeline compute.
        memory_bytes: memory that a process may use.
        line_bytes: memory that a process needs at the present task size.
        fixed_bytes: the part of *line_bytes* that does not depend on the task size.
        processes: number of processes of the run. Every process must get a task, unless the present
            size gives fewer tasks than processes.
        exchange: result of `exchange_if_it_pays`; ``None`` if an exchange does not pay at the
            present size.
    """
    found = _task_sizes(pipeline, writes)
    boxes = pipeline.source.hooks.boxes if pipeline.source else None
    now, region = largest_task(boxes, None), hull_of(boxes)
    if now is None or region is None:
        return None
    for each in patches[:1]:
        outline = pipeline.outlines[each.operator]
        if outline.domain is not None and outline.boxes == boxes:
            # The last tasks may end beyond the volume; tasks of another size need not.
            region = region.intersection(outline.domain)
    fits = line_bytes <= memory_bytes
    rest = line_bytes - fixed_bytes - _kept(pipeline, region, now)
    if found is None or not patches:
        size = None if fits else now
        while size := size and smaller_size(size, _unit(writes), _STEP):
            share = min(1.0, size.product() / now.product() / _MARGIN)
            needed = fixed_bytes + _kept(pipeline, region, size) + round(rest * share)
            if needed <= memory_bytes:
                return Suggestion(size, None, None, needed)
        return None
    enough = min(processes, len(boxes or ()))

    def is_usable(size: Zyx) -> bool:
        return len(BoxGrid.covering(region, size, respect_stop=True)) >= enough

    other = fixed_bytes + rest - found.of(now).memory_bytes

    def best_size(sizes: TaskSizes) -> tuple[Zyx, int] | None:
        """Return the best size that fits in memory, and the bytes that a process then needs."""
        kept = 0
        for _ in range(2):  # kept blocks depend on the size; pass 2 uses those of pass 1
            try:
                best = sizes.best(max(1, memory_bytes - other - kept), is_usable)
            except OptionError:  # not even the smallest size fits
                return None
            kept = _kept(pipeline, region, best.size)
            needed = other + best.memory_bytes + kept
            if needed <= memory_bytes:
                return best.size, needed
        return None

    network = patches[0]
    per_patch = network.amplification / max(1, network.computed)
    if exchange is not None:
        exchanging = replace(found, exchange=True)
        line_bytes += exchanging.of(now).memory_bytes - found.of(now).memory_bytes
        if (best := best_size(exchanging)) is not None and best[1] <= _LESS * line_bytes:
            tasks = BoxGrid.covering(region, best[0], respect_stop=True)
            if (parts := exchange(tasks)) is not None:
                amplification = per_patch * parts.computed
                done = network.amplification
                return Suggestion(best[0], amplification, done, best[1], parts.voxel_bytes)
        if fits:
            return None
    if (best := best_size(found)) is None:
        return None
    size, needed = best
    tasks = BoxGrid.covering(region, size, respect_stop=True)
    amplification = per_patch * total(tasks, network.box)
    if fits and amplification > _SAME * network.amplification:
        return None
    return Suggestion(size, amplification, network.amplification, needed)


def _kept(pipeline: Pipeline, region: BoundingBox, size: Zyx) -> int:
    """Return the bytes of the loaders' block caches if tasks have the size *size*."""
    boxes, kept = BoxGrid.covering(region, size), 0
    for stage in pipeline.operators:
        if isinstance(stage.body, VolumeLoader):
            loader = copy(stage.body)  # the pipeline keeps using the original
            loader.prepare(replace(pipeline.outlines[stage.name], boxes=boxes))
            need = loader.memory(None)
            kept += 0 if need is None else need.held.get(KEPT, 0)
    return kept


def strides_cut_by_tasks(pipeline: Pipeline) -> str | None:
    """Return a note if task boundaries are not multiples of the patch stride, else ``None``."""
    for stage in pipeline.operators:
        placement = stage.hooks.placement
        outline = pipeline.outlines[stage.name]
        boxes, domain = outline.boxes, outline.domain
        if placement is None or domain is None or not isinstance(boxes, BoxGrid):
            continue
        if placement.settings.spread:
            continue  # the distances of the patches follow from the volume
        stride = placement.settings.geometry.stride
        off = [(boxes.start - domain.start) % stride, boxes.stride % stride]
        axes = [
            name
            for axis, name in enumerate("zyx")
            if boxes.count[axis] > 1 and any(rest[axis] for rest in off)
        ]
        if axes:
            return (
                f"along {' and '.join(axes)}, task boundaries are not multiples of the patch "
                f"stride of {stage.name}, {stride} (zyx, voxels); more patches than necessary "
                "cross a task boundary, and both tasks compute them"
            )
    return None


def smaller_size(size: Zyx, unit: Zyx, share: float) -> Zyx | None:
    """Return a smaller task size, a multiple of *unit*; ``None`` if even one unit is too large.

    The result has at most *share* times the voxels of *size*. The longest axis is reduced first, so
    that the margin around tasks grows as little as possible.
    """
    most = size.product() * share
    while size.product() > most:
        parts = [length // step for length, step in zip(size, unit, strict=True)]
        axis = max(range(3), key=lambda a: (parts[a] > 1, size[a]))
        if parts[axis] <= 1:
            return None
        less = (size[axis] - 1) // unit[axis] * unit[axis]
        size = Zyx.of(less if a == axis else n for a, n in enumerate(size))
    return size


def _unit(writes: Sequence[Transfer]) -> Zyx:
    """Return the smallest common multiple of the write units of all outputs, in voxels, zyx."""
    unit = Zyx(1, 1, 1)
    for each in writes:
        if each.unit is not None and each.unit_is_fixed:
            unit = Zyx.of(lcm(a, b) for a, b in zip(unit, each.unit, strict=True))
    return unit


def _task_sizes(pipeline: Pipeline, writes: Sequence[Transfer]) -> TaskSizes | None:
    import numpy as np

    from chunkflow_py.inference.task_size import TaskSizes

    domain = domain_of(pipeline)
    unit = _unit(writes)
    for stage in pipeline.operators:
        placement = stage.hooks.placement
        if placement is None or domain is None or placement.grid == "chunk":
            continue
        settings, outline = placement.settings, pipeline.outlines[stage.name]
        region = outline.region.intersection(domain) if outline.region else domain
        step = Zyx.of(lcm(a, b) for a, b in zip(unit, settings.geometry.stride, strict=True))
        # if the volume ends before the first common multiple, tasks may also end there
        step = Zyx.of(s if s <= e else u for s, u, e in zip(step, unit, region.size, strict=True))
        return TaskSizes(
            settings.geometry,
            settings.output_channels,
            np.dtype(settings.stored_dtype).itemsize,
            step,
            region.size,
            input_bytes=voxel_bytes(outline.voxels),
        )
    return None
