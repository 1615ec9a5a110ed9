"""Read histograms of whole sections, so that all chunks of a section get the same contrast.

A section is a plane of constant z. The histograms are stored below a URL, in one of two formats:

- histograms of compute-statistics, one file per task (`chunkflow_py.filters.volume_statistics`);
- luminance levels of igneous, ``<layer>/levels/<mip>``, one JSON object per section, named by z:
  ``{"levels": [256 counts], "patch_size": …, "num_patches": …, "coverage_ratio": …}``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.filters.contrast import clip_limits
from chunkflow_py.filters.volume_statistics import VolumeStatistics
from chunkflow_py.store import open_store
from chunkflow_py.store.task_counts import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.histogram import Histogram
    from chunkflow_py.store.store_protocol import Store

Limits = list[tuple[int, int]]  # of each channel


@dataclass
class SectionLevels:
    """Clipping limits of whole sections, from the histograms below a URL.

    Attributes:
        url: address of the folder, or of the prefix in a bucket, that contains the histograms.
        lower_clip_fraction: fraction of the counted voxels to clip at the dark end.
        upper_clip_fraction: fraction of the counted voxels to clip at the bright end.
        per_section: true if limits are computed for each section, false if one pair of limits is
            computed for all sections.
        min_coverage: smallest fraction of a section that its histogram must cover.
    """

    url: str
    lower_clip_fraction: float = 0.01
    upper_clip_fraction: float = 0.01
    per_section: bool = True
    min_coverage: float = 1.0
    _store: Store | None = field(default=None, init=False, repr=False)
    _statistics: VolumeStatistics | None = field(default=None, init=False, repr=False)
    _limits: dict[int | None, Limits] = field(default_factory=dict, init=False, repr=False)

    @property
    def place(self) -> str:
        """Canonical form of `url`: equal strings name the same folder or prefix."""
        return place_of(self.url)

    def limits_of(self, chunk: Chunk) -> list[list[tuple[int, int]]]:
        """Return the clipping limits of a chunk: for each channel, a list of pairs (lower, upper).

        The list has one pair of limits for each section of the chunk, or a single pair for all
        sections if *per_section* is false.

        Raises:
            VolumeNotFoundError: a section has no histogram.
            ChunkError: the histograms have another dtype or number of channels than the chunk, or
                cover a smaller part of a section than *min_coverage*.
            VolumeError: a stored histogram is damaged.
        """
        start, stop = chunk.bbox.start.z, chunk.bbox.stop.z
        sections = self._limits_of(start, stop, chunk.dtype)
        for z, limits in enumerate(sections, start):
            if len(limits) not in (1, chunk.channels):
                msg = (
                    f"the histograms of section {z} below {self.place} have {len(limits)} "
                    f"channels, but chunk {chunk.bbox} has {chunk.channels}; run "
                    "compute-statistics on this image"
                )
                raise ChunkError(msg)
        return [
            [limits[min(channel, len(limits) - 1)] for limits in sections]
            for channel in range(chunk.channels)
        ]

    def _limits_of(self, start: int, stop: int, dtype: np.dtype[Any]) -> list[Limits]:
        keys = list(range(start, stop)) if self.per_section else [None]
        if missing := [key for key in keys if key not in self._limits]:
            if self.per_section:
                self._add(min(z for z in missing if z is not None), stop, dtype)
            else:
                self._add_whole(dtype)
        for key in keys:
            if key not in self._limits:
                msg = (
                    f"section {key} has no histogram below {self.place}; run compute-statistics "
                    f"--statistics-path {self.place} on this section"
                )
                raise VolumeNotFoundError(msg)
        return [self._limits[key] for key in keys]

    def _add(self, start: int, stop: int, dtype: np.dtype[Any]) -> None:
        if self._statistics is None:
            with ThreadPoolExecutor(self._objects.connections, "levels") as pool:
                found = list(pool.map(self._luminance, map(str, range(start, stop))))
            for z, counts in enumerate(found, start):
                if counts is not None:
                    self._limits[z] = [self._of(counts, dtype)]
            if any(counts is not None for counts in found):
                return
            statistics = VolumeStatistics(self.url)
            with suppress(VolumeNotFoundError):  # the caller reports the missing section
                if statistics.regions:
                    self._statistics = statistics
        if self._statistics is None:
            return
        for z, (histogram, covered, counted) in self._statistics.sections(start, stop).items():
            self._check(f"section {z}", counted, dtype, covered)
            self._limits[z] = self._of_channels(histogram, dtype)

    def _add_whole(self, dtype: np.dtype[Any]) -> None:
        keys = list(self._sections())
        if keys:
            parts = [c for key in keys if (c := self._luminance(key)) is not None]
            total = np.zeros(max(map(len, parts)), np.int64)
            for counts in parts:
                total[: len(counts)] += counts
            self._limits[None] = [self._of(total, dtype)]
            return
        histogram, about = VolumeStatistics(self.url).whole()
        covered = 1.0 if about["coverage"] is None else about["coverage"]
        self._check("the volume", about["dtype"], dtype, covered)
        self._limits[None] = self._of_channels(histogram, dtype)

    def _check(self, what: str, counted: str, dtype: np.dtype[Any], covered: float) -> None:
        if counted != dtype:
            msg = (
                f"the histograms below {self.place} are of {counted} voxels, but the chunk is "
                f"{dtype}; run compute-statistics on the image that you normalise"
            )
            raise ChunkError(msg)
        # Allow for rounding in the last digits.
        if covered < self.min_coverage - 1e-12:
            msg = (
                f"the histograms below {self.place} cover {covered:.4g} of {what}, less than "
                f"--min-coverage {self.min_coverage:g}; finish compute-statistics, or use "
                f"--min-coverage {np.floor(covered * 1000) / 1000:g}"
            )
            raise ChunkError(msg)

    def _of_channels(self, histogram: Histogram, dtype: np.dtype[Any]) -> Limits:
        padded = np.zeros(histogram.lowest + histogram.counts.shape[2], np.int64)
        limits = []
        for counts in histogram.counts[:, 0]:
            padded[histogram.lowest :] = counts
            limits.append(self._of(padded, dtype))
        return limits

    def _of(self, counts: NDArray[np.int64], dtype: np.dtype[Any]) -> tuple[int, int]:
        levels = int(np.iinfo(dtype).max) + 1
        if counts[levels:].any():
            msg = (
                f"the histograms below {self.place} have {len(counts)} intensities, but the chunk "
                f"is {dtype}, which has {levels}; give the address of the histograms of this image"
            )
            raise ChunkError(msg)
        dense = np.zeros(levels, np.int64)
        dense[: len(counts)] = counts[:levels]
        return clip_limits(dense, self.lower_clip_fraction, self.upper_clip_fraction)

    # --- igneous ---------------------------------------------------------------------------------

    @property
    def _objects(self) -> Store:
        self._store = self._store or open_store(self.url)
        return self._store

    def _sections(self) -> Iterator[str]:
        return (key for key in sorted(self._objects.list()) if is_digits(key.lstrip("-")))

    def _luminance(self, key: str) -> NDArray[np.int64] | None:
        data = self._objects.get(key, DOCUMENT_BYTES)
        if data is None:
            return None
        try:
            counts = np.array(parse_json(data)["levels"])
            is_good = counts.ndim == 1 and counts.dtype.kind in "iu" and not (counts < 0).any()
        except (ValueError, KeyError, TypeError):
            is_good = False
        if not is_good:
            msg = (
                f"{self.place}/{key} does not contain luminance levels, which are JSON such as "
                '{"levels": [0, 12, …]}; compute the levels again'
            )
            raise VolumeError(msg)
        return counts.astype(np.int64)
