"""Decide whether two addresses refer to the same array, however they are spelled.

These five addresses, for example, refer to the same array, because each leads to the same folder:

```
zarr://s.zarr/0
s.zarr at mip 0
file:///data/../data/s.zarr/0
a symbolic link to s.zarr/0
a bind mount of s.zarr/0
```

An operator names each of its inputs and outputs by an address: the address of a file or folder, or
``ADDRESS at mip N`` for level N of the volume at ADDRESS (see `level_name`).

| address                   | what identifies its array                                     |
|---------------------------|---------------------------------------------------------------|
| level of a volume         | the folder or prefix with the blocks of the level             |
| level that does not exist | the folder or prefix in which this package would create it    |
| dataset of an HDF5 file   | the file and the position of the dataset in the file          |
| file or folder            | the file or folder itself                                     |

On a local disk, device and inode identify a file or folder, because they do not depend on the link,
mount or spelling in the address. A file that does not exist yet is identified by its nearest
existing parent folder and the rest of its path. In a bucket, the key identifies the array.

A worker also has records of the blocks that earlier steps of its run have written (see `expect`).
With these records, a reader can distinguish two kinds of missing blocks: blocks that a task did not
store because they were empty, and blocks that were stored and then lost.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import LEVEL, Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.geometry import BoundingBox

_SPAN = "-?[0-9]+--?[0-9]+"
_BOX = rf"(?:t[0-9]+_)?{_SPAN}_{_SPAN}_{_SPAN}"  # what replaces BOX in file names
_FORMATS = ("precomputed", "zarr", "n5")  # one folder may contain several of these
# Web addresses of buckets: path-style and virtual-hosted, of Amazon and Google.
_WEB = (
    (r"s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com", "s3", ""),
    (r"(?P<bucket>.+?)\.s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com", "s3", "bucket"),
    (r"storage\.googleapis\.com", "gs", ""),
    (r"(?P<bucket>.+)\.storage\.googleapis\.com", "gs", "bucket"),
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def same_array(first: str, second: str) -> bool:
    """Return whether two addresses refer to the same array.

    The result is also true if one address names a file or folder, and the other address names a
    level of a volume in this file or folder.

    Args:
        first: an address, such as ``file:///data/em.zarr at mip 0`` or ``/data/out_BOX.h5``.
        second: another address.
    """
    return ArrayAddress.parse(first).is_same(ArrayAddress.parse(second))


@dataclass(frozen=True)
class ArrayAddress:
    """A parsed address of an array; the identities of its arrays are computed only once.

    Attributes:
        text: the address as given.
        scheme: scheme of the store: ``file``, ``s3``, ``gs``, ``https`` or ``mem``.
        path: path after the scheme; in a local path, links are resolved.
        address: address that `open_volume` accepts.
        mip: number of the level, or ``None`` for a file or folder.
        dataset: name of the dataset in an HDF5 file, or ``None`` if the address names no dataset.
    """

    text: str
    scheme: str = ""
    path: str = ""
    address: str = ""
    mip: int | None = None
    dataset: str | None = None

    @classmethod
    def parse(cls, text: str) -> ArrayAddress:
        """Parse an address.

        If *text* is not the address of a store, `is_same` compares only the text.
        """
        address, separator, mip = text.rpartition(LEVEL)
        if not (separator and is_digits(mip)):
            address, mip = text, ""
        try:
            location = Location.parse(address)
        except VolumeError:
            return cls(text)
        path, dataset = location.path, location.dataset
        if not mip and dataset:
            path, dataset = f"{path}:{dataset}", None  # a file whose name contains a colon
        elif mip and location.is_local and not os.path.exists(path):  # noqa: PTH110
            # `level_name` also adds the dataset to a file whose name does not show its format.
            file, _, name = path.rpartition(":")
            if os.path.isfile(file):  # noqa: PTH113
                path, dataset = file, name
        scheme, path = _normal(location.protocol, path)
        if scheme != location.protocol and scheme in ("s3", "gs"):
            address = f"{scheme}://{path}"  # the spelling for writing to the bucket
        return cls(text, scheme, path, address, int(mip) if mip else None, dataset)

    def is_same(self, other: ArrayAddress) -> bool:
        """Return whether this address and *other* refer to the same array; see `same_array`."""
        if self.text == other.text:
            return True
        if not self.scheme or self.scheme != other.scheme:
            return False
        # Remote metadata are slow to read. Remote stores have no links: arrays lie below volumes.
        if self.scheme != "file" and not _related(self.path, other.path):
            return False
        if (self.mip is None) == (other.mip is None):
            return bool(self.arrays & other.arrays) or self.matches(other) or other.matches(self)
        level, whole = (other, self) if self.mip is None else (self, other)
        return bool(whole.arrays & (level.arrays | level.containers))

    @cached_property
    def containers(self) -> frozenset[str]:
        """A set with only the identity of the file or folder at the address.

        For a level of a volume, this is the identity of the folder that contains all levels.
        """
        return frozenset({self._known(self.path)})

    @cached_property
    def arrays(self) -> frozenset[str]:
        """Identities of the arrays at the address.

        There are several identities if the folder at the address contains volumes of several
        formats.
        """
        if self.mip is None:
            return self.containers
        if self.scheme == "file" and (self.dataset or os.path.isfile(self.path)):  # noqa: PTH113
            return frozenset({self._dataset()})
        formats = _FORMATS if self.scheme == "file" else (None,)
        found = frozenset(filter(None, (self._array(name) for name in formats)))
        if found:
            return found
        # Where the level would be created: in a group, as the array with this number, or alone.
        own = {self._known(f"{self.path}/{self.mip}")}
        return frozenset(own if self.mip else own | self.containers)

    def _array(self, format: str | None) -> str | None:
        try:
            volume = open_volume(self.address, self.mip or 0, format=format)
        except ChunkflowError:  # no such volume or level, or unreadable: reported elsewhere
            return None
        url: str | None = getattr(volume, "array_url", None)
        if url is None:
            return None
        location = Location.parse(url)
        return self._known(_normal(location.protocol, location.path)[1])

    def _dataset(self) -> str:
        from chunkflow_py.volume.files.hdf5_volume import address_of_dataset

        # Without a name, the dataset is main, or the only one of the file.
        name, inside = (self.dataset or "main").strip("/"), ""
        for wanted in (name, None) if name == "main" else (name,):
            with suppress(ChunkflowError):
                inside = inside or address_of_dataset(Path(self.path), wanted)
        return f"{self._known(self.path)}#{inside or name}"

    def _known(self, path: str) -> str:
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

    def matches(self, other: ArrayAddress) -> bool:
        """Return whether *other* is this address with the box of a task in place of ``BOX``.

        For example, ``out_BOX.h5`` matches ``out_0-64_0-64_0-64.h5``.
        """
        if "BOX" not in self.path or self.mip is not None:
            return False
        pattern = _BOX.join(map(re.escape, self._spelled().split("BOX")))
        return re.fullmatch(pattern, other._spelled()) is not None

    def _spelled(self) -> str:
        folder, _, name = self.path.rpartition("/")
        return f"{self._known(folder or '/')}/{name}"


def _normal(protocol: str, path: str) -> tuple[str, str]:
    if protocol == "file":
        return protocol, os.path.realpath(path)
    if protocol in ("http", "https"):
        protocol, path = _bucket(protocol, path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return protocol, "/".join(parts)


def _bucket(protocol: str, path: str) -> tuple[str, str]:
    # The web address of a bucket names the same array as the address with s3:// or gs://.
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
    # BOX stands for any text, so only the text before BOX is compared.
    one, other = first.partition("BOX")[0], second.partition("BOX")[0]
    if "BOX" in first + second:
        return one.startswith(other) or other.startswith(one)
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


# --- arrays whose blocks are recorded ------------------------------------------------------------


class RecordedBlocks(Protocol):
    """Record of the blocks that earlier steps of a run have written to one array."""

    def check(self, key: str, box: BoundingBox, time: int | None) -> None:
        """Raise an error if the run has stored a write unit that the reader cannot find.

        Args:
            key: key of the unit's object, relative to the folder or prefix of the array.
            box: box of the unit's voxels.
            time: time index of the unit, or ``None`` for an array without a time axis.

        Raises:
            VolumeError: the unit was stored and is lost; the message names the remedy.
        """


_recorded: list[tuple[frozenset[str], RecordedBlocks]] = []  # identities of arrays


def expect(arrays: Sequence[tuple[str, RecordedBlocks]]) -> None:
    """Set the records that readers use to recognise lost blocks; forget all earlier records.

    A record lists the blocks that earlier steps of this run have written to one array. If a volume
    is opened for reading after this call, each missing block is looked up in the records.

    Args:
        arrays: pairs (address of an array, record of the blocks of this array).
    """
    _recorded.clear()  # so that the volumes opened below check nothing
    _recorded.extend([(ArrayAddress.parse(place).arrays, blocks) for place, blocks in arrays])


def expected_of(array_url: str) -> RecordedBlocks | None:
    """Return the record of the blocks of the array at *array_url*, or ``None`` if there is none."""
    if not _recorded:
        return None
    arrays = ArrayAddress.parse(array_url).arrays
    return next((blocks for known, blocks in _recorded if known & arrays), None)
