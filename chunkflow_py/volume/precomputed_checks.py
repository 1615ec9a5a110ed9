"""What may be wrong with a chunk of a precomputed volume: bad sections, blocks that got lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.volume.protocol import Volume

BAD_SECTIONS_FILE = "blackout_section_ids.json"


def bad_sections(url: str) -> list[int]:
    """Return the z of the sections that ``blackout_section_ids.json`` of a volume lists.

    The file holds ``{"section_ids": [17, 18]}``, in voxels of the level that is read.

    Raises:
        VolumeNotFoundError: there is no such file.
        VolumeError: it holds something else.
    """
    from chunkflow_py.volume.precomputed import read_json

    found = read_json(Location.parse(url), BAD_SECTIONS_FILE)
    if found is None:
        msg = (
            f"{url} has no file {BAD_SECTIONS_FILE}; write {{'section_ids': [z, ...]}} there, or "
            "leave out --blackout-sections"
        )
        raise VolumeNotFoundError(msg)
    sections = found.get("section_ids") if isinstance(found, dict) else None
    if not isinstance(sections, list) or not all(isinstance(z, int) for z in sections):
        msg = f"{url}/{BAD_SECTIONS_FILE} must hold {{'section_ids': [z, ...]}}, got {found}"
        raise VolumeError(msg)
    return sections


def blacken(chunk: Chunk, sections: Sequence[int]) -> Chunk:
    """Return *chunk* with the sections at these z set to 0.

    Args:
        chunk: (z, y, x) or (c, z, y, x).
        sections: global z; those outside of the chunk do not count.
    """
    first, last = chunk.bbox.start.z, chunk.bbox.stop.z
    inside = [z - first for z in sections if first <= z < last]
    if not inside:
        return chunk
    array = chunk.array.copy()
    array[..., inside, :, :] = 0
    return chunk.with_array(array)


def check_against_mip(chunk: Chunk, fine: Volume, coarse: Volume) -> None:
    """Compare *chunk* with the same place of a coarser level, which shows blocks that got lost.

    ```
    fine    |--|--|--|--|--|--|     chunk, averaged over each coarse voxel
    coarse  |-----|-----|-----|     as stored; counted from the first voxel of both volumes
    ```

    A level is made from the one before by averaging and rounding, so a difference of one grey
    value a level is in order; coarse voxels that reach out of the chunk are not compared.

    Args:
        chunk: an image, integer or float.
        fine: the volume it was read from.
        coarse: a coarser level of the same volume.

    Raises:
        VolumeError: the two disagree; says where, and by how much.
        ChunkError: the levels are not whole multiples of each other, or hold labels.
    """
    if chunk.kind == "segmentation":
        msg = f"{fine.url} is a segmentation, which --validate-mip cannot check; leave it out"
        raise ChunkError(msg)
    ratio = [c / f for c, f in zip(coarse.voxel_size_nm, fine.voxel_size_nm, strict=True)]
    factor = Zyx(*(round(r) for r in ratio))
    if min(factor) < 1 or max(abs(r - f) for r, f in zip(ratio, factor, strict=True)) > 1e-3:
        msg = (
            f"voxels of {coarse.voxel_size_nm} nm are not whole multiples of those of "
            f"{fine.voxel_size_nm} nm (zyx) in {fine.url}; choose a coarser --validate-mip"
        )
        raise ChunkError(msg)
    origin = fine.bounds.start
    low = -(-(chunk.bbox.start - origin) // factor)
    high = ((chunk.bbox.stop - origin) // factor).high(low).low(coarse.bounds.size)
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return  # no coarse voxel lies inside
    part = chunk.cut(BoundingBox(origin + low * factor, origin + high * factor))
    there = BoundingBox(coarse.bounds.start + low, coarse.bounds.start + high)
    stored = coarse.read(there).array
    mean = _block_mean(part.array, factor)
    levels = sum(f.bit_length() - 1 for f in factor)
    peak = np.abs(stored.astype(np.float64)).max()
    allowed = float(levels) if chunk.dtype.kind in "ui" else 1e-3 * float(peak)
    wrong = np.abs(mean - stored) > allowed
    if wrong.any():
        index = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        place = there.start + Zyx.of(int(i) for i in index[-3:])
        msg = (
            f"chunk {chunk.bbox} of {fine.url} does not match the level of {coarse.voxel_size_nm} "
            f"nm: {int(wrong.sum())} of {wrong.size} voxels differ, first at {place} "
            f"({''.join(AXES)}), averaged {mean[index]:.6g}, stored {stored[index]}; blocks are "
            "missing, or that level is older"
        )
        raise VolumeError(msg)


def _block_mean(array: NDArray[Any], factor: Zyx) -> NDArray[np.float64]:
    z, y, x = (n // f for n, f in zip(array.shape[-3:], factor, strict=True))
    split = (*array.shape[:-3], z, factor.z, y, factor.y, x, factor.x)
    mean: NDArray[np.float64] = array.reshape(split).mean(axis=(-5, -3, -1), dtype=np.float64)
    return mean
