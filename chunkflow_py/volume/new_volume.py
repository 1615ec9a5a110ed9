"""What is known to go wrong with a new volume, or one that is there, before anything is written."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from chunkflow_py.geometry import Zyx
    from chunkflow_py.volume.protocol import Opening, Volume, VolumeSpec

_MODULES = {"precomputed": "precomputed", "zarr": "zarr", "h5": "hdf5_volume"}


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
    kind = place.format or format
    if kind is None:
        msg = f"cannot create {url}: write precomputed://{url} or zarr://{url} to say its format"
        raise VolumeError(msg)
    if kind not in _MODULES:
        msg = f"cannot create {url}: {kind} volumes are only read; write precomputed:// or zarr://"
        raise VolumeError(msg)
    driver: Any = import_module(f"chunkflow_py.volume.{_MODULES[kind]}")
    driver.check_new(spec, place, mip, dtype_known=dtype_known, **settings)


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
