"""Files of objects (meshes, skeletons) in a folder of any store, as cloud-volume names them.

```
seg/info                        of the volume: {"mesh": "mesh_mip_0_err_40", ...}
seg/mesh_mip_0_err_40/info      of the folder: {"@type": "neuroglancer_legacy_mesh"}
seg/mesh_mip_0_err_40/7:0:...   gzipped: by the header Content-Encoding in clouds, by the ending
                                .gz on local disks
```

Names are told and taken without that ending.
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
from chunkflow_py.core.outputs import Output
from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_protocol import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.store.store_protocol import Store, Stored

Role = Literal["mesh", "skeletons"]

_ENDING = ".gz"
_RATIO, _RATIO_FROM = 64, 1 << 20  # bytes for each that is compressed, and beside
_LEVEL = 1  # of compression: coordinates take long at higher ones, and shrink by 2 % more
_AT_ONCE = 1024  # files that are encoded and on their way together


class ObjectFolder:
    """The folder of the meshes or of the skeletons of a segmentation.

    Args:
        url: of the folder.

    Attributes:
        url: as the store spells it.
    """

    def __init__(self, url: str) -> None:
        """Open the folder, which need not exist yet."""
        self._store: Store = open_store(url)
        self.url = self._store.url

    def put(
        self,
        files: Iterable[tuple[str, bytes]],
        *,
        compress: bool = True,
        content_type: str = "application/octet-stream",
    ) -> list[Stored]:
        """Write files, several at once.

        Args:
            files: (name, content) of each; names are all different.
            compress: gzip them.
            content_type: that clouds tell of them.

        Returns:
            What was stored, ordered by its address.
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
                    # the header holds no time: the same bytes whenever it is written
                    gzip.compress(data, _LEVEL, mtime=0) if compress else data,
                    content_type=content_type,
                    content_encoding="gzip" if compress and not store.is_local else None,
                    cache_control="no-cache",
                )

            while batch := list(islice(remaining, _AT_ONCE)):
                deque(pool.map(write, batch), maxlen=0)
        return sorted(store.written, key=lambda stored: stored.url)

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, unpacked, or ``None`` if there is none."""
        for key in (name, name + _ENDING) if self._store.is_local else (name,):
            if (data := self._store.get(key)) is not None:
                return _unpacked(data, f"{self.url}/{key}")
        return None

    def get_all(self, names: Iterable[str]) -> list[bytes]:
        """Return the contents of files, in the order of their names.

        Raises:
            VolumeError: one does not exist.
        """
        with ThreadPoolExecutor(self._store.connections, "objects") as pool:
            wanted = list(names)
            found = list(pool.map(self.get, wanted))
        for name, data in zip(wanted, found, strict=True):
            if data is None:
                msg = f"{self.url}/{name} does not exist; make the files of its task again"
                raise VolumeError(msg)
        return [data for data in found if data is not None]

    def update_all(
        self, changes: dict[str, Callable[[dict[str, Any] | None], dict[str, Any]]]
    ) -> None:
        """Do `update` for several files, by their names."""
        with ThreadPoolExecutor(self._store.connections, "objects") as pool:
            deque(pool.map(lambda change: self.update(*change), changes.items()), maxlen=0)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the files that begin with *prefix*, sorted."""
        return sorted({key.removesuffix(_ENDING) for key in self._store.list(prefix)})

    def walk(self) -> Iterator[str]:
        """Yield the names of all files, in no order, as they are found."""
        return (key.removesuffix(_ENDING) for key in self._store.list())

    def update(self, name: str, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
        """Replace a JSON file by what *change* makes of it, against concurrent updates.

        Args:
            name: of the file.
            change: old content (``None`` if there is none) -> new content; leaves the old as it is.
        """
        if (old := self.read_json(name)) is not None and change(old) == old:
            return

        def changed(data: bytes | None) -> bytes:
            return as_json(change(None if data is None else _object(data, f"{self.url}/{name}")))

        self._store.update(name, changed)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, or ``None`` if there is no such file.

        Raises:
            VolumeError: it holds something else.
        """
        data = self.get(name)
        return None if data is None else _object(data, f"{self.url}/{name}")

    def describe(self, info: dict[str, Any]) -> bool:
        """Write the info file, unless there is one; return whether this call has.

        Raises:
            VolumeError: there is one of another ``@type``.
        """
        found = self.read_json("info")
        if found is None:
            return self._store.put_if_absent("info", as_json(info))
        if found.get("@type") != info["@type"]:
            msg = (
                f"{self.url} holds {found.get('@type')}, not {info['@type']}; choose another folder"
            )
            raise VolumeError(msg)
        return False


def folder_of(url: str, role: Role, default: str | None = None) -> ObjectFolder:
    """Return the folder of the meshes or skeletons of a volume, or the folder *url* itself.

    Args:
        url: of a store: of a precomputed volume (its info file has ``scales``), or a plain folder.
        role: key of the volume's info file that names the folder.
        default: name that the volume is given where it has none.

    Raises:
        VolumeError: the volume has none and no *default* is given; or info is no JSON object.
    """
    place = ObjectFolder(url)
    info = place.read_json("info")
    if info is None or "scales" not in info:
        return place
    name = info.get(role)
    if not name and default is None:
        command = "mesh" if role == "mesh" else "skeletonize"
        msg = f"the info file of {place.url} names no {role} folder; make it by {command}"
        raise VolumeError(msg)
    if not name:
        name = default
        place.update("info", lambda old: {**(old or {}), role: (old or {}).get(role) or default})
    return ObjectFolder(f"{place.url.rstrip('/')}/{name}")


def scales_of(url: str) -> list[tuple[float, float, float]]:
    """Return the voxel sizes (nm, zyx) of the levels of a precomputed volume; none of others."""
    info = ObjectFolder(url).read_json("info") or {}
    try:
        sizes = [[float(nm) for nm in scale["resolution"]] for scale in info.get("scales", [])]
        return [(z, y, x) for x, y, z in sizes]
    except (LookupError, TypeError, ValueError) as error:
        msg = f"the info file of {url} is damaged or incomplete ({error}); create it again"
        raise VolumeError(msg) from error


def as_json(content: dict[str, Any]) -> bytes:
    """Return JSON, the same bytes for the same content."""
    return json.dumps(content).encode()


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = parse_json(_unpacked(data, what), None)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        msg = f"{what} is no JSON object; it is damaged, or not what it should be"
        raise VolumeError(msg)
    return found


def _unpacked(data: bytes, what: str) -> bytes:
    """Return *data* without gzip, if it is gzipped.

    Raises:
        VolumeError: it unpacks to much more than meshes and skeletons do.
    """
    if data[:3] != b"\x1f\x8b\x08":
        return data
    try:
        return decode("gzip members", data, _RATIO * len(data) + _RATIO_FROM)
    except TooLargeError as error:
        msg = f"{what} is damaged: {error}; make it again"
        raise VolumeError(msg) from error
    except (ValueError, zlib.error):  # three bytes of something else
        return data


def objects_below(url: str) -> Output:
    """Return what a run keeps of files in a folder, or in one of the volume there."""
    return Output("objects", f"{open_store(url).url.rstrip('/')}/")


def named_after(prefix: str) -> tuple[ObjectFolder, str]:
    """Return the folder of the files whose names begin with *prefix*, and how they begin there.

    Args:
        prefix: path or URL; that of a folder that exists needs no slash at its end.
    """
    is_local = "://" not in prefix or prefix.startswith("file://")
    path = prefix.removeprefix("file://")
    if is_local and Path(path).expanduser().is_dir():
        return ObjectFolder(path), ""
    folder, slash, start = path.rpartition("/")
    return ObjectFolder(folder or slash or "."), start
