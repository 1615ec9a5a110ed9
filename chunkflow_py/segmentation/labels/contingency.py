"""Contingency tables: how many voxels each segment shares with each ground-truth object (body).

All scores are computed from contingency tables. The tables of the parts of a volume add up to the
table of the whole volume. The bytes of the sum do not depend on how the volume is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError
from chunkflow_py.store.task_counts import CountStore, TaskCounts, coverage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox, Region

KIND = "contingency table"
_SMALL = 2**22  # largest number of cells of a dense table that is always preferred to sorting


@dataclass(frozen=True)
class Contingency:
    """A sparse contingency table: a row for each pair of a segment and a body that overlap.

    A body is an object of the ground truth. The rows are sorted by the label of the segment, then
    by the label of the body.

    Attributes:
        segments: (n,) uint64, labels of the segmentation; a negative label is stored modulo 2**64.
        bodies: (n,) uint64, labels of the ground truth.
        voxels: (n,) int64, number of voxels with both labels.
    """

    segments: NDArray[np.uint64]
    bodies: NDArray[np.uint64]
    voxels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows: overlapping pairs of a segment and a body."""
        return len(self.voxels)

    def where(self, kept: NDArray[np.bool_]) -> Contingency:
        """Return a table of the rows for which the mask *kept*, (n,) bool, is true."""
        return Contingency(self.segments[kept], self.bodies[kept], self.voxels[kept])

    def renamed(self, segments: NDArray[np.uint64]) -> Contingency:
        """Return the table with new segment labels: *segments* has the new label of each row.

        Rows that then have equal labels of segment and body are added up.
        """
        return _grouped(segments, self.bodies, self.voxels)

    def without(self, segments: Iterable[int] = (), bodies: Iterable[int] = ()) -> Contingency:
        """Return a table without the rows that have one of these segment labels or body labels."""
        kept = ~(np.isin(self.segments, _labels(segments)) | np.isin(self.bodies, _labels(bodies)))
        return self.where(kept)


def contingency(segmentation: NDArray[Any], groundtruth: NDArray[Any]) -> Contingency:
    """Return the contingency table of two volumes.

    Neighbours along x mostly have equal labels, so the function sorts runs of equal voxels
    instead of single voxels.

    Args:
        segmentation: integer or boolean labels, any shape.
        groundtruth: labels of the same shape.

    Raises:
        ChunkError: the shapes differ, or the voxels are not labels.
    """
    if segmentation.shape != groundtruth.shape:
        msg = (
            f"segmentation has shape {segmentation.shape}, but ground truth has "
            f"{groundtruth.shape} (voxels); cut both to the same box"
        )
        raise ChunkError(msg)
    for name, array in (("segmentation", segmentation), ("ground truth", groundtruth)):
        if array.dtype.kind not in "biu":
            msg = f"{name} has voxels of type {array.dtype}; labels must be integers"
            raise ChunkError(msg)
    ours, truth = segmentation.ravel(), groundtruth.ravel()
    if not ours.size:
        return _grouped(_unsigned(ours), _unsigned(truth), np.zeros(0, np.int64))
    begins = ours[1:] != ours[:-1]
    begins |= truth[1:] != truth[:-1]
    starts = np.concatenate([[0], np.flatnonzero(begins) + 1])
    lengths = np.diff(starts, append=ours.size)
    return _grouped(_unsigned(ours[starts]), _unsigned(truth[starts]), lengths)


def joined(tables: Iterable[Contingency]) -> Contingency:
    """Return the sum of *tables*: rows for the same pair of labels are added up.

    The function needs about twice the memory of the sum.

    Args:
        tables: tables of parts of a volume; no two parts have a voxel in common.
    """
    waiting: list[Contingency] = []
    total = 0
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) > max(2 * total, 2**20):
            waiting = [_sum(waiting)]
            total = len(waiting[0])
    return _sum(waiting)


def put_table(
    store: CountStore, region: Region, table: Contingency, domain: BoundingBox | None
) -> Any:
    """Store the contingency table of one task; return a record of the stored file.

    Args:
        store: store of the tables.
        region: region of the task.
        table: contingency table of the task.
        domain: bounds of the volume; ``None`` if unknown.
    """
    arrays = {"segments": table.segments, "bodies": table.bodies, "voxels": table.voxels}
    return store.put(TaskCounts(region, arrays, {}, domain))


def read_tables(url: str) -> tuple[Contingency, dict[str, Any]]:
    """Return the sum of all contingency tables below *url*, and how much of the volume they cover.

    Returns:
        The sum, and a dictionary: ``tasks`` is the number of tasks; ``coverage`` is the fraction of
        the volume that these tasks cover, 0 to 1, or ``None`` if the bounds of the volume are
        unknown.

    Raises:
        VolumeNotFoundError: there are no tables below *url*.
        VolumeError: a table is damaged.
        GeometryError: the boxes of two tables overlap.
    """
    store = CountStore(url, KIND)
    regions = store.regions()
    domains = set()

    def tables() -> Iterable[Contingency]:
        for counts in store.read(regions):
            domains.add(counts.domain)
            arrays = counts.arrays
            yield Contingency(arrays["segments"], arrays["bodies"], arrays["voxels"])

    total = joined(tables())
    domain = domains.pop() if len(domains) == 1 else None
    covered = None if domain is None else coverage(regions, domain)
    return total, {"tasks": len(regions), "coverage": covered}


def _sum(tables: list[Contingency]) -> Contingency:
    if len(tables) == 1:
        return tables[0]
    return _grouped(
        np.concatenate([table.segments for table in tables] or [np.zeros(0, np.uint64)]),
        np.concatenate([table.bodies for table in tables] or [np.zeros(0, np.uint64)]),
        np.concatenate([table.voxels for table in tables] or [np.zeros(0, np.int64)]),
    )


def _grouped(
    ours: NDArray[np.uint64], truth: NDArray[np.uint64], voxels: NDArray[np.int64]
) -> Contingency:
    (segments, first), (bodies, second) = _dense(ours), _dense(truth)
    codes = first * np.int64(len(bodies)) + second
    cells = len(segments) * len(bodies)
    if cells <= max(_SMALL, 2 * len(codes)) and int(voxels.sum()) < 2**53:
        # Sums in floating point are exact up to 2**53.
        filled = np.bincount(codes, weights=voxels, minlength=cells).astype(np.int64)
        pairs = np.flatnonzero(filled)
        sums = filled[pairs]
    else:
        order = np.argsort(codes)
        codes = codes[order]
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
        pairs, sums = codes[starts], np.add.reduceat(voxels[order], starts)
    width = max(1, len(bodies))
    return Contingency(segments[pairs // width], bodies[pairs % width], sums)


def _dense(labels: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    highest = int(labels.max(initial=0))
    # A lookup table is faster than sorting, as long as it is not much larger than the array.
    if highest <= max(_SMALL, 2 * len(labels)):
        seen = np.zeros(highest + 1, bool)
        seen[labels] = True
        if not len(labels):
            seen[:] = False
        number = np.cumsum(seen) - 1
        return np.flatnonzero(seen).astype(np.uint64), number[labels]
    values, dense = np.unique(labels, return_inverse=True)
    return values, dense


def _unsigned(labels: NDArray[Any]) -> NDArray[np.uint64]:
    signed = labels.dtype.kind == "i"
    return labels.astype(np.int64).view(np.uint64) if signed else labels.astype(np.uint64)


def _labels(values: Iterable[int]) -> NDArray[np.uint64]:
    return np.array([value % 2**64 for value in values], np.uint64)
