"""Files of meshes or skeletons in a folder of any store, named as in cloud-volume.

```
seg/info                        info file of the volume: {"mesh": "mesh_mip_0_err_40", ...}
seg/mesh_mip_0_err_40/info      info file of the folder: {"@type": "neuroglancer_legacy_mesh"}
seg/mesh_mip_0_err_40/7:0:...   gzipped file of object 7. In a cloud, the header Content-Encoding
                                is gzip. On a local disk, the name has the suffix .gz.
```

Functions of this module accept and return names without the suffix .gz.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.core.decoding import TooLargeError, decode, parse_json
from chunkflow_py.core.task import Output
from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_protocol import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.store.store_protocol import Store, Stored

Role = Literal["mesh", "skeletons"]

MULTIRES = "_multires"  # suffix of the folder of multi-resolution meshes
SHARDED = "_sharded"  # suffix of the folder of shards

_ENDING = ".gz"
_RATIO, _RATIO_FROM = 64, 1 << 20  # most unpacked bytes: 64 per packed byte, plus 1 MiB
_LEVEL = 1  # of gzip; higher levels take long and save only 2 % of coordinates
_AT_ONCE = 1024  # files in a batch; a batch is written before the next one is encoded


class ObjectFolder:
    """The folder of the meshes or of the skeletons of a segmentation.

    Args:
        url: address of the folder, which need not exist yet.

    Attributes:
        url: address of the folder, normalised by the store.
    """

    def __init__(self, url: str) -> None:
        self._store: Store = open_store(url)
        self.url = self._store.url

    def put(
        self,
        files: Iterable[tuple[str, bytes]],
        *,
        compress: bool = True,
        content_type: str = "application/octet-stream",
    ) -> list[Stored]:
        """Write files, several at a time.

        Args:
            files: name and content of each file; names are unique.
            compress: whether to gzip the content.
            content_type: value of the header Content-Type that clouds send with the files.

        Returns:
            Records of the stored objects, sorted by address.
        """
        remaining = iter(files)
        with (
            together(self._store) as gathering,
            ThreadPoolExecutor(self._store.connections, "objects") as pool,
        ):
            store = RecordingStore(gathering)

            def write(file: tuple[str, bytes]) -> None:
                name, data = file
                store.put(
                    name + _ENDING if compress and store.is_local else name,
                    # Without a time in the header the same content gives the same bytes.
                    gzip.compress(data, _LEVEL, mtime=0) if compress else data,
                    content_type=content_type,
                    content_encoding="gzip" if compress and not store.is_local else None,
                    cache_control="no-cache",
                )

            while batch := list(islice(remaining, _AT_ONCE)):
                deque(pool.map(write, batch), maxlen=0)
        return sorted(store.written, key=lambda stored: stored.url)

    def get(self, name: str) -> bytes | None:
        """Return the unpacked content of a file, or ``None`` if the file does not exist."""
        for key in (name, name + _ENDING) if self._store.is_local else (name,):
            if (data := self._store.get(key)) is not None:
                return _unpacked(data, f"{self.url}/{key}")
        return None

    def get_all(self, names: Iterable[str]) -> list[bytes]:
        """Return the contents of the files *names*, in the order of *names*.

        Raises:
            VolumeError: a file does not exist.
        """
        with ThreadPoolExecutor(self._store.connections, "objects") as pool:
            names = list(names)
            contents = list(pool.map(self.get, names))
        for name, data in zip(names, contents, strict=True):
            if data is None:
                msg = f"{self.url}/{name} does not exist; repeat the task that writes this file"
                raise VolumeError(msg)
        return [data for data in contents if data is not None]

    def update_all(
        self, changes: dict[str, Callable[[dict[str, Any] | None], dict[str, Any]]]
    ) -> None:
        """Change several JSON files in parallel.

        Args:
            changes: for each file name, the function that changes the file; see `update`.
        """
        with ThreadPoolExecutor(self._store.connections, "objects") as pool:
            deque(pool.map(lambda change: self.update(*change), changes.items()), maxlen=0)

    def remove(self, name: str) -> None:
        """Remove a file that was written without compression; do nothing if it does not exist."""
        self._store.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        """Return the sorted names of the files whose names start with *prefix*."""
        return sorted({key.removesuffix(_ENDING) for key in self._store.list(prefix)})

    def walk(self) -> Iterator[str]:
        """Yield the names of all files, in any order, while the store is still listing them."""
        return (key.removesuffix(_ENDING) for key in self._store.list())

    def update(self, name: str, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
        """Change a JSON file, so that no change of a concurrent process is lost.

        Args:
            name: name of the file.
            change: function of the old content (``None`` if the file does not exist) that returns
                the new content. The function must not modify the old content. The function is
                called again if another process has changed the file in between.
        """
        if (old := self.read_json(name)) is not None and change(old) == old:
            return

        def changed(data: bytes | None) -> bytes:
            return as_json(change(None if data is None else _object(data, f"{self.url}/{name}")))

        self._store.update(name, changed)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, or ``None`` if the file does not exist.

        Raises:
            VolumeError: the content is not a JSON object.
        """
        data = self.get(name)
        return None if data is None else _object(data, f"{self.url}/{name}")

    def describe(self, info: dict[str, Any]) -> bool:
        """Write the info file if the folder has none, and return whether it was written.

        Raises:
            VolumeError: the ``@type`` of the existing file differs.
        """
        present = self.read_json("info")
        if present is None:
            return self._store.put_if_absent("info", as_json(info))
        if present.get("@type") != info["@type"]:
            msg = (
                f"{self.url} has files of the type {present.get('@type')}, not {info['@type']}; "
                "choose another folder"
            )
            raise VolumeError(msg)
        return False


