"""Statistics of a volume from the histograms that its tasks have stored below a URL."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.histogram import PERCENTILES, Bins, Histogram, histogram_of
from chunkflow_py.errors import ChunkError
from chunkflow_py.store.task_counts import Counts, CountStore, coverage

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
) -> Counts:
    """Return the histograms of the part of *chunk* inside *region*, ready to be stored.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype; channels are counted by themselves.
        region: inside of the chunk and of the mask.
        mask: (z, y, x) or (1, z, y, x); voxels where it is 0 are not counted.
        bins: for floating point; see `histogram_of`.
        per_section: a histogram a section (z), or one for all.

    Raises:
        ChunkError: the voxels cannot be counted without bins, or the mask has several channels.
    """
    inside = None
    if mask is not None:
        if mask.channels != 1:
            msg = f"a mask has one channel, not {mask.channels}; choose one of them"
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
    return Counts(region, arrays, settings, chunk.domain)


def histogram_in(counts: Counts) -> Histogram:
    """Return the histogram that `count_chunk` has put into *counts*."""
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
    """What compute-statistics has stored below one URL.

    Attributes:
        url: of the folder or prefix.
    """

    url: str

    @cached_property
    def counts(self) -> CountStore:
        """Store of the counts of all tasks."""
        return CountStore(self.url, KIND)

    @cached_property
    def regions(self) -> list[Region]:
        """Where was counted; see `CountStore.regions`."""
        return self.counts.regions()

    def sections(self, start: int, stop: int) -> dict[int, tuple[Histogram, float, str]]:
        """Return histogram, covered share and dtype of each section that was counted.

        Args:
            start: the first section, voxels.
            stop: the end, exclusive.

        Raises:
            VolumeError: an object is damaged, or sections were counted together (--whole).
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
                    f"{self.counts.place} holds histograms of whole tasks, not of their sections; "
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
        """Return the sum over all tasks, and the settings and coverage that it was counted with.

        Raises:
            VolumeNotFoundError: nothing was counted.
            VolumeError: an object is damaged.
        """
        total, about = None, dict[str, Any]()
        domains = set()
        for counts, histogram in self._read(self.regions):
            part = histogram.whole()
            total = part if total is None else total + part
            about = counts.settings
            domains.add(counts.domain)
        if total is None:
            msg = f"nothing was counted below {self.counts.place}"
            raise ChunkError(msg)
        if len(domains) > 1:
            logger.warning(
                "the tasks below %s have read volumes of %d different bounds, which are added up",
                *(self.counts.place, len(domains)),
            )
        domain = domains.pop() if len(domains) == 1 else None
        covered = None if domain is None else coverage(self.regions, domain)
        return total, about | {"tasks": len(self.regions), "coverage": covered}

    def _read(self, regions: list[Region]) -> Iterator[tuple[Counts, Histogram]]:
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
        ChunkError: a channel has no voxel.
    """
    channels = histogram.statistics(percentiles)
    for index, channel in enumerate(channels):
        if not channel["count"]:
            msg = f"channel {index} has no voxel to take statistics of; check the mask"
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
