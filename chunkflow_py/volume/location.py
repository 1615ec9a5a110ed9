"""Parse the address of a volume into format, protocol, path and dataset.

Examples, with ``/data`` as the working folder. *detected* means that the format follows from the
stored files.

| address                                        | format       | protocol | path               |
|------------------------------------------------|--------------|----------|--------------------|
| ``em``, ``/data/em``, ``file://em``            | *detected*   | file     | ``/data/em``       |
| ``precomputed://file:///data/em``              | precomputed  | file     | ``/data/em``       |
| ``gs://bucket/em``                             | *detected*   | gs       | ``bucket/em``      |
| ``zarr://em.zarr``, ``zarr3://file://em.zarr`` | zarr         | file     | ``/data/em.zarr``  |
| ``s3://bucket/em.zarr/|zarr3:``                | zarr         | s3       | ``bucket/em.zarr`` |
| ``h5://em.h5:main``, ``em.h5:main``            | h5           | file     | ``/data/em.h5``    |
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.store_address import without_secrets

# scheme -> format
FORMATS = {
    "precomputed": "precomputed", "zarr": "zarr", "zarr2": "zarr", "zarr3": "zarr", "n5": "n5",
    "h5": "h5", "hdf5": "h5", "graphene": "graphene",
}  # fmt: skip
PROTOCOLS = ("file", "gs", "s3", "http", "https", "mem")
_HDF5 = re.compile(
    r"(?P<path>.+\.(?:h5|hdf5|hdf))(?::(?P<dataset>[^/:][^:]*|/[^:]+))?", re.IGNORECASE
)
LEVEL = " at mip "  # between the address of a volume and the number of a level
_OTHER_NAMES = {"neuroglancer-precomputed": "precomputed"}  # as Neuroglancer spells it after |


@dataclass(frozen=True)
class Location:
    """A parsed address of a volume.

    Attributes:
        url: the address without password and signature, for messages.
        format: a value of `FORMATS`, or ``None`` if it must be detected from the stored files.
        protocol: one of `PROTOCOLS`.
        path: absolute path if the protocol is ``file``, else the text after ``://``. The path has
            no final slash. It may contain a password.
        dataset: name of the dataset in an HDF5 file, if the address names one.
        scheme: format as spelled in the address, such as ``zarr2``, if the address names one.
        address: the address as given, with which the volume can be opened again; never shown in
            messages.
    """

    url: str
    format: str | None
    protocol: str
    path: str = field(repr=False)
    dataset: str | None = None
    scheme: str | None = None
    address: str = field(default="", repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> Location:
        """Parse an address.

        Raises:
            VolumeError: the address is empty, or names an unknown format or protocol.
        """
        kind, rest = None, url
        scheme, separator, after = url.partition("://")
        if separator and scheme in FORMATS:
            kind, rest = scheme, after
        elif "|" in url:
            rest, _, kind = url.rpartition("|")
            kind = kind.strip(":/")
            kind = _OTHER_NAMES.get(kind, kind)
            if kind not in FORMATS:
                raise VolumeError(_unknown(kind, url))
        scheme, separator, after = rest.partition("://")
        if separator and scheme not in PROTOCOLS:
            raise VolumeError(_unknown(scheme, url))
        protocol, path = (scheme, after) if separator else ("file", rest)
        if not path.strip("/") and path != "/":
            msg = f"{without_secrets(url)!r} names no volume; give a path, such as file:///data/em"
            raise VolumeError(msg)
        dataset = None
        if kind in (None, "h5", "hdf5") and (match := _HDF5.fullmatch(path)):
            # os.path returns False for a folder that this user may not enter; Path would raise
            is_file = protocol != "file" or not os.path.isdir(os.path.expanduser(match["path"]))  # noqa: PTH111, PTH112
            if kind is not None or is_file:
                kind, path, dataset = kind or "h5", match["path"], match["dataset"]
        if protocol == "file":
            path = str(Path(path).expanduser().absolute())
        found = None if kind is None else FORMATS[kind]
        shown = without_secrets(url)
        return cls(shown, found, protocol, path.rstrip("/") or "/", dataset, kind, url)

    @property
    def is_local(self) -> bool:
        """Whether the volume is on the local file system."""
        return self.protocol == "file"

    @property
    def folder(self) -> Path:
        """Path of the volume on the local file system."""
        return Path(self.path)

    @property
    def store_url(self) -> str:
        """Address of the store that contains the volume, for `store.open_store`."""
        return f"{self.protocol}://{self.path}"

    def __truediv__(self, name: str) -> Location:
        """Return the location of *name* in this folder."""
        return replace(
            self,
            url=f"{self.url.rstrip('/')}/{name}",
            path=f"{self.path.rstrip('/')}/{name.strip('/')}",
            address=f"{self.address.rstrip('/')}/{name}",
        )

    def __str__(self) -> str:
        """Return the address as the user wrote it, for messages."""
        return self.url


def volume_name(place: Location) -> str:
    """Return the canonical address of a volume, the same for all spellings of a local path."""
    if place.is_local:
        return f"file://{os.path.realpath(place.folder)}"
    return f"{place.protocol}://{place.path.strip('/')}"


def level_name(place: Location, mip: int) -> str:
    """Return the canonical name of a level, the same for all spellings of a local path.

    The array of a level can also be opened as a volume of its own, such as ``em.zarr/0`` instead of
    ``em.zarr`` at mip 0. One array can therefore have two names. Compare
    names with `chunkflow_py.volume.array_identity.same_array`, not as text.
    """
    where = volume_name(place)
    if place.format == "h5":
        where += f":{(place.dataset or 'main').strip('/')}"
    return f"{where}{LEVEL}{mip}"


def _unknown(scheme: str, url: str) -> str:
    known = (*FORMATS, *PROTOCOLS)
    near = get_close_matches(scheme, known, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]}://?" if near else f"use one of {', '.join(known)}"
    shown = f"{scheme}://…" if f"{scheme}://" in url else without_secrets(url)
    return f"cannot open {shown}: unknown scheme {scheme}://; {remedy}"
