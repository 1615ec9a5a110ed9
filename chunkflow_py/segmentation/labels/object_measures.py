"""Measure the objects of a label volume in tasks, and sum the results without rounding.

```
labels, image   ->  runs of equal labels along x  ->  sums per label  ->  one file per task
files of tasks  ->  sums per label of the volume  ->  table: voxels, box, centroid, intensities
```

All sums are exact, so the table does not depend on the division into tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.segmentation.labels import exact_sums as exact
from chunkflow_py.segmentation.labels.components import labels_of
from chunkflow_py.store.task_counts import TaskCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Region

KIND = "objects"  # of the counts in a `CountStore`
_SLAB = 2**22  # voxels that are measured at once


@dataclass(frozen=True)
class ObjectMeasures:
    """Exact measures of the objects of a task or volume, sorted by label.

    Attributes:
        labels: (n,) uint64.
        voxels: (n,) number of voxels.
        low: (n, 3) first voxel of the bounding box, zyx.
        high: (n, 3) last voxel of the bounding box plus 1, zyx.
        places: (n, 3, digits) sums of the voxels' coordinates, zyx. Each sum is a row of digits;
            see `exact_sums`.
        counted: (n, channels) number of voxels with a finite intensity (neither NaN nor infinite).
        totals: (n, channels, digits) sums of the finite intensities; see `exact_sums`.
        least, most: (n, channels) smallest and largest finite intensity.
    """

    labels: NDArray[np.uint64]
    voxels: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    places: NDArray[np.int64]
    counted: NDArray[np.int64]
    totals: NDArray[np.int64]
    least: NDArray[Any]
    most: NDArray[Any]

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.labels)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return dict(vars(self))

    def part(self, chosen: NDArray[np.bool_]) -> ObjectMeasures:
        """Return the measures of the objects for which *chosen*, (n,) bool, is true."""
        return ObjectMeasures(**{name: array[chosen] for name, array in self.arrays().items()})


def measure(labels: Chunk, region: Region, image: Chunk | None = None) -> TaskCounts:
    """Measure the parts of objects inside *region*, and return the results in a storable form.

    Args:
        labels: labels, (z, y, x) or (1, z, y, x); 0 is background.
        region: region to measure, inside both chunks.
        image: intensities, (z, y, x) or (c, z, y, x), as integers of up to 32 bits or floats.
            Floats are rounded to float32. NaN and infinity are ignored; -0 counts as 0.

    Raises:
        ChunkError: the voxels are not labels, or the image has integers of 64 bits.
    """
    box, measures = region.bbox, None
    # In slabs, so that the memory for the voxels of one slab suffices.
    depth = max(1, _SLAB // (box.size.y * box.size.x))
    slabs = [
        BoundingBox(
            Zyx(z, box.start.y, box.start.x),
            Zyx(min(z + depth, box.stop.z), box.stop.y, box.stop.x),
        )
        for z in range(box.start.z, box.stop.z, depth)
    ]
    measures = summed(
        _measured(labels.cut(slab), None if image is None else image.cut(slab)) for slab in slabs
    )
    if measures is None:
        msg = f"region {region} has no voxels to measure; check the boxes of the tasks"
        raise GeometryError(msg)
    settings = {"intensities": None if image is None else str(measures.least.dtype)}
    return TaskCounts(region, measures.arrays(), settings, labels.domain)


def _measured(labels: Chunk, image: Chunk | None) -> ObjectMeasures:
    array = labels_of(labels).ravel()
    size = labels.bbox.size
    is_start = np.ones(len(array), bool)
    np.not_equal(array[1:], array[:-1], out=is_start[1:])
    is_start[:: size.x] = True
    starts = np.flatnonzero(is_start)
    ends = np.append(starts[1:], len(array))
    of_runs = array[starts]
    order = np.argsort(of_runs, kind="stable")
    order = order[np.searchsorted(of_runs[order], 1) :]  # without the background
    found, first = np.unique(of_runs[order], return_index=True)

    def reduced(how: Any, runs: NDArray[Any]) -> NDArray[Any]:
        result: NDArray[Any] = how.reduceat(runs[order], first) if len(order) else runs[:0]
        return result

    def total(voxels: NDArray[Any]) -> NDArray[np.int64]:
        return reduced(np.add, np.add.reduceat(voxels, starts, dtype=np.int64))

    lengths = ends - starts
    z, y, x = (
        place + low
        for place, low in zip(np.unravel_index(starts, size), labels.voxel_offset, strict=True)
    )
    last = x + lengths - 1
    sums = [reduced(np.add, n) for n in (lengths * z, lengths * y, lengths * (x + last) // 2)]
    channels = np.zeros((0, len(array)), np.uint8)
    if image is not None:
        channels = _intensities(image).reshape(-1, len(array))
    is_float = channels.dtype.kind == "f"
    counted: list[NDArray[Any]] = []
    totals: list[NDArray[Any]] = []
    least: list[NDArray[Any]] = []
    most: list[NDArray[Any]] = []
    how: tuple[Any, Any] = (np.fmin, np.fmax) if is_float else (np.minimum, np.maximum)
    for values in channels:
        if is_float:
            finite = np.isfinite(values)
            counted.append(total(finite.astype(np.int64)))
            totals.append(exact.sums_of_floats(np.where(finite, values, 0), total))
            known = np.where(finite, values, np.float32(np.nan))
        else:
            known = values
            counted.append(reduced(np.add, lengths))
            totals.append(exact.of_integers(total(values)))
        for each, ufunc in zip((least, most), how, strict=True):
            each.append(reduced(ufunc, ufunc.reduceat(known, starts)))
    stacked = partial(_stacked, count=len(found))
    return ObjectMeasures(
        found.astype(np.uint64),
        reduced(np.add, lengths),
        np.stack([reduced(np.minimum, n) for n in (z, y, x)], axis=1),
        np.stack([reduced(np.maximum, n) + 1 for n in (z, y, last)], axis=1),
        exact.of_integers(np.stack(sums, axis=1)),
        stacked(counted, (), np.int64),
        exact.carried(
            stacked(totals, (exact.FLOAT_DIGITS if is_float else exact.INTEGER_DIGITS,), np.int64)
        ),
        stacked(least, (), channels.dtype),
        stacked(most, (), channels.dtype),
    )


def _stacked(
    columns: Sequence[NDArray[Any]], shape: tuple[int, ...], dtype: Any, count: int
) -> NDArray[Any]:
    if not columns:
        return np.zeros((count, 0, *shape), dtype)
    return np.stack(columns, axis=1)


def _intensities(image: Chunk) -> NDArray[Any]:
    array = image.array
    if array.dtype.kind == "f":
        # Adding 0 makes -0 to 0: which of them is the smaller one depends on their order.
        return array.astype(np.float32, copy=False) + np.float32(0)
    if array.dtype == bool:
        return array.view(np.uint8)
    check_intensities(array.dtype)
    return array


def check_intensities(dtype: np.dtype[Any]) -> None:
    """Refuse intensities that cannot be summed exactly.

    Raises:
        ChunkError: the voxels are integers of 64 bits.
    """
    if dtype.kind in "iu" and dtype.itemsize > 4:
        msg = (
            f"the intensities are {dtype}, but only integers of at most 32 bits can be "
            "summed without rounding; convert the image"
        )
        raise ChunkError(msg)


def summed(parts: Iterable[ObjectMeasures]) -> ObjectMeasures | None:
    """Return the measures of whole objects, summed over tasks; ``None`` if there are no tasks.

    For one channel of integers, the function needs about 1.1 kB of memory for each object. Each
    further channel needs 0.3 kB for each object if it contains integers, or 0.8 kB for floats.
    """
    whole: ObjectMeasures | None = None
    waiting: list[ObjectMeasures] = []
    for part in parts:
        waiting.append(part)
        # Merging when the number of rows has doubled sorts each row only a few times.
        if sum(map(len, waiting)) > max(2**16, 0 if whole is None else len(whole)):
            whole, waiting = _merged([*([] if whole is None else [whole]), *waiting]), []
    if waiting:
        whole = _merged([*([] if whole is None else [whole]), *waiting])
    return whole


def _merged(parts: Sequence[ObjectMeasures]) -> ObjectMeasures:
    labels = np.concatenate([part.labels for part in parts])
    if not len(labels):
        return parts[0]
    order = np.argsort(labels, kind="stable")
    labels, first = np.unique(labels[order], return_index=True)
    is_float = parts[0].least.dtype.kind == "f"
    how: dict[str, Any] = {
        "low": np.minimum,
        "high": np.maximum,
        "least": np.fmin if is_float else np.minimum,
        "most": np.fmax if is_float else np.maximum,
    }
    merged = {}
    for name in parts[0].arrays().keys() - {"labels"}:
        rows = np.concatenate([getattr(part, name) for part in parts])[order]
        sums = how.get(name, np.add).reduceat(rows, first)
        merged[name] = exact.carried(sums) if name in ("places", "totals") else sums
    return ObjectMeasures(labels=labels, **merged)


def columns_of(
    measures: ObjectMeasures,
    bounds: BoundingBox,
    voxel_size_nm: tuple[float, float, float],
    channel_names: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Return the table of objects as a dictionary from column name to values, sorted by label.

    | column | meaning |
    |---|---|
    | label | id of the object |
    | voxels, volume_um3 | number of voxels; volume in cubic micrometres |
    | z_start ... x_stop | bounding box in voxels; stop is exclusive |
    | z_centroid ... | mean of the voxel coordinates, in voxels |
    | z_nm ... | centroid in nanometres; voxel i extends from i · size to (i + 1) · size |
    | touches_border | 1 if the box touches the bounds of the volume, else 0 |
    | mean, min, max | of the finite intensities of the object; NaN if there are none |
    | mean_NAME, min_NAME, max_NAME | mean, min, max of each channel, if there are several |

    Args:
        measures: measures of all objects of the volume.
        bounds: bounds of the volume.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        channel_names: name of each channel of the image (default: numbers).
    """
    z, y, x = voxel_size_nm
    found: dict[str, NDArray[Any]] = {
        "label": measures.labels,
        "voxels": measures.voxels,
        "volume_um3": measures.voxels * (z * y * x / 1e9),
    }
    for name, corners in (("start", measures.low), ("stop", measures.high)):
        found |= {f"{axis}_{name}": corners[:, number] for number, axis in enumerate(AXES)}
    centroids = exact.as_floats(measures.places) / measures.voxels[:, None]
    found |= {f"{axis}_centroid": centroids[:, number] for number, axis in enumerate(AXES)}
    found |= {
        f"{axis}_nm": (centroids[:, number] + 0.5) * voxel_size_nm[number]
        for number, axis in enumerate(AXES)
    }
    outer = (measures.low <= bounds.start) | (measures.high >= bounds.stop)
    found["touches_border"] = np.asarray(outer.any(axis=1), np.uint8)
    is_float = measures.least.dtype.kind == "f"
    totals = exact.as_floats(measures.totals, exact.FLOAT_OFFSET if is_float else 0)
    for channel in range(measures.counted.shape[1]):
        ending = ""
        if measures.counted.shape[1] > 1:
            ending = f"_{channel_names[channel] if channel_names else channel}"
        with np.errstate(invalid="ignore"):
            found[f"mean{ending}"] = totals[:, channel] / measures.counted[:, channel]
        found[f"min{ending}"] = measures.least[:, channel]
        found[f"max{ending}"] = measures.most[:, channel]
    return found
