"""Whether two addresses mean the same array, however they are written.

```
zarr://s.zarr/0    s.zarr at mip 0    file:///data/../data/s.zarr/0    a link to it    a bind mount
                                      all: device and inode of the folder s.zarr/0
```

A *place* is what `ReadsFrom.origin` and `WritesTo.destination` return: the address of a file or
folder, or ``ADDRESS at mip N`` (`level_name`) for a level of a volume.

| place                     | its array                                                     |
|---------------------------|---------------------------------------------------------------|
| level of a volume         | the folder or prefix of its blocks, as the metadata say       |
| level that does not exist | where this package would make it                              |
| dataset of an HDF5 file   | the file and the position of the dataset in it                |
| file or folder            | itself                                                        |

On this machine a file or folder is known by device and inode, which no link, mount or spelling
changes; what does not exist yet by the folder above it. In a bucket the key is the identity.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import LEVEL, Location

_SPAN = "-?[0-9]+--?[0-9]+"
_BOX = rf"(?:t[0-9]+_)?{_SPAN}_{_SPAN}_{_SPAN}"  # what stands for BOX in names of files
_FORMATS = ("precomputed", "zarr", "n5")  # of which one folder may hold several
# Web addresses of buckets: path-style and virtual-hosted, of Amazon and Google.
_WEB = (
    (r"s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com", "s3", ""),
    (r"(?P<bucket>.+?)\.s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com", "s3", "bucket"),
    (r"storage\.googleapis\.com", "gs", ""),
    (r"(?P<bucket>.+)\.storage\.googleapis\.com", "gs", "bucket"),
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def same_array(first: str, second: str) -> bool:
    """Return whether two places mean the same array, or one is a file that holds the other.

    Args:
        first: a place, such as ``file:///data/em.zarr at mip 0`` or ``/data/out_BOX.h5``.
        second: another.
    """
    return Place.parse(first).is_same(Place.parse(second))


@dataclass(frozen=True)
class Place:
    """A place, taken apart; what is there is looked at once.

    Attributes:
        text: as it is written.
        scheme: of the store: ``file``, ``s3``, ``gs``, ``https`` or ``mem``.
        path: below the scheme; of this machine, without links.
        address: as `open_volume` takes it.
        mip: of a level, or ``None`` for a file or folder.
        dataset: in an HDF5 file.
    """

    text: str
    scheme: str = ""
    path: str = ""
    address: str = ""
    mip: int | None = None
    dataset: str | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place; what is no address of a store is the same as itself alone."""
        address, separator, mip = text.rpartition(LEVEL)
        if not (separator and is_digits(mip)):
            address, mip = text, ""
        try:
            location = Location.parse(address)
        except VolumeError:
            return cls(text)
        path, dataset = location.path, location.dataset
        if not mip and dataset:
            path, dataset = f"{path}:{dataset}", None  # a file whose name looks like it
        elif mip and location.is_local and not os.path.exists(path):  # noqa: PTH110
            # Of a file whose name does not say what it is, `level_name` adds the dataset too.
            file, _, name = path.rpartition(":")
            if os.path.isfile(file):  # noqa: PTH113
                path, dataset = file, name
        scheme, path = _normal(location.protocol, path)
        if scheme != location.protocol and scheme in ("s3", "gs"):
            address = f"{scheme}://{path}"  # as who writes to the bucket finds it
        return cls(text, scheme, path, address, int(mip) if mip else None, dataset)

    def is_same(self, other: Place) -> bool:
        """Return whether two places mean one array, as `same_array` says."""
        if self.text == other.text:
            return True
        if not self.scheme or self.scheme != other.scheme:
            return False
        # Far away, metadata take time to read, and without links an array lies below its volume.
        if self.scheme != "file" and not _related(self.path, other.path):
            return False
        if (self.mip is None) == (other.mip is None):
            return bool(self.arrays & other.arrays) or self.matches(other) or other.matches(self)
        level, whole = (other, self) if self.mip is None else (self, other)
        return bool(whole.arrays & (level.arrays | level.containers))

    @cached_property
    def containers(self) -> frozenset[str]:
        """The file or folder that is called a volume."""
        return frozenset({self._known(self.path)})

    @cached_property
    def arrays(self) -> frozenset[str]:
        """What holds the voxels: one, unless a folder is a volume of several formats."""
        if self.mip is None:
            return self.containers
        if self.scheme == "file" and (self.dataset or os.path.isfile(self.path)):  # noqa: PTH113
            return frozenset({self._dataset()})
        formats = _FORMATS if self.scheme == "file" else (None,)
        found = frozenset(filter(None, (self._array(name) for name in formats)))
        if found:
            return found
        # As it would be made: an array of that number in a group, or alone.
        own = {self._known(f"{self.path}/{self.mip}")}
        return frozenset(own if self.mip else own | self.containers)

    def _array(self, format: str | None) -> str | None:
        try:
            volume = open_volume(self.address, self.mip or 0, format=format)
        except ChunkflowError:  # no such volume or level, or it is not to be read: said elsewhere
            return None
        url: str | None = getattr(volume, "array_url", None)
        if url is None:
            return None
        location = Location.parse(url)
        return self._known(_normal(location.protocol, location.path)[1])

    def _dataset(self) -> str:
        from chunkflow_py.volume.files.hdf5_volume import address_of_dataset

        # Without a name it is main, or the only one.
        name, inside = (self.dataset or "main").strip("/"), ""
        for wanted in (name, None) if name == "main" else (name,):
            with suppress(ChunkflowError):
                inside = inside or address_of_dataset(Path(self.path), wanted)
        return f"{self._known(self.path)}#{inside or name}"

    def _known(self, path: str) -> str:
        """Return what is the same for all names of a path: of what exists, device and inode."""
        if self.scheme != "file":
            return f"{self.scheme}://{path}"
        path, rest = os.path.realpath(path), ""
        while True:
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                if path == "/":
                    return rest
                path, _, name = path.rpartition("/")
                path, rest = path or "/", f"/{name}{rest}"
            else:
                return f"{status.st_dev}:{status.st_ino}{rest}"

    def matches(self, other: Place) -> bool:
        """Return whether *other* may be the file of one task, where BOX stands for its box."""
        if "BOX" not in self.path or self.mip is not None:
            return False
        pattern = _BOX.join(map(re.escape, self._spelled().split("BOX")))
        return re.fullmatch(pattern, other._spelled()) is not None

    def _spelled(self) -> str:
        """Return the folder, known as it is, and the name in it as it is written."""
        folder, _, name = self.path.rpartition("/")
        return f"{self._known(folder or '/')}/{name}"


