"""Checks of a volume before anything is written to it.

| question                                               | checked by                           |
|--------------------------------------------------------|--------------------------------------|
| can the format store such a volume?                    | `check_new`, `check_levels`          |
| does an existing volume have the requested properties? | `check_asked`, `check_added_level`   |
| can the volume store the voxels?                       | `check_voxels`, `fitted`             |
| which time index and which level are written?          | `check_time_chosen`, `check_level`   |
| may this user write, and does the disk have space?     | `check_leave_to_write`, `check_room` |

`chunkflow_py.volume.write_unit_check` checks that tasks do not share write units, and
`chunkflow_py.volume.task_box` checks that a task writes only to its own box.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import ChunkError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import driver_of, format_of_new, open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import coarser

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from chunkflow_py.core.chunk import Chunk, Kind, Voxels
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.protocol import Volume, VolumeOptions, VolumeSpec

logger = logging.getLogger(__name__)


def check_new(
    spec: VolumeSpec,
    url: str,
    mip: int = 0,
    *,
    format: str | None = None,
    dtype_known: bool = True,
    **settings: Any,
) -> None:
    """Raise the errors that `create_volume` would raise, but create nothing.

    Args:
        spec: description of level *mip*.
        url: address of the volume.
        mip: resolution level that *spec* describes.
        format: format of the volume, if the address does not name it.
        dtype_known: whether dtype and channels of *spec* are known; if false, they are placeholders
            and are not checked.
        settings: settings of the format, as for `create_volume`.

    Raises:
        VolumeError: the format is unknown, can only be read, or cannot store such a volume.
    """
    place = Location.parse(url)
    driver: Any = driver_of(format_of_new(place, format))
    driver.check_new(spec, place, mip, dtype_known=dtype_known, **settings)


def check_asked(
    volume: Volume | VolumeSpec,
    url: str,
    *,
    block_size: Zyx | None,
    shard_size: Zyx | None,
    encoding: str | None,
    times: int | None,
) -> None:
    """Refuse a volume that does not have the requested properties.

    The volume exists, or an earlier operator of the pipeline will create it.

    Args:
        volume: the existing volume, or the description of the volume that will be created.
        url: address of the volume, for messages.
        block_size: requested extent of a block, voxels, zyx, or ``None`` for any extent.
        shard_size: requested extent of a shard, voxels, zyx, or ``None`` for any extent.
        encoding: requested compression, or ``None`` for any compression.
        times: requested length of the time axis, or ``None`` for any length.

    Raises:
        VolumeError: a property differs; the message gives both values.
    """
    size = volume.bounds.size
    unit = getattr(volume, "write_unit", None) or getattr(volume, "shard_size", None)
    there = getattr(volume, "encoding", None)
    # option, requested value, existing value, words before and after the existing value
    pairs: list[tuple[str, object, object, str, str]] = []
    if block_size is not None:
        existing = volume.block_size.low(size)
        pairs.append(("--block-size", block_size.low(size), existing, "block size ", ""))
    if shard_size is not None:
        unit = unit or volume.block_size
        pairs.append(("--shard-size", shard_size.low(size), unit.low(size), "shard size ", ""))
    if encoding is not None and there is not None:
        pairs.append(("--encoding", encoding, there, "encoding ", ""))
    if times is not None and volume.times:
        pairs.append(("--times", times, volume.times, "", " time points"))
    elif times is not None:
        pairs.append(("--times", times, "no time axis", "", ""))
    for option, asked, found, before, after in pairs:
        if asked != found:
            msg = (
                f"{option} is {asked}, but {url} has {before}{found}{after}; leave "
                f"out {option}, or write to another volume"
            )
            raise VolumeError(msg)


def check_voxels(
    voxels: Voxels,
    converted_to: np.dtype[Any] | None,
    dtype: np.dtype[Any],
    channels: int | None,
    url: str,
) -> None:
    """Refuse a volume with a dtype or channels that do not fit the output of the pipeline.

    Args:
        voxels: properties of the voxels that the pipeline makes.
        converted_to: dtype to which the voxels are converted before they are written, or ``None``
            if they are not converted.
        dtype: dtype of the voxels of the volume.
        channels: number of channels of the volume, or ``None`` without a channel axis.
        url: address of the volume, for messages.

    Raises:
        ChunkError: the dtype or the number of channels does not match; the message gives the values
            of the pipeline and of the volume.
    """
    import numpy as np

    here = np.dtype(voxels.dtype) if converted_to is None else converted_to
    if voxels.channels != (channels or 1) or not fits(here, voxels.kind, dtype):
        msg = (
            f"the pipeline makes {voxels.channels} channels of {here}, but {url} holds "
            f"{channels or 1} channels of {dtype}; write to another volume, or change the pipeline"
        )
        raise ChunkError(msg)


def fits(here: np.dtype[Any], kind: Kind | None, there: np.dtype[Any]) -> bool:
    """Return whether a conversion from dtype *here* to *there* loses nothing except by rounding.

    Args:
        here: present dtype of the voxels.
        kind: kind of the voxels, or ``None`` if unknown. Floats of the kinds ``probability`` and
            ``affinity``, or of unknown kind, fit into uint8; other floats do not.
        there: dtype after the conversion.
    """
    import numpy as np

    widened = here.kind in "bui" and there.kind in "ui" and np.can_cast(here, there, "safe")
    quantised = here.kind == "f" and there == np.uint8 and kind in ("probability", "affinity", None)
    narrowed = here.kind == "f" and there.kind == "f"
    return here == there or widened or quantised or narrowed


def fitted(chunk: Chunk, volume: Volume) -> Chunk:
    """Return *chunk* with the dtype of *volume*.

    Raises:
        ChunkError: the conversion would change values by more than rounding.
    """
    if not fits(chunk.dtype, chunk.kind, volume.dtype):
        msg = (
            f"chunk {chunk.bbox} has the dtype {chunk.dtype}, but {volume.url} has the dtype "
            f"{volume.dtype}; write to another volume, or convert the chunk"
        )
        raise ChunkError(msg)
    from chunkflow_py.volume.conversion import converted

    return converted(chunk, volume.dtype)


def check_time_chosen(times: int | None, url: str) -> None:
    """Refuse a volume of several time points, if neither an option nor a task selects a time index.

    Raises:
        OptionError: the volume has several time points.
    """
    if times is not None and times > 1:
        msg = (
            f"{url} has {times} time points, but neither an option nor the task selects the time "
            f"index to write; give --time, from 0 to {times - 1}"
        )
        raise OptionError(msg)


def check_leave_to_write(place: Location) -> None:
    """Refuse a location that this user cannot write to; buckets are not checked.

    Raises:
        VolumeError: the location is on a web server, or in a folder that is read-only for this
            user.
    """
    if place.protocol in ("http", "https"):
        msg = (
            f"cannot write {place}: web servers can only be read; write to a folder or a bucket "
            "such as s3://bucket/em or gs://bucket/em"
        )
        raise VolumeError(msg)
    if not place.is_local:
        return
    folder = _existing(place.folder)
    if not folder.is_dir():
        if folder == place.folder:
            folder = folder.parent  # a file is replaced by one that is made beside it
        else:
            msg = f"cannot write {place}: {folder} is a file, not a folder; choose another path"
            raise VolumeError(msg)
    if not os.access(
        folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        msg = (
            f"cannot write {place}: folder {folder} is read-only for this user; change its "
            "permissions or write to another folder"
        )
        raise VolumeError(msg)


def check_room(place: Location, block_bytes: int, total_bytes: int) -> None:
    """Refuse a disk without space for one block; warn if the whole output may not fit.

    Args:
        place: location of the volume.
        block_bytes: bytes of one block before compression.
        total_bytes: bytes of the whole output before compression.

    Raises:
        VolumeError: there is no space for one block.
    """
    if not place.is_local:
        return
    free = shutil.disk_usage(_existing(place.folder)).free
    if free < block_bytes:
        msg = (
            f"cannot write {place}: the disk has {free} bytes left, but one block takes "
            f"{block_bytes} bytes; free some space, or write to another disk"
        )
        raise VolumeError(msg)
    if free < total_bytes:
        logger.warning(
            "%s may not fit on its disk: the tasks write %s before compression, but %s are free",
            place, describe_bytes(total_bytes), describe_bytes(free),
        )  # fmt: skip


def check_level(
    error: VolumeNotFoundError, url: str, mip: int, format: str | None, opening: VolumeOptions
) -> None:
    """Refuse to add a level to an existing volume whose format was not given.

    The format can be given by *format* or in the address.

    Args:
        error: error that was raised when the level was opened.
        url: address of the volume.
        mip: number of the level.
        format: format of the volume; ``None`` if not given.
        opening: options for reading and writing the volume.

    Raises:
        VolumeNotFoundError: the format was not given, and the volume exists, but not the level.
    """
    if mip == 0 or format or Location.parse(url).format:
        return
    try:
        open_volume(url, opening=opening)
    except VolumeNotFoundError:
        return  # there is no volume
    msg = (
        f"{error}; create the volume with all levels (create-volume --max-mip), or, to add this "
        "level, give the address with its format (precomputed:// or zarr://)"
    )
    raise VolumeNotFoundError(msg) from error


def check_added_level(
    spec: VolumeSpec, url: str, mip: int, format: str | None, opening: VolumeOptions
) -> None:
    """Refuse to add a level whose voxel size does not follow from the existing levels.

    Args:
        spec: description of the level to add.
        url: address of the volume.
        mip: number of the level to add.
        format: format of the volume, if the address does not name it.
        opening: options for reading and writing the volume.

    Raises:
        VolumeError: the voxel size differs from the expected voxel size; the message gives both.
    """
    if mip == 0:
        return
    try:
        there = open_volume(url, format=format, opening=opening)
    except VolumeError:
        return  # there is no volume to add a level to
    expected_nm = [nm * f for nm, f in zip(there.voxel_size_nm, spec.shrink(mip), strict=True)]
    if any(abs(a - b) > 1e-3 * b for a, b in zip(spec.voxel_size_nm, expected_nm, strict=True)):
        levels = ", ".join(map(str, there.mips))
        msg = (
            f"{url} has no mip {mip}, only mip {levels}; with a factor of {spec.factor} per level, "
            f"the voxel size of mip {mip} would be {tuple(expected_nm)} nm (zyx), but the voxels "
            f"to write have the size {spec.voxel_size_nm} nm; choose another --mip"
        )
        raise VolumeError(msg)


def check_levels(spec: VolumeSpec, mip: int, url: str, *, first: int | None = None) -> None:
    """Refuse levels that are not smaller than the next finer level.

    Args:
        spec: description of level *mip*.
        mip: number of the level.
        url: address of the volume, for messages.
        first: the finest level to create (default: *mip*).

    Raises:
        VolumeError: a level is not smaller than the next finer level; the message names the
            coarsest level that is possible.
    """
    top = max(mip, spec.max_mip)
    steps = [spec.step(level) for level in range(mip if first is None else first, top)]
    if (1, 1, 1) in steps:
        msg = (
            f"cannot create {url} with levels up to mip {top} at a factor of 1, 1, 1 (zyx), "
            "because all levels would be equal; choose a factor such as 2, 2, 2, or only one level"
        )
        raise VolumeError(msg)
    if spec.max_mip <= mip:
        return
    last, size = _last_level(spec, mip)
    if spec.max_mip > last:
        msg = (
            f"cannot create {url} with levels up to mip {spec.max_mip}: mip {last} has only "
            f"{size} voxels (zyx), and with a factor of {spec.step(last)} no coarser level would "
            f"have fewer voxels; choose at most --max-mip {last}"
        )
        raise VolumeError(msg)


def _last_level(spec: VolumeSpec, mip: int) -> tuple[int, Zyx]:
    """Return number and extent of the coarsest level that is smaller than the next finer level."""
    boxes = [spec.bounds]
    for level in count(mip):
        boxes.append(coarser(boxes[-1], spec.step(level)))
        if boxes[-1] == boxes[-2] and level >= len(spec.first_factors):
            break
    smallest = boxes[-1].size
    return mip + [box.size for box in boxes].index(smallest), smallest


def _existing(path: Path) -> Path:
    """Return *path*, or its nearest existing parent."""
    for each in (path, *path.parents):
        with suppress(PermissionError):  # in a folder that this user may not enter
            if each.exists():
                return each
    return path
