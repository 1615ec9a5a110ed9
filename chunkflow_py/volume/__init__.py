"""Open and create volumes of every format, as objects with the methods of the `Volume` protocol."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.errors import VolumeError, VolumeNotFoundError, VolumeRefusedError

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import Volume, VolumeOptions, VolumeSpec

Mode = Literal["r", "r+"]

ZARR_ENCODINGS = ("zstd", "gzip", "blosc", "raw")

# A folder with one of these files is a volume of that format.
_SIGNS = {
    "info": "precomputed",
    "zarr.json": "zarr",
    ".zarray": "zarr",
    ".zgroup": "zarr",
    ".zattrs": "zarr",
    "attributes.json": "n5",
}
_MODULES = {
    "precomputed": "precomputed.precomputed_volume",
    "zarr": "zarr.zarr_volume",
    "n5": "n5.n5_volume",
    "h5": "files.hdf5_volume",
    "graphene": "precomputed.graphene_volume",
    "image": "files.image_volume",
}
_CREATABLE = ("precomputed", "zarr", "h5")


def open_volume(
    url: str,
    mip: int = 0,
    mode: Mode = "r",
    *,
    format: str | None = None,
    opening: VolumeOptions | None = None,
) -> Volume:
    """Open a volume at one resolution level.

    Args:
        url: a path, or an address such as ``precomputed://gs://bucket/em``, ``zarr://em.zarr``,
            ``s3://bucket/em``, ``n5://em.n5`` or ``h5://em.h5:main``.
        mip: resolution level, 0 the finest.
        mode: ``r`` to read, ``r+`` to read and write.
        format: ``precomputed``, ``zarr``, ``n5`` or ``h5``, if the address does not name it
            (default: detected from the stored files).
        opening: options for reading and writing the volume.

    Raises:
        VolumeNotFoundError: the volume or the level does not exist.
        VolumeError: the volume cannot be read, or its format is unknown.
    """
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeOptions

    place, opening = Location.parse(url), opening or VolumeOptions()
    driver: Any = driver_of(place.format or format or _detect(place, opening))
    volume: Volume = driver.open_volume(place, mip, mode, opening)
    return volume


def create_volume(
    spec: VolumeSpec,
    url: str,
    mip: int = 0,
    *,
    format: str | None = None,
    opening: VolumeOptions | None = None,
    **settings: Any,
) -> Volume:
    """Create a volume and open it for writing.

    Several processes may create the same volume at the same time: all of them write the same
    bytes, and readers never see partly written metadata.

    Args:
        spec: description of the volume at level *mip*.
        url: address of the volume; if the address does not begin with a format, give *format*.
        mip: resolution level that *spec* describes.
        format: ``precomputed``, ``zarr`` or ``h5``, if the address does not name it.
        opening: options for reading and writing the volume.
        settings: further settings of the format; see `create_volume` in `precomputed_volume` and
            `zarr_volume`.

    Raises:
        VolumeError: the volume cannot be written, the format cannot store voxels of this type,
            or a different volume exists at this address.
    """
    from chunkflow_py.store import open_store
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeOptions

    place, opening = Location.parse(url), opening or VolumeOptions()
    kind = format_of_new(place, format)
    if kind != "h5":
        existing = _stored_format(open_store(place.store_url, opening.access))
        if existing not in (None, kind):
            msg = (
                f"{url} already holds a {existing} volume; write the {kind} volume to another "
                "address"
            )
            raise VolumeError(msg)
    driver: Any = driver_of(kind)
    volume: Volume = driver.create_volume(spec, place, mip, opening, **settings)
    return volume


def format_of_new(place: Location, format: str | None) -> str:
    """Return the name of the format in which to create a volume.

    Args:
        place: location of the volume.
        format: format of the volume, if the address does not name it.

    Raises:
        VolumeError: the format is unknown, or can only be read.
    """
    kind = place.format or format
    if kind is None:
        msg = (
            f"cannot create {place}, because the address names no format; use "
            f"precomputed://{place} or zarr://{place}"
        )
        raise VolumeError(msg)
    if kind not in _CREATABLE:
        msg = (
            f"cannot create {place}: {kind} volumes can only be read; use an address with "
            "precomputed:// or zarr://"
        )
        raise VolumeError(msg)
    return kind


def driver_of(format: str) -> object:
    """Return the driver of a format: the Python module that opens volumes of this format.

    If the format can be written, the module can also create volumes.
    """
    return import_module(f"chunkflow_py.volume.{_MODULES[format]}")


def _stored_format(store: Store) -> str | None:
    from concurrent.futures import ThreadPoolExecutor

    def format_by(sign: str) -> str | VolumeRefusedError | None:
        try:
            return None if store.size(sign) is None else _SIGNS[sign]
        except VolumeRefusedError as error:
            # if a bucket does not permit listing, a missing object causes this error, too
            return error

    first, *others = _SIGNS
    answers = [format_by(first)]
    if not isinstance(answers[0], str):
        if store.is_local:
            answers += map(format_by, others)
        else:  # remote: requests are slow, so they run in parallel
            with ThreadPoolExecutor(len(others)) as pool:
                answers += pool.map(format_by, others)
    kinds = [each for each in answers if isinstance(each, str)]
    refused = [each for each in answers if isinstance(each, VolumeRefusedError)]
    if refused and not kinds:
        raise refused[0]
    return kinds[0] if kinds else None


def _detect(place: Location, opening: VolumeOptions) -> str:
    from chunkflow_py.store import open_store
    from chunkflow_py.volume.files.image_names import is_image

    if place.is_local and place.folder.is_file():
        if _is_hdf5(place):
            return "h5"
        if is_image(place.folder):
            return "image"
        msg = (
            f"{place} is a file of an unknown kind; give a TIFF, HDF5, NIfTI, NRRD, MRC or NPY "
            "file, a folder with TIFF or PNG files, or a folder with a zarr, precomputed or N5 "
            "volume"
        )
        raise VolumeNotFoundError(msg)
    if place.is_local and not place.folder.exists():
        msg = f"{place} does not exist; check the path, or create the volume first"
        raise VolumeNotFoundError(msg)
    if kind := _stored_format(open_store(place.store_url, opening.access)):
        return kind
    if place.is_local and is_image(place.folder):
        return "image"
    msg = (
        f"{place} holds no volume: it contains neither info (precomputed), nor zarr.json, .zarray "
        "or .zgroup (zarr), nor attributes.json (N5), nor TIFF or PNG files; check the path, or "
        "create the volume first"
    )
    raise VolumeNotFoundError(msg)


def _is_hdf5(place: Location) -> bool:
    with place.folder.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"