def _normal(protocol: str, path: str) -> tuple[str, str]:
    """Return scheme and path, the same for all spellings that need no look at what is there."""
    if protocol == "file":
        return protocol, os.path.realpath(path)
    if protocol in ("http", "https"):
        protocol, path = _bucket(protocol, path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return protocol, "/".join(parts)


def _bucket(protocol: str, path: str) -> tuple[str, str]:
    """Return scheme and path of a web address: of a bucket those by which it is written to."""
    parts = urlsplit(f"{protocol}://{path}")
    host, key = parts.netloc.rpartition("@")[2].lower(), unquote(parts.path)
    for name in _ENDPOINTS:
        if host and host == urlsplit(os.environ.get(name, "")).netloc.lower():
            return "s3", key
    for pattern, scheme, has_bucket in _WEB:
        if match := re.fullmatch(pattern, host):
            return scheme, f"{match['bucket']}/{key}" if has_bucket else key
    return "https", f"{host.removesuffix(':443').removesuffix(':80')}/{key}"


def _related(first: str, second: str) -> bool:
    """Return whether one path is the other, or leads to it; a BOX stands for anything."""
    one, other = first.partition("BOX")[0], second.partition("BOX")[0]
    if "BOX" in first + second:
        return one.startswith(other) or other.startswith(one)
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