def folder_of(url: str, role: Role, default: str | None = None) -> ObjectFolder:
    """Return the folder of meshes or skeletons at *url*.

    The info file of a precomputed volume names the folder. Any other *url* is the folder itself.

    Args:
        url: address of a precomputed volume, whose info file has ``scales``, or of a folder.
        role: ``mesh`` or ``skeletons``, the key of the folder's name in the info file.
        default: name of the folder if the info file names no folder yet. The name is then written
            to the info file.

    Raises:
        VolumeError: the info file names no folder and *default* is ``None``, or the info file is
            not a JSON object.
    """
    place = ObjectFolder(url)
    info = place.read_json("info")
    if info is None or "scales" not in info:
        return place
    name = info.get(role)
    if not name and default is None:
        command = "mesh" if role == "mesh" else "skeletonize"
        msg = f"the info file of {place.url} names no {role} folder; run {command} first"
        raise VolumeError(msg)
    if not name:
        name = default
        place.update("info", lambda old: {**(old or {}), role: (old or {}).get(role) or default})
    return ObjectFolder(f"{place.url.rstrip('/')}/{name}")


def fragment_folder(url: str, role: Role, default: str | None = None) -> ObjectFolder:
    """Return the folder of fragments (parts of meshes or skeletons) at *url*; see `folder_of`.

    The names of folders of shards and of multi-resolution meshes end in ``_sharded`` and
    ``_multires``. The result is the folder without these suffixes.
    """
    folder = folder_of(url, role, default)
    return ObjectFolder(folder.url.removesuffix(MULTIRES).removesuffix(SHARDED))


def record_folder(url: str, role: Role, folder: ObjectFolder) -> None:
    """Write the name of *folder* to the info file at *url*, if *url* is a volume."""
    place = ObjectFolder(url)
    if "scales" in (place.read_json("info") or {}):
        name = folder.url.removeprefix(f"{place.url.rstrip('/')}/")
        place.update("info", lambda old: {**(old or {}), role: name})


def scales_of(url: str) -> list[tuple[float, float, float]]:
    """Return the voxel size of each level of a precomputed volume, in nm, zyx.

    Returns:
        One size for each level; an empty list if *url* is not a precomputed volume.

    Raises:
        VolumeError: the info file is damaged.
    """
    info = ObjectFolder(url).read_json("info") or {}
    try:
        sizes = [[float(nm) for nm in scale["resolution"]] for scale in info.get("scales", [])]
        return [(z, y, x) for x, y, z in sizes]
    except (LookupError, TypeError, ValueError) as error:
        msg = f"the info file of {url} is damaged or incomplete ({error}); create the file again"
        raise VolumeError(msg) from error


def as_json(content: dict[str, Any]) -> bytes:
    """Return *content* encoded as JSON; equal content gives equal bytes."""
    return json.dumps(content).encode()


def _object(data: bytes, address: str) -> dict[str, Any]:
    try:
        content = parse_json(_unpacked(data, address), None)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        msg = (
            f"{address} is damaged, or is not a JSON file with an object; check the address, or "
            "create the file again"
        )
        raise VolumeError(msg)
    return content


def _unpacked(data: bytes, address: str) -> bytes:
    """Return *data*, unpacked if it is gzipped.

    Raises:
        VolumeError: the unpacked data is larger than a file of meshes or skeletons can be.
    """
    if data[:3] != b"\x1f\x8b\x08":
        return data
    try:
        return decode("gzip members", data, _RATIO * len(data) + _RATIO_FROM)
    except TooLargeError as error:
        msg = f"{address} is damaged: {error}; create the file again"
        raise VolumeError(msg) from error
    except (ValueError, zlib.error):  # not gzip, although the first three bytes agree
        return data


def objects_below(url: str) -> Output:
    """Return an `Output`, which declares that an operator writes files below *url*."""
    return Output("objects", f"{open_store(url).url.rstrip('/')}/")


def named_after(prefix: str) -> tuple[ObjectFolder, str]:
    """Split *prefix* into a folder and the start of the file names in this folder.

    Args:
        prefix: path or URL. An existing local folder needs no slash at the end of its path.
    """
    is_local = "://" not in prefix or prefix.startswith("file://")
    path = prefix.removeprefix("file://")
    if is_local and Path(path).expanduser().is_dir():
        return ObjectFolder(path), ""
    folder, slash, start = path.rpartition("/")
    return ObjectFolder(folder or slash or "."), start
