"""Whether the voxels of a line fit into a volume, and chunks made to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkError
from chunkflow_py.volume.new_volume import names_setting

if TYPE_CHECKING:
    import numpy as np

    from chunkflow_py.core.chunk import Chunk, Kind, Voxels
    from chunkflow_py.volume.protocol import Volume, VolumeSpec


def fitted(chunk: Chunk, volume: Volume) -> Chunk:
    """Return *chunk* with the dtype of *volume*.

    Raises:
        ChunkError: that would lose more than rounding.
    """
    if not fits(chunk.dtype, chunk.kind, volume.dtype):
        msg = (
            f"chunk {chunk.bbox} is {chunk.dtype}, but {volume.url} holds {volume.dtype}; write to "
            "another volume, or convert the chunk"
        )
        raise ChunkError(msg)
    from chunkflow_py.volume.conversion import converted

    return converted(chunk, volume.dtype)


def fits(here: np.dtype[Any], kind: Kind | None, there: np.dtype[Any]) -> bool:
    """Tell whether voxels can become those of a volume with no loss but rounding."""
    import numpy as np

    widened = here.kind in "bui" and there.kind in "ui" and np.can_cast(here, there, "safe")
    quantised = here.kind == "f" and there == np.uint8 and kind in ("probability", "affinity", None)
    narrowed = here.kind == "f" and there.kind == "f"
    return here == there or widened or quantised or narrowed


def check_voxels(
    voxels: Voxels,
    converted_to: np.dtype[Any] | None,
    dtype: np.dtype[Any],
    channels: int | None,
    url: str,
) -> None:
    """Refuse a volume that cannot take what the line will make, before any of it is made.

    Args:
        voxels: what the line makes.
        converted_to: their type when they are written, if it is another.
        dtype: of the volume.
        channels: of the volume, or ``None`` without a channel axis.
        url: of the volume, for the message.

    Raises:
        ChunkError: names both.
    """
    import numpy as np

    here = np.dtype(voxels.dtype) if converted_to is None else converted_to
    if voxels.channels != (channels or 1) or not fits(here, voxels.kind, dtype):
        msg = (
            f"the line makes {voxels.channels} channels of {here}, but {url} holds "
            f"{channels or 1} of {dtype}; write to another volume, or change the line"
        )
        raise ChunkError(msg)


def named(
    voxels: Voxels | None, spec: VolumeSpec, url: str, format: str | None = None
) -> dict[str, Any]:
    """Return the setting of `create_volume` by which channels keep the names that are known.

    Args:
        voxels: that a line makes, if known.
        spec: of the new volume.
        url: of the new volume.
        format: of the new volume, where the address does not say it.
    """
    names = () if voxels is None else voxels.channel_names
    return names_setting(names if len(names) == (spec.channels or 1) else (), url, format)
