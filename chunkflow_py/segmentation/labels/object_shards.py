"""Shards of meshes or skeletons: a shard is a file of all objects whose ids have the same hash.

```
seg/mesh_mip_0_err_40/ID:0:BOX          fragments, in any number of files for each object
seg/mesh_mip_0_err_40_sharded/info      {"@type": ..., "sharding": {...}}
seg/mesh_mip_0_err_40_sharded/0.shard   | shard index | objects | minishard indices |
```

The hash divides the objects evenly, whatever their ids are. Each task writes one whole shard. The
task lists the folder of fragments, and joins the fragments of each object of its shard, one object
after the other. Therefore, the bytes of a shard depend only on its objects, and a task needs memory
for one shard and one object. Like other tasks, such a task is named by a box: the task of shard 5
has the box 5-6_0-1_0-1.

Format: `chunkflow_py.volume.precomputed.sharding`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkflow_py.core.decoding import packed_most
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.segmentation.labels.object_folder import SHARDED, ObjectFolder
from chunkflow_py.segmentation.labels.prefix import by_object, no_fragments
from chunkflow_py.tasks.task_plan import GridPlan
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress
from chunkflow_py.volume.precomputed.sharding import (
    Sharding,
    exactly,
    read_minishard,
    read_shard_index,
    shard_content,
    unpacked,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from chunkflow_py.store.store_protocol import Stored

_ONE = Zyx(1, 1, 1)
_MINISHARD_BITS = 9  # with 100,000 objects in a shard, a minishard index has 200 entries
_MOST_SHARDS = 1 << 20
_NAMES_AT_ONCE = 1 << 16
_IDS = 1 << 64


class ShardEntry(NamedTuple):
    """An object in a shard.

    Attributes:
        label: id of the object.
        content: bytes that a reader finds in the shard under the id.
        lead: bytes that are stored directly before the content. For a multi-resolution mesh, the
            content is the manifest, and *lead* contains its fragments.
    """

    label: int
    content: bytes
    lead: bytes = b""


def sharding_of(shards: int, *, gzip_data: bool = True) -> Sharding:
    """Return the sharding parameters that divide objects into a number of shards.

    Raises:
        OptionError: *shards* is not a power of two, or too large.
    """
    if not 1 <= shards <= _MOST_SHARDS or shards & (shards - 1):
        near = min(_MOST_SHARDS, 1 << max(0, shards - 1).bit_length())
        msg = (
            f"{shards} shards are not possible: the number of shards is a power of two up to "
            f"{_MOST_SHARDS}; give --shards {near}"
        )
        raise OptionError(msg)
    bits = shards.bit_length() - 1
    return Sharding(0, _MINISHARD_BITS, bits, "murmurhash3_x86_128", gzip_data=gzip_data)


def shard_plan(shards: int, number: int | None = None) -> GridPlan:
    """Return the plan with one task for each shard.

    Args:
        shards: number of shards.
        number: the only shard to plan for (default: all).

    Raises:
        OptionError: *shards* is not a power of two, or no shard has the number *number*.
    """
    sharding_of(shards)
    if number is not None and not 0 <= number < shards:
        msg = f"there is no shard {number}; with --shards {shards}, give 0 to {shards - 1}"
        raise OptionError(msg)
    grid = BoxGrid(Zyx(0, 0, 0), _ONE, _ONE, Zyx(shards, 1, 1))
    return GridPlan(grid, indexes=None if number is None else range(number, number + 1))


class ObjectShards:
    """Writes meshes or skeletons in shards, from the fragments that other tasks have stored.

    Args:
        fragments: folder of the fragments.
        parts: number of parts of a fragment's name, separated by colons; see `by_object`.
        command: name of the command that makes fragments, for messages.
        info: content of the info file of the shards, without the entry ``sharding``.
        count: number of shards.
        gzip_data: whether to gzip the content of each object.
        beside: the folder of shards is named after this folder, with the suffix ``_sharded``
            (default: *fragments*).

    Attributes:
        count: number of shards.
        target: folder of the shards, with its info file.

    Raises:
        OptionError: *count* is not a power of two.
        VolumeNotFoundError: the folder of fragments is empty.
        VolumeError: the folder of shards exists, and has another number of shards.
    """

    def __init__(
        self,
        fragments: ObjectFolder,
        parts: int,
        command: str,
        info: Mapping[str, Any],
        count: int,
        *,
        gzip_data: bool,
        beside: ObjectFolder | None = None,
    ) -> None:
        self.count = count
        self._fragments, self._parts, self._command = fragments, parts, command
        self._sharding = sharding_of(count, gzip_data=gzip_data)
        if next(fragments.walk(), None) is None:
            raise no_fragments(fragments, command)
        self.target = ObjectFolder((beside or fragments).url + SHARDED)
        self.target.describe({**info, "sharding": self._sharding.to_json()})
        present = (self.target.read_json("info") or {}).get("sharding")
        if present != self._sharding.to_json():
            bits = present.get("shard_bits") if isinstance(present, dict) else None
            old = f"{1 << bits} shards" if isinstance(bits, int) else "no shards"
            msg = (
                f"{self.target.url} was made with {old}, not with {count} shards; change --shards, "
                "or remove this folder first"
            )
            raise VolumeError(msg)

    def number_of(self, box: BoundingBox) -> int:
        """Return the number of the shard that a task writes, from the box of the task.

        Raises:
            OptionError: *box* does not belong to a task of `shard_plan`.
        """
        number = box.start.z
        if box != BoundingBox.from_size((number, 0, 0), _ONE) or not 0 <= number < self.count:
            last = self.count - 1
            msg = (
                f"task {box} is not the box of a shard; with --shards {self.count}, give boxes "
                f"from 0-1_0-1_0-1 (shard 0) to {last}-{last + 1}_0-1_0-1 (shard {last})"
            )
            raise OptionError(msg)
        return number

    def fragments(self, shard: int) -> dict[int, list[str]]:
        """Return the names of the fragments of each object in a shard; ids and names are sorted.

        Raises:
            VolumeError: the id in a file name has more than 64 bits.
        """
        names = self._fragments.walk()
        found: dict[int, set[str]] = {}
        while batch := list(islice(names, _NAMES_AT_ONCE)):
            objects = by_object(batch, self._parts)
            largest = max(objects, default=0)
            if largest >= _IDS:
                msg = (
                    f"{self._fragments.url}/{objects[largest][0]} names object {largest}, but ids "
                    f"must be less than 2^64; remove this file, or run {self._command} again"
                )
                raise VolumeError(msg)
            labels = np.array(list(objects), np.uint64)
            for label in labels[self._sharding.place(labels)[0] == shard].tolist():
                found.setdefault(label, set()).update(objects[label])
        return {label: sorted(found[label]) for label in sorted(found)}

    def write(self, shard: int, entries: Iterable[ShardEntry]) -> list[Stored]:
        """Write a whole shard, or remove the shard if it has no entries.

        Returns:
            Record of the shard; an empty list if there are no entries.
        """
        name = self._sharding.file_name(shard)
        by_label = {entry.label: entry for entry in entries}
        if not by_label:
            self.target.remove(name)
            return []
        labels = np.array(sorted(by_label), np.uint64)
        labels = labels[np.argsort(self._sharding.place(labels)[1], kind="stable")]
        leads, contents = [], []
        for label in labels.tolist():
            entry = by_label.pop(label)
            leads.append(entry.lead)
            packs = self._sharding.gzip_data
            contents.append(gzip_compress(entry.content) if packs else entry.content)
        content = shard_content(
            self._sharding,
            labels,
            np.array([len(part) for part in contents], np.uint64),
            (part for pair in zip(leads, contents, strict=True) for part in pair),
            np.array([len(part) for part in leads], np.uint64),
        )
        return self.target.put([(name, content)], compress=False)


def read_shards(folder: ObjectFolder, document: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield the id and the content of each object in the shards of a folder.

    Args:
        folder: folder of the shards.
        document: the entry ``sharding`` of the info file.

    Raises:
        VolumeError: the sharding is not supported, or a shard is damaged.
    """
    try:
        sharding = Sharding.parse(document)
    except (LookupError, TypeError, ValueError) as error:
        msg = (
            f"the info file of {folder.url} has a sharding that cannot be read: {error}; create "
            "the shards again"
        )
        raise VolumeError(msg) from error
    for name in folder.names():
        if name.endswith(".shard") and (data := folder.get(name)) is not None:
            try:
                yield from _entries(data, sharding)
            except ValueError as error:
                msg = f"{folder.url}/{name} is damaged: {error}; create the file again"
                raise VolumeError(msg) from error


def _entries(data: bytes, sharding: Sharding) -> Iterator[tuple[int, bytes]]:
    def read(start: int, stop: int) -> bytes:
        return data[start:stop]

    index = read_shard_index(read, sharding)
    for bounds in () if index is None else index:
        for label, start, stop in read_minishard(read, sharding, bounds).T.tolist():
            content = exactly(read, start, stop)
            if sharding.gzip_data:
                content = unpacked(content, packed_most(64 * len(content)))
            yield label, content
