"""Where chunks rest: one `Volume` protocol, one driver a format."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.errors import VolumeError, VolumeNotFoundError

if TYPE_CHECKING:
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import Volume, VolumeSpec

Mode = Literal["r", "r+"]

ZARR_ENCODINGS = ("zstd", "gzip", "blosc", "raw")

# A folder with one of these files is a volume of that format.
_SIGNS = {
    "info": "precomputed",
    "zarr.json": "zarr",
    ".zarray": "zarr",
    ".zgroup": "zarr",
    ".zattrs": "zarr",
}


def open_volume(
    url: str,
    mip: int = 0,
    mode: Mode = "r",
    *,
    format: str | None = None,
    fill_missing: bool = True,
    use_https: bool = False,
    store_zeros: bool = False,
    parallel: int = 1,
) -> Volume:
    """Open a volume at one resolution level.

    Args:
        url: a path, or an address such as ``precomputed://gs://bucket/em`` or ``zarr://em.zarr``.
        mip: resolution level, 0 the finest.
        mode: ``r`` to read, ``r+`` to write too.
        format: ``precomputed`` or ``zarr``, where the address does not say it (default: by the
            files in the folder).
        fill_missing: read blocks that are not stored as zeros; if not, they are an error. Zarr
            always reads them as its fill value.
        use_https: read a public bucket without credentials.
        store_zeros: write blocks that hold nothing but zeros too; if not, they are left out, and
            removed where they exist.
        parallel: how many blocks to encode and write at the same time (precomputed; zarr decides
            by itself).

    Raises:
        VolumeNotFoundError: there is none, or it has no such level.
        VolumeError: it cannot be read, or its format is not known.
    """
    from chunkflow_py.volume.location import Location

    place = Location.parse(url)
    driver: Any = _driver(place.format or format or _detect(place))
    volume: Volume = driver.open_volume(
        place,
        mip,
        mode,
        fill_missing=fill_missing,
        use_https=use_https,
        store_zeros=store_zeros,
        parallel=parallel,
    )
    return volume


def create_volume(
    spec: VolumeSpec, url: str, mip: int = 0, *, format: str | None = None, **settings: Any
) -> Volume:
    """Create a volume and open it for writing.

    Several processes may create the same volume at once: what they write is the same, and no
    reader ever sees half of it.

    Args:
        spec: of the level *mip*.
        url: where; a bare path needs *format*.
        mip: resolution level that *spec* describes.
        format: ``precomputed`` or ``zarr``, where the address does not say it.
        settings: of the format, see `precomputed.create_volume` and `zarr.create_volume`.

    Raises:
        VolumeError: it cannot be written, or the format cannot hold such voxels.
    """
    from chunkflow_py.volume.location import Location

    place = Location.parse(url)
    kind = place.format or format
    if kind is None:
        msg = f"cannot create {url}: write precomputed://{url} or zarr://{url} to say its format"
        raise VolumeError(msg)
    if place.is_local and (found := _found(place)) not in (None, kind):
        msg = f"{url} holds a {found} volume already; write the {kind} volume to another folder"
        raise VolumeError(msg)
    driver: Any = _driver(kind)
    volume: Volume = driver.create_volume(spec, place, mip, **settings)
    return volume


def _driver(format: str) -> object:
    return import_module(f"chunkflow_py.volume.{format}")


def _found(place: Location) -> str | None:
    return next((kind for sign, kind in _SIGNS.items() if (place.folder / sign).is_file()), None)


def _detect(place: Location) -> str:
    folder = place.folder
    if kind := _found(place):
        return kind
    if (folder / "attributes.json").is_file():
        msg = f"{place} is an N5 volume, which is not supported yet; convert it to zarr"
        raise VolumeError(msg)
    if not folder.exists():
        msg = f"{place} does not exist; check the path, or create the volume first"
    elif not folder.is_dir():
        msg = f"{place} is a file, not the folder of a volume; name a folder"
    else:
        msg = (
            f"{place} holds no volume: there is neither info (precomputed) nor zarr.json, .zarray "
            "or .zgroup (zarr); check the path, or create the volume first"
        )
    raise VolumeNotFoundError(msg)
