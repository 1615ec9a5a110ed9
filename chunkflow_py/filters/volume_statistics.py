"""Statistics of a volume, from the histograms that compute-statistics stores for each task."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.histogram import PERCENTILES, Bins, Histogram, histogram_of
from chunkflow_py.errors import ChunkError, VolumeNotFoundError
from chunkflow_py.store.task_counts import CountStore, TaskCounts, coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    """Count the intensities of *chunk* in *region*, and return histograms in a storable form.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype; each channel is counted separately.
        region: region to count; must lie inside the chunk and the mask.
        mask: (z, y, x) or (1, z, y, x); voxels where the mask is 0 are not counted (default: count
            all).
        bins: bins for floating point voxels; see `histogram_of`.
        per_section: true for one histogram for each section (plane of constant z), false for one
            histogram of the whole region.

    Raises:
        ChunkError: the voxels cannot be counted without bins, or the mask has several channels.
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
    """Return the histogram that `count_chunk` stored in *counts*."""
    bins, arrays = counts.settings["bins"], counts.arrays
    return Histogram(
        arrays["counts"].astype(np.int64),
        int(arrays["lowest"]),
        bins and Bins(*bins),
        arrays.get("moments"),
        int(arrays["not_finite"]),
    )


def _compact(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


@dataclass
class VolumeStatistics:
    """Reads the histograms that compute-statistics has stored below one URL.

    Attributes:
        url: address of the folder, or of the prefix in a bucket, that contains the histograms.
        time: time index of the tasks whose histograms are read (default: those of all tasks).
    """

    url: str
    time: int | None = None

    @cached_property
    def counts(self) -> CountStore:
        """Store with the counts of each task."""
        return CountStore(self.url, KIND)

    @cached_property
    def regions(self) -> list[Region]:
        """Regions of the chosen tasks that have counts; see `CountStore.regions`.

        Raises:
            VolumeNotFoundError: there are no counts, or no counts for the time index `time`.
        """
        found = self.counts.regions()
        chosen = [region for region in found if self.time in (None, region.time)]
        if not chosen:
            times = sorted({region.time for region in found if region.time is not None})
            there = f"the time points {times[0]} to {times[-1]}" if times else "no time points"
            msg = (
                f"the counts below {self.counts.place} have {there}, but time point {self.time} "
                "was requested; change or leave out --time"
            )
            raise VolumeNotFoundError(msg)
        return chosen

    def sections(self, start: int, stop: int) -> dict[int, tuple[Histogram, float, str]]:
        """Return the histogram, coverage (0 to 1) and dtype of each counted section, by z.

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
            The histogram, and a dictionary. It contains the arguments of `count_chunk`, ``tasks``
            (number of tasks) and ``coverage`` (fraction of the volume that was counted, 0 to 1;
            ``None`` if the bounds of the volume are unknown).

        Raises:
            VolumeNotFoundError: there are no histograms.
            VolumeError: a stored histogram is damaged.
        """
        total, about = None, dict[str, Any]()
        domains = set()
        for counts, histogram in self._read(self.regions):
            part = histogram.whole()
            total = part if total is None else total + part
            about = counts.settings
            domains.add(counts.domain)
        if total is None:
            msg = f"nothing was counted below {self.counts.place}; run compute-statistics first"
            raise ChunkError(msg)
        if len(domains) > 1:
            logger.warning(
                "the counts in %s come from tasks that read volumes with %d different bounds, so "
                "their sum may mix several volumes",
                *(self.counts.place, len(domains)),
            )
        domain = domains.pop() if len(domains) == 1 else None
        covered = None if domain is None else coverage(self.regions, domain)
        return total, about | {"tasks": len(self.regions), "coverage": covered}

    def _read(self, regions: list[Region]) -> Iterator[tuple[TaskCounts, Histogram]]:
        return ((counts, histogram_in(counts)) for counts in self.counts.read(regions))


def _section_coverage(z: int, regions: list[Region], domain: BoundingBox | None) -> float:
    if domain is None:
        return 1.0
    slab = BoundingBox((z, *domain.start[1:]), (z + 1, *domain.stop[1:]))  # type: ignore[arg-type]
    return coverage(regions, slab)


def statistics_document(
    histogram: Histogram, percentiles: Iterable[float] = PERCENTILES
) -> dict[str, Any]:
    """Return the content of a statistics file for `inference --normalize-statistics`.

    Raises:
        ChunkError: no voxel of a channel was counted.
    """
    channels = histogram.statistics(percentiles)
    for index, channel in enumerate(channels):
        if not channel["count"]:
            msg = f"no voxel of channel {index} was counted; check the mask"
            raise ChunkError(msg)
    return {"version": 1, "channels": channels}


def table(channels: list[dict[str, Any]]) -> str:
    """Format statistics as a table with one line for each channel."""
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
