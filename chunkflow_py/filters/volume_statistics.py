"""Statistics of a volume, from the histograms that compute-statistics stores for each task."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.histogram import PERCENTILES, Bins, Histogram, histogram_of
from chunkflow_py.errors import ChunkError, VolumeNotFoundError
from chunkflow_py.store.task_counts import CountStore, TaskCounts, coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from chunkflow_py.core.chunk import Chunk

KIND = "histogram"

logger = logging.getLogger(__name__)


def count_chunk(
    chunk: Chunk,
    region: Region,
    mask: Chunk | None = None,
    bins: Bins | None = None,
    *,
    per_section: bool = True,
) -> TaskCounts:
    """Return the histograms of *chunk* in *region*, ready to be stored.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype; each channel is counted separately.
        region: region to count; must lie inside the chunk and the mask.
        mask: (z, y, x) or (1, z, y, x); voxels where the mask is 0 are not counted (default: count
            all).
        bins: bins for floating point voxels; see `histogram_of`.
        per_section: true for one histogram for each section (plane of constant z), false for one
            histogram of the whole region.

    Raises:
        ChunkError: the mask has several channels; or *bins* are missing, and the voxels are
            floating point or range over more than 65 536 values.
    """
    inside = None
    if mask is not None:
        if mask.channels != 1:
            msg = f"a mask must have one channel, but it has {mask.channels}; select one channel"
            raise ChunkError(msg)
        inside = mask.cut(region.bbox).array.reshape(region.bbox.size) != 0
    array = chunk.cut(region.bbox).array
    found = histogram_of(array, bins=bins, mask=inside, per_section=per_section)
    arrays: dict[str, Any] = {
        "counts": _compact(found.counts),
        "lowest": np.array(found.lowest),
        "not_finite": np.array(found.not_finite),
        "foreground": _foreground(array, inside) + np.array(region.bbox.start),
        "masked": np.array(mask is not None),
    }
    if found.moments is not None:
        arrays["moments"] = found.moments
    settings = {
        "dtype": str(chunk.dtype),
        "channels": chunk.channels,
        "bins": bins and list(bins),
        "per_section": per_section,
    }
    return TaskCounts(region, arrays, settings, chunk.domain)


def histogram_in(counts: TaskCounts) -> Histogram:
    """Return the histogram that `count_chunk` has put into *counts*."""
    bins, arrays = counts.settings["bins"], counts.arrays
    return Histogram(
        arrays["counts"].astype(np.int64),
        int(arrays["lowest"]),
        bins and Bins(*bins),
        arrays.get("moments"),
        int(arrays["not_finite"]),
    )


def _foreground(
    array: np.ndarray[Any, Any], inside: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    # Bounding box of the voxels other than 0, as an array [start, stop] of shape (2, 3). The array
    # is empty, of shape (0, 3), if there are no such voxels. Voxels where *inside* is false count
    # as 0.
    channels = array if array.ndim == 4 else array[None]
    box = [slice(0, size) for size in channels.shape[1:]]
    for axis in range(3):

        def is_zero(at: int, axis: int = axis) -> bool:
            plane: tuple[Any, ...] = (*box[:axis], at, *box[axis + 1 :])
            values = channels[(slice(None), *plane)]
            return not (values if inside is None else values * inside[plane]).any()

        # From both ends, because the first plane of almost every task contains other voxels.
        start, stop = box[axis].start, box[axis].stop
        while start < stop and is_zero(start):
            start += 1
        while start < stop and is_zero(stop - 1):
            stop -= 1
        if start == stop:
            return np.zeros((0, 3), np.int64)
        box[axis] = slice(start, stop)
    return np.array([[each.start for each in box], [each.stop for each in box]])


def _compact(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


@dataclass
class VolumeStatistics:
    """Reads the histograms that compute-statistics has stored below one URL.

    Attributes:
        url: address of the folder, or of the prefix in a bucket, that contains the histograms.
        time: read only histograms of tasks at this time index (default: of all tasks).
    """

    url: str
    time: int | None = None

    @cached_property
    def counts(self) -> CountStore:
        """Store that contains the counts (histograms) of each task."""
        return CountStore(self.url, KIND)

    @cached_property
    def regions(self) -> list[Region]:
        """Regions of the tasks with stored histograms; if `time` is given, only of tasks at `time`.

        Raises:
            VolumeNotFoundError: there are no stored histograms, or none for the time index `time`.
        """
        found = self.counts.regions()
        chosen = [region for region in found if self.time in (None, region.time)]
        if not chosen:
            times = sorted({region.time for region in found if region.time is not None})
            there = (
                f"time points {times[0]} to {times[-1]}"
                if times
                else "a volume without time points"
            )
            msg = (
                f"the histograms below {self.counts.place} are of {there}, but time point "
                f"{self.time} was requested; change or leave out --time"
            )
            raise VolumeNotFoundError(msg)
        return chosen

    def sections(self, start: int, stop: int) -> dict[int, tuple[Histogram, float, str]]:
        """Return a dictionary from z to the histogram, coverage and dtype of each counted section.

        A section is a plane of constant z. The coverage is the fraction of the section that was
        counted, from 0 to 1.

        Args:
            start: z of the first section.
            stop: z of the last section plus 1.

        Raises:
            VolumeError: a stored histogram is damaged.
            ChunkError: a task has stored one histogram for all of its sections.
        """
        touched = [
            region
            for region in self.regions
            if region.bbox.start.z < stop and region.bbox.stop.z > start
        ]
        sums: dict[int, Histogram] = {}
        domain, dtype = None, ""
        for counts, histogram in self._read(touched):
            if not counts.settings["per_section"]:
                msg = (
                    f"{self.counts.place} has one histogram for each task, not for each section; "
                    "count again with compute-statistics --per-section"
                )
                raise ChunkError(msg)
            box = counts.region.bbox
            for z in range(max(start, box.start.z), min(stop, box.stop.z)):
                section = histogram.section(z - box.start.z)
                sums[z] = sums[z] + section if z in sums else section
            domain, dtype = counts.domain, counts.settings["dtype"]
        return {z: (sums[z], _section_coverage(z, touched, domain), dtype) for z in sums}

    def whole(self) -> tuple[Histogram, dict[str, Any]]:
        """Return the histogram of all tasks together, and how the voxels were counted.

        Returns:
            The histogram, and a dictionary with the settings that `count_chunk` stored and these
            entries:

            - ``tasks``: number of tasks.
            - ``coverage``: fraction of the volume that was counted, 0 to 1. The value is ``None``
              if the bounds of the volume are unknown.
            - ``foreground``: bounding box of the counted voxels other than 0, as text. The value
              is ``None`` if there are no such voxels, or if an older version of chunkflow_py
              stored the histograms.
            - ``masked``: whether only voxels inside a mask were counted.

        Raises:
            VolumeNotFoundError: there are no histograms.
            VolumeError: a stored histogram is damaged.
        """
        total, about = None, dict[str, Any]()
        domains = set()
        corners: list[np.ndarray[Any, Any] | None] = []
        is_masked = False
        for counts, histogram in self._read(self.regions):
            corners.append(counts.arrays.get("foreground"))
            is_masked = is_masked or bool(counts.arrays.get("masked", False))
            part = histogram.whole()
            total = part if total is None else total + part
            about = counts.settings
            domains.add(counts.domain)
        if total is None:
            msg = f"nothing was counted below {self.counts.place}; run compute-statistics first"
            raise ChunkError(msg)
        if len(domains) > 1:
            logger.warning(
                "the histograms below %s come from tasks that read volumes with %d different "
                "bounds; if these are different volumes, use one --statistics-path for each",
                *(self.counts.place, len(domains)),
            )
        domain = domains.pop() if len(domains) == 1 else None
        covered = None if domain is None else coverage(self.regions, domain)
        return total, about | {
            "tasks": len(self.regions),
            "coverage": covered,
            "foreground": _hull(corners),
            "masked": is_masked,
        }

    def foreground(
        self, histogram: Histogram, about: Mapping[str, Any]
    ) -> tuple[Histogram, BoundingBox]:
        """Return the histogram of the box that contains all voxels other than 0, and this box.

        All voxels outside of the box are 0, so their number is subtracted from the count of zeros.
        If only voxels inside a mask were counted, *histogram* is returned unchanged.

        Args:
            histogram: histogram of all tasks together, as `whole` returns it.
            about: the dictionary that `whole` returns.

        Raises:
            ChunkError: the box is not known; the histograms are of several time points; the tasks
                did not count all voxels of the box; or voxels were counted in bins.
        """
        if about["foreground"] is None:
            msg = (
                f"the histograms below {self.counts.place} do not include the bounding box of all "
                "voxels other than 0: all voxels are 0, or an older version of chunkflow_py stored "
                "the histograms; run compute-statistics again, or leave --foreground out"
            )
            raise ChunkError(msg)
        box = BoundingBox.parse(about["foreground"])
        times = {region.time for region in self.regions}
        if len(times) > 1:
            msg = (
                f"the histograms below {self.counts.place} are of {len(times)} time points, whose "
                "voxels other than 0 may lie in different boxes; choose one time point with --time"
            )
            raise ChunkError(msg)
        if about["masked"]:
            return histogram, box
        outside = sum(region.bbox.voxels for region in self.regions) - box.voxels
        roi = f"--roi-start {_joined(box.start)} --roi-size {_joined(box.size)}"
        if coverage(self.regions, box) < 1:
            msg = (
                f"all voxels other than 0 are inside the box {box}, but some voxels of this box "
                f"were not counted; run compute-statistics for all tasks of generate-tasks {roi}"
            )
            raise ChunkError(msg)
        if outside and histogram.bins is not None:
            msg = (
                f"the voxels were counted in bins, and a bin does not count zeros separately, so "
                f"the zeros outside of {box} cannot be left out of the statistics; count only this "
                f"box, with generate-tasks {roi}"
            )
            raise ChunkError(msg)
        return histogram.without_zeros(outside) if outside else histogram, box

    def _read(self, regions: list[Region]) -> Iterator[tuple[TaskCounts, Histogram]]:
        return ((counts, histogram_in(counts)) for counts in self.counts.read(regions))


def _joined(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _hull(corners: list[np.ndarray[Any, Any] | None]) -> str | None:
    known = [each for each in corners if each is not None and len(each)]
    if not known or any(each is None for each in corners):
        return None
    start, stop = (np.array(rows) for rows in zip(*known, strict=True))
    low, high = start.min(axis=0).tolist(), stop.max(axis=0).tolist()
    return str(BoundingBox(Zyx.of(low), Zyx.of(high)))


def _section_coverage(z: int, regions: list[Region], domain: BoundingBox | None) -> float:
    if domain is None:
        return 1.0
    slab = BoundingBox((z, *domain.start[1:]), (z + 1, *domain.stop[1:]))  # type: ignore[arg-type]
    return coverage(regions, slab)


def statistics_document(
    histogram: Histogram,
    percentiles: Iterable[float] = PERCENTILES,
    foreground: BoundingBox | None = None,
) -> dict[str, Any]:
    """Return the statistics of each channel, as a dictionary to be written as a JSON file.

    The option `--normalize-statistics` of `inference` reads this file.

    Raises:
        ChunkError: no voxel of a channel was counted.
    """
    channels = histogram.statistics(percentiles)
    for index, channel in enumerate(channels):
        if not channel["count"]:
            msg = f"no voxel of channel {index} was counted; check the mask"
            raise ChunkError(msg)
    document = {"version": 1, "channels": channels}
    return document if foreground is None else document | {"foreground": str(foreground)}


def table(channels: list[dict[str, Any]]) -> str:
    """Return the statistics of channels as a text table with one line for each channel."""
    names = ("1", "50", "99")
    heads = ("channel", "voxels", "mean", "std", "min", *(f"{p} %" for p in names), "max")
    lines = ["".join(f"{head:>12}" for head in heads)]
    for index, found in enumerate(channels):
        cells: list[Any] = [index, found["count"]]
        if found["count"]:
            some = [found["percentiles"].get(name) for name in names]
            cells += [found["mean"], found["std"], found["min"], *some, found["max"]]
        lines.append("".join(f"{_cell(cell):>12}" for cell in cells))
    return "\n".join(lines)


def _cell(cell: float | None) -> str:
    if cell is None:
        return "-"
    return str(cell) if isinstance(cell, int) else f"{cell:.6g}"
