"""What is known to go wrong with a new volume, or one that is there, before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.errors import AlignmentError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import driver_of, format_of_new, open_volume
from chunkflow_py.volume.engine.block_sizes import fitting_block
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import check_alignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from chunkflow_py.volume.protocol import Opening, Volume, VolumeSpec

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
    """Refuse a volume that `create_volume` would not make; the arguments are its own.

    Args:
        spec: of the level *mip*.
        url: where.
        mip: resolution level that *spec* describes.
        format: of the volume, where the address does not say it.
        dtype_known: whether dtype and channels in *spec* are those of the volume to be, or any.
        settings: of the format.

    Raises:
        VolumeError: its format is not known, only read, or cannot hold such a volume.
    """
    place = Location.parse(url)
    driver: Any = driver_of(format_of_new(place, format))
    driver.check_new(spec, place, mip, dtype_known=dtype_known, **settings)


def names_of(volume: Volume, channels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the names of channels of a volume, of those asked for; none where not all have one."""
    known = tuple(getattr(volume, "channel_names", ()))
    if len(known) != (volume.channels or 1):
        return ()
    return known if channels is None else tuple(known[channel] for channel in channels)


def names_setting(names: Sequence[str], url: str, format: str | None) -> dict[str, Any]:
    """Return the setting of `create_volume` for names of channels; only zarr has a place for them.

    Args:
        names: one a channel, or none.
        url: of the new volume.
        format: of the new volume, where the address does not say it.
    """
    is_zarr = (Location.parse(url).format or format) == "zarr"
    return {"channel_names": tuple(names)} if names and is_zarr else {}


def shape_bounds(shape: Zyx) -> BoundingBox:
    """Return the bounds of a volume of extent *shape* that begins at the origin."""
    return BoundingBox(Zyx(0, 0, 0), shape)


def checked_dtype(name: str | None, option: str) -> np.dtype[Any] | None:
    """Return the dtype called *name*.

    Raises:
        OptionError: there is none of that name, or its voxels are not real numbers.
    """
    if name is None:
        return None
    import numpy as np

    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "buif" or found.itemsize > 8:
        msg = f"{option} {name} is not a type of voxels; choose uint8, uint32, float32 or another"
        raise OptionError(msg)
    return found


def plan_blocks(
    boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox, url: str, *, fixed: bool
) -> tuple[BoundingBox, Zyx]:
    """Return bounds and block size of a new volume for tasks.

    Args:
        boxes: of the tasks, if known.
        bounds: of the volume.
        url: of the volume, for messages.
        fixed: whether the volume has to have these bounds; else it is the part that the tasks
            cover, where they lie on no grid of blocks from the start of *bounds*.
    """
    block = fitting_block(boxes, bounds)
    region = hull_of(boxes)
    if not fixed and region is not None:
        try:
            check_alignment(boxes or (), block, bounds, url)
        except AlignmentError:
            region = region.intersection(bounds)
            logger.warning(
                "%s will hold %s, the part that the tasks cover: they lie on no grid of blocks "
                "that begins at %s (zyx, voxels), where the input does",
                url, region, bounds.start,
            )  # fmt: skip
            return region, fitting_block(boxes, region)
    return bounds, block


def times_for(time: int | None, asked: int | None, line: int | None, url: str) -> int | None:
    """Return the length of the time axis of a new volume.

    Args:
        time: time index that goes to it, if any.
        asked: the length, as options say.
        line: the length of that of the line's input.
        url: of the volume, for messages.

    Raises:
        OptionError: it has no such time index.
    """
    times = asked or (None if time is None else line)
    if time is not None and time >= (times or 0):
        known = "is not known" if times is None else f"is {times}"
        msg = (
            f"time index {time} is to be written, but the number of time points of the new "
            f"volume {url} {known}; say --times {time + 1} or more"
        )
        raise OptionError(msg)
    return times


def check_level(
    error: VolumeNotFoundError, url: str, mip: int, format: str | None, opening: Opening
) -> None:
    """Refuse to make a level of a volume whose format only its files say.

    Args:
        error: what was said when the level was opened.
        url: of the volume.
        mip: the level.
        format: of the volume, where the address does not say it.
        opening: how to use it.

    Raises:
        VolumeNotFoundError: there is a volume, without such a level.
    """
    if mip == 0 or format or Location.parse(url).format:
        return
    try:
        open_volume(url, opening=opening)
    except VolumeNotFoundError:
        return  # there is no volume
    msg = (
        f"{error}; levels are made with the volume, by create-volume --max-mip, or name its "
        "format (precomputed://, zarr://) to add one"
    )
    raise VolumeNotFoundError(msg) from error


def check_added_level(
    spec: VolumeSpec, url: str, mip: int, format: str | None, opening: Opening
) -> None:
    """Refuse a further level of a volume that is there, with voxels of another size.

    Args:
        spec: of the level.
        url: of the volume.
        mip: number of the level.
        format: of the volume, where the address does not say it.
        opening: how to use it.

    Raises:
        VolumeError: names both sizes.
    """
    if mip == 0:
        return
    try:
        there = open_volume(url, format=format, opening=opening)
    except VolumeError:
        return  # there is no volume, or none that this would be a level of
    fitting = [nm * f for nm, f in zip(there.voxel_size_nm, spec.shrink(mip), strict=True)]
    if any(abs(a - b) > 1e-3 * b for a, b in zip(spec.voxel_size_nm, fitting, strict=True)):
        levels = ", ".join(map(str, there.mips))
        msg = (
            f"{url} has no mip {mip}, only {levels}; at a factor of {spec.factor} its voxels would "
            f"be of {tuple(fitting)} nm (zyx), but those to write are of {spec.voxel_size_nm} nm; "
            "choose another --mip"
        )
        raise VolumeError(msg)


def check_time_said(times: int | None, url: str) -> None:
    """Refuse several time points of which nothing says which one is written.

    Raises:
        OptionError: there are several.
    """
    if times is not None and times > 1:
        msg = (
            f"{url} has {times} time points, and neither an option nor a task says which one is "
            f"written; give --time, from 0 to {times - 1}"
        )
        raise OptionError(msg)


def check_asked(
    volume: Volume | VolumeSpec,
    url: str,
    *,
    block_size: Zyx | None,
    shard_size: Zyx | None,
    encoding: str | None,
    times: int | None,
) -> None:
    """Refuse a volume that is there, or will be, and is not as options ask for it.

    Args:
        volume: what is there.
        url: of the volume, for the message.
        block_size: as the options say, or ``None``; the same is true of what follows.
        shard_size: blocks written as one.
        encoding: compression.
        times: length of the time axis.

    Raises:
        VolumeError: names both values.
    """
    size = volume.bounds.size
    unit = getattr(volume, "write_unit", None) or getattr(volume, "shard_size", None)
    there = getattr(volume, "encoding", None)
    pairs: list[tuple[str, object, object]] = []
    if block_size is not None:
        pairs.append(("--block-size", block_size.low(size), volume.block_size.low(size)))
    if shard_size is not None:
        unit = unit or volume.block_size
        pairs.append(("--shard-size", shard_size.low(size), unit.low(size)))
    if encoding is not None and there is not None:
        pairs.append(("--encoding", encoding, there))
    if times is not None:
        pairs.append(("--times", times, volume.times or "no time axis"))
    for option, asked, found in pairs:
        if asked != found:
            msg = (
                f"{url} exists with {found}, but {option} asks for {asked}; leave {option} out, "
                "or write to another volume"
            )
            raise VolumeError(msg)
