"""Checks of loaded chunks: set bad sections to 0, and compare chunks with a coarser level.

The loader prepares each check before the first task. It then calls the check with each chunk, the
volume from which the chunk was read, and the time index. The check returns the chunk for the next
check.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location, level_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.protocol import Volume, VolumeOptions

BAD_SECTIONS_FILE = "blackout_section_ids.json"


class Check(Protocol):
    """A check of loaded chunks; the loader calls the check with every chunk."""

    def prepare(self) -> None:
        """Raise an error before the first task if the check cannot be made."""

    def __call__(self, chunk: Chunk, volume: Volume, time: int | None = None, /) -> Chunk:
        """Return the chunk for the next check; *time* is the time index of the chunk."""


@dataclass
class Blackout:
    """Sets the bad sections of each loaded chunk to 0; the list of bad sections is read once.

    Attributes:
        url: address of the volume whose file ``blackout_section_ids.json`` lists the bad sections.
        access: credentials and options of the store.
    """

    url: str
    access: Access = field(default_factory=Access)

    @cached_property
    def sections(self) -> list[int]:
        """The global z positions of the bad sections, in voxels."""
        return bad_sections(self.url, self.access)

    def prepare(self) -> None:
        """Read the list of bad sections."""
        _ = self.sections

    def __call__(self, chunk: Chunk, _: Volume, __: int | None = None, /) -> Chunk:
        """Return *chunk* with its bad sections set to 0."""
        return blacken(chunk, self.sections)


@dataclass
class Validation:
    """Compares each chunk with a coarser level of the same volume.

    Attributes:
        url: address of the volume.
        mip: number of the coarser level.
        format: format of the volume, if the address does not name it.
        opening: options for reading and writing the volume.
        time: time index to compare, if the loader passes no time index.
    """

    url: str
    mip: int
    format: str | None = None
    opening: VolumeOptions | None = None
    time: int | None = None

    @property
    def origin(self) -> str:
        """Canonical address of the coarser level; the pipeline must not write to it."""
        return level_name(Location.parse(self.url), self.mip)

    @cached_property
    def coarse(self) -> Volume:
        """The coarser level, opened on first use."""
        return open_volume(self.url, self.mip, format=self.format, opening=self.opening)

    def prepare(self) -> None:
        """Open the coarser level."""
        _ = self.coarse

    def __call__(self, chunk: Chunk, volume: Volume, read: int | None = None, /) -> Chunk:
        """Return *chunk* unchanged, or raise an error if *chunk* does not match the coarser level.

        Args:
            chunk: chunk to compare.
            volume: volume from which *chunk* was read.
            read: time index of *chunk* (default: the attribute `time`).
        """
        check_against_mip(chunk, volume, self.coarse, self.time if read is None else read)
        return chunk


def bad_sections(url: str, access: Access = Access()) -> list[int]:  # noqa: B008  (frozen)
    """Return the z positions that ``blackout_section_ids.json`` of a volume lists.

    Example of the content: ``{"section_ids": [17, 18]}``. The positions are in voxels of the level
    that is read.

    Raises:
        VolumeNotFoundError: the file does not exist.
        VolumeError: the file does not contain a list of integers with the name ``section_ids``.
    """
    store = open_store(Location.parse(url).store_url, access)
    content = store.get(BAD_SECTIONS_FILE, DOCUMENT_BYTES)
    if content is None:
        msg = (
            f'{url} has no file {BAD_SECTIONS_FILE}; create it with {{"section_ids": [z, ...]}}, '
            "or leave out --blackout-sections"
        )
        raise VolumeNotFoundError(msg)
    try:
        document: Any = parse_json(content)
    except ValueError:
        document = content[:80]
    sections = document.get("section_ids") if isinstance(document, dict) else None
    if not isinstance(sections, list) or not all(type(z) is int for z in sections):
        msg = (
            f'{url}/{BAD_SECTIONS_FILE} must contain {{"section_ids": [z, ...]}}, but contains '
            f"{document}; correct the file"
        )
        raise VolumeError(msg)
    return sections


def blacken(chunk: Chunk, sections: Sequence[int]) -> Chunk:
    """Return *chunk* with the given sections set to 0.

    Args:
        chunk: (z, y, x) or (c, z, y, x).
        sections: global z positions of the sections; positions outside the chunk are ignored.
    """
    first, last = chunk.bbox.start.z, chunk.bbox.stop.z
    inside = [z - first for z in sections if first <= z < last]
    if not inside:
        return chunk
    array = chunk.array.copy()
    array[..., inside, :, :] = 0
    return chunk.with_array(array)


def check_against_mip(chunk: Chunk, fine: Volume, coarse: Volume, time: int | None = None) -> None:
    """Compare *chunk* with the same box of a coarser level, to detect lost blocks.

    ```
    fine    |--|--|--|--|--|--|     chunk, averaged over each coarse voxel
    coarse  |-----|-----|-----|     as stored; for downsampling factor f, voxel k covers the fine
                                    voxels k·f to (k+1)·f - 1
    ```

    Integer intensities may differ by 1 for each halving of an axis, because each level is the
    rounded average of the next finer level. Floats may differ by 0.1 % of the largest absolute
    value that the coarser level has in this box. Coarse voxels that extend beyond the chunk are not
    compared.

    Args:
        chunk: an image, integer or float.
        fine: volume from which *chunk* was read.
        coarse: a coarser level of the same volume.
        time: time index of the chunk.

    Raises:
        VolumeError: chunk and coarser level differ; the message gives a position and both values.
        ChunkError: the voxel size of *coarse* is not an integer multiple of the voxel size of
            *fine*, or the chunk is a segmentation.
    """
    if chunk.kind == "segmentation":
        msg = f"{fine.url} is a segmentation, which cannot be averaged; leave out --validate-mip"
        raise ChunkError(msg)
    ratio = [c / f for c, f in zip(coarse.voxel_size_nm, fine.voxel_size_nm, strict=True)]
    factor = Zyx(*(round(r) for r in ratio))
    if min(factor) < 1 or max(abs(r - f) for r, f in zip(ratio, factor, strict=True)) > 1e-3:
        msg = (
            f"the voxel size of the coarser level, {coarse.voxel_size_nm} nm, is not an integer "
            f"multiple of {fine.voxel_size_nm} nm (zyx), the voxel size of the level to read from "
            f"{fine.url}; choose another --validate-mip"
        )
        raise ChunkError(msg)
    low = (-(-chunk.bbox.start // factor)).high(coarse.bounds.start)
    high = (chunk.bbox.stop // factor).low(coarse.bounds.stop)
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return  # the chunk contains no whole coarse voxel
    part = chunk.cut(BoundingBox(low * factor, high * factor))
    there = BoundingBox(low, high)
    stored = coarse.read(there, time=time).array
    mean = _block_mean(part.array, factor)
    levels = sum(f.bit_length() - 1 for f in factor)
    peak = np.abs(stored.astype(np.float64)).max()
    allowed = float(levels) if chunk.dtype.kind in "ui" else 1e-3 * float(peak)
    wrong = np.abs(mean - stored) > allowed
    if wrong.any():
        index = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        place = there.start + Zyx.of(int(i) for i in index[-3:])
        msg = (
            f"chunk {chunk.bbox} of {fine.url} does not match the coarser level with voxels of "
            f"{coarse.voxel_size_nm} nm: {int(wrong.sum())} of {wrong.size} coarse voxels differ, "
            f"the first at {place} ({''.join(AXES)}), where the average of the chunk is "
            f"{mean[index]:.6g}, but {stored[index]} is stored; if blocks of the volume are lost, "
            "restore them; if the coarser level is outdated, write this level again"
        )
        raise VolumeError(msg)


def _block_mean(array: NDArray[Any], factor: Zyx) -> NDArray[np.float64]:
    z, y, x = (n // f for n, f in zip(array.shape[-3:], factor, strict=True))
    split = (*array.shape[:-3], z, factor.z, y, factor.y, x, factor.x)
    mean: NDArray[np.float64] = array.reshape(split).mean(axis=(-5, -3, -1), dtype=np.float64)
    return mean
