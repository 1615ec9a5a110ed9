"""Measure seams: differences across task boundaries, relative to differences inside tasks.

```
                 face between two tasks
 task a   . . o o o o | o o o o . .   task b         one line of voxels, perpendicular to the face
               | | |  ^  | | |
              inside  face  inside                   pairs of neighbouring voxels
```

In the drawing, REACH is 3, o is a voxel that is read, and a dot is a voxel that is not read. In the
line below the voxels, each | marks a pair inside a task, and ^ marks the pair across the face.

A face is the boundary between two neighbouring tasks. A sample of faces is measured. For each face,
a slab of voxels is read. The slab extends REACH + 1 voxels to each side of the face and is at most
WINDOW x WINDOW voxels wide. A pair consists of two voxels of the slab that are neighbours along the
axis perpendicular to the face. The step between the two voxels of a pair is

* for images and maps: the absolute difference of the voxels, averaged over all channels,
* for labels: 1 if the two voxels have different labels, else 0.

d(k) is the mean step over all pairs at a distance of k voxels from the face. Pairs across the face
have the distance 0.

The seam measure of an axis is then

    sum over faces of d(0)  /  sum over faces of the mean of d(k), 0 < |k| <= REACH

**1 means that task boundaries look like the inside of tasks**; 2 means that a step across a face is
twice as large as a step inside. The 95 % range contains the measure of 95 % of the samples drawn
with replacement from the faces (bootstrap; Efron 1979). If this range contains 1, the data show no
seam.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.ops.viewing.colours import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.monitor.run_volumes import RunVolume
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.tasks.task_plan import Plan
    from chunkflow_py.volume.protocol import Volume

REACH = 4  # pairs on each side of a face
WINDOW = 128  # most voxels of a face that are read, along each of its axes
FACES = 32  # default number of faces along each axis
_DRAWS = 8  # candidates drawn per face, because some are faces of tasks that are not done
_RESAMPLES = 1000


@dataclass(frozen=True)
class Face:
    """The boundary between two neighbouring tasks.

    Attributes:
        axis: axis perpendicular to the face: 0, 1 or 2 for z, y or x.
        place: position along `axis` of the first voxel after the face, in the voxels in which the
            boxes of tasks are given.
        box: box around the face. Along `axis`, the box covers both tasks; along the two other axes,
            it covers only what the tasks have in common.
        time: time index of both tasks; ``None`` without a time axis.
        numbers: numbers of the two tasks in the plan.
    """

    axis: int
    place: int
    box: BoundingBox
    time: int | None
    numbers: tuple[int, int]


@dataclass(frozen=True)
class Seam:
    """The seam measure along one axis.

    Attributes:
        axis: ``z``, ``y`` or ``x``.
        faces: number of faces that were read.
        across: mean step (difference between two neighbouring voxels) across a face.
        inside: mean step between neighbouring voxels inside a task.
        low: lower end of the range that contains `ratio` for 95 % of the bootstrap samples;
            ``None`` if only one face was read.
        high: upper end of the range that begins at `low`.
    """

    axis: str
    faces: int
    across: float
    inside: float
    low: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> float | None:
        """The seam measure `across` / `inside`; infinite if `inside` is 0, ``None`` for 0 / 0."""
        return _ratio(self.across, self.inside)


@dataclass(frozen=True)
class Seams:
    """The seam measures of one volume.

    Attributes:
        place: the volume.
        labels: whether the volume is a segmentation; a step is then the share of pairs with
            different labels.
        axes: seam measure of each axis along which there are faces.
        problem: reason why there are no seam measures; empty if seams were measured.
    """

    place: RunVolume
    labels: bool = False
    axes: tuple[Seam, ...] = ()
    problem: str = ""


def seams_of(place: RunVolume, faces: Sequence[Face], seed: int = 0) -> Seams:
    """Return the seam measures of a volume, one per axis.

    Args:
        place: the volume.
        faces: faces to measure, with positions in voxels at the resolution of the tasks.
        seed: seed of the random positions of slabs and of the bootstrap samples.
    """
    try:
        volume = place.open()
        draw = random.Random(seed)  # noqa: S311 a sample, not a secret
        steps: dict[int, list[tuple[float, float]]] = {}
        labels = False
        for face in faces:
            slab = _slab(face, place, volume, draw)
            if slab is None:
                continue
            time = face.time if volume.times is not None else None
            chunk = volume.read(slab, time=time)
            labels = kind_of(chunk) == "segmentation"
            found = steps_of(chunk.array, face.axis, labels=labels)
            if found is not None:
                steps.setdefault(face.axis, []).append(found)
    except ChunkflowError as error:
        return Seams(place, problem=str(error))
    if not steps:
        problem = "no sampled task boundary has a done task and valid voxels on both sides"
        return Seams(place, labels, problem=problem)
    return Seams(
        place, labels, tuple(seam_along(axis, steps[axis], seed) for axis in sorted(steps))
    )


def steps_of(array: NDArray[Any], axis: int, *, labels: bool) -> tuple[float, float] | None:
    """Return the mean step across a face, and the mean step on both sides of the face.

    A step is the absolute difference between two neighbouring voxels along *axis*. For labels, a
    step is 1 if the two labels differ, else 0.

    Args:
        array: slab of shape (…, z, y, x). The face is in the middle of the slab along *axis*.
        axis: axis perpendicular to the face: 0, 1 or 2 for z, y or x.
        labels: whether the voxels are labels.

    Returns:
        The two means. ``None`` if a mean cannot be computed, because none of its steps is finite.
    """
    lines = np.moveaxis(array, array.ndim - 3 + axis, 0)
    if labels or lines.dtype == bool:
        steps = (lines[1:] != lines[:-1]).astype(np.float64)
    else:
        # float64 holds the difference of any two voxels of up to 32 bits
        steps = np.abs(np.diff(lines.astype(np.float64), axis=0))
    middle = len(steps) // 2
    around = np.delete(steps, middle, axis=0)
    across, inside = (part[np.isfinite(part)] for part in (steps[middle], around))
    if not across.size or not inside.size:
        return None
    return float(across.mean()), float(inside.mean())


def seam_along(axis: int, steps: Sequence[tuple[float, float]], seed: int = 0) -> Seam:
    """Return the seam measure along an axis and its 95 % range, from the steps at each face.

    Args:
        axis: axis perpendicular to the faces: 0, 1 or 2 for z, y or x.
        steps: results of `steps_of` for at least one face.
        seed: seed of the bootstrap samples.
    """
    values = np.array(steps)
    across, inside = values.mean(axis=0)
    if len(steps) < 2:
        return Seam(AXES[axis], 1, float(across), float(inside))
    generator = np.random.default_rng(seed)
    drawn = values[generator.integers(len(steps), size=(_RESAMPLES, len(steps)))].mean(axis=1)
    ratios = [ratio for a, b in drawn.tolist() if (ratio := _ratio(a, b)) is not None]
    low, high = None, None
    if ratios and all(np.isfinite(ratios)):
        low, high = (float(each) for each in np.quantile(ratios, (0.025, 0.975)))
    return Seam(AXES[axis], len(steps), float(across), float(inside), low, high)


def _ratio(across: float, inside: float) -> float | None:
    if inside > 0:
        return across / inside
    return float("inf") if across > 0 else None


def _slab(face: Face, place: RunVolume, volume: Volume, draw: random.Random) -> BoundingBox | None:
    """Return the slab to read for a face; ``None`` if the volume does not contain the slab."""
    axis, shrink = face.axis, place.shrink
    middle, rest = divmod(face.place, shrink[axis])
    if rest:
        return None  # the face cuts through voxels of the volume
    box = shrink.inside(face.box).intersection(volume.bounds)
    start, stop = [*box.start], [*box.stop]
    for each in range(3):
        if each == axis:
            start[each], stop[each] = middle - REACH - 1, middle + REACH + 1
        else:
            # One of the windows that tile the face from its start, where blocks begin as well.
            windows = max(1, -(-(stop[each] - start[each]) // WINDOW))
            start[each] += WINDOW * draw.randrange(windows)
            stop[each] = min(stop[each], start[each] + WINDOW)
    if any(a >= b for a, b in zip(start, stop, strict=True)):
        return None
    slab = BoundingBox(Zyx.of(start), Zyx.of(stop))
    return slab if box.contains(slab) else None


# --- sample of faces ------------------------------------------------------------------------------


def sampled(plan: Plan, ledger: Ledger, most: int, seed: int = 0) -> list[Face]:
    """Return a random sample of the faces between done tasks.

    The face between two overlapping tasks is placed in the middle of the overlap. This is correct
    if the output of tasks is cropped equally on both sides.

    Args:
        plan: plan of the step.
        ledger: ledger of the step.
        most: limit of the number of faces per axis.
        seed: seed of the random sample; calls with equal seeds return equal faces.
    """
    draw = random.Random(seed)  # noqa: S311 a sample, not a secret
    result = []
    for axis in range(3):
        candidates = list(_candidates(plan, axis, most * _DRAWS, draw))
        ended = ledger.find({number for face in candidates for number in face.numbers})
        done = [f for f in candidates if all(ended.get(n) == "done" for n in f.numbers)]
        result += done[:most]
    return result


def _candidates(plan: Plan, axis: int, most: int, draw: random.Random) -> Iterator[Face]:
    grid = plan.boxes
    if isinstance(grid, BoxGrid):
        shape = [*grid.count]
        shape[axis] -= 1  # positions of the lower of two neighbours
        each = shape[0] * shape[1] * shape[2]
        total = each * (plan.times or 1)
        ahead = (grid.count.y * grid.count.x, grid.count.x, 1)[axis]
        for index in draw.sample(range(total), min(most, total)):
            time, rest = divmod(index, max(each, 1))
            z, rest = divmod(rest, shape[1] * shape[2])
            y, x = divmod(rest, shape[2])
            lower = time * len(grid) + (z * grid.count.y + y) * grid.count.x + x
            pair = lower, lower + ahead
            if all(number in plan for number in pair):
                yield from _face(plan, axis, pair)
        return
    starts = {_key(plan.region(number)): number for number in plan}
    numbers = list(plan)
    for number in draw.sample(numbers, min(most, len(numbers))):
        region = plan.region(number)
        start = [*region.bbox.start]
        start[axis] = region.bbox.stop[axis]
        upper = starts.get((region.time, *start))
        if upper is not None:
            yield from _face(plan, axis, (number, upper))


def _key(region: Region) -> tuple[int | None, ...]:
    return region.time, *region.bbox.start


def _face(plan: Plan, axis: int, pair: tuple[int, int]) -> Iterator[Face]:
    """Yield the face of two neighbours; nothing if they have a gap, or an overlap of odd size."""
    lower, upper = (plan.region(number) for number in pair)
    stop, start = lower.bbox.stop[axis], upper.bbox.start[axis]
    if start > stop or (stop + start) % 2:
        return
    corners = [*lower.bbox.start.high(upper.bbox.start)], [*lower.bbox.stop.low(upper.bbox.stop)]
    corners[0][axis], corners[1][axis] = lower.bbox.start[axis], upper.bbox.stop[axis]
    box = BoundingBox(Zyx.of(corners[0]), Zyx.of(corners[1]))
    yield Face(axis, (stop + start) // 2, box, lower.time, pair)
