"""Storage of the contacts, graphs and merges of an agglomeration, one object for each box.

```
URL/contacts/BOX.npz    contacts between the fragments of one task, and sizes of the fragments
URL/level-0/BOX.npz     merges in the box of a task, and the graph that remains after the merges
URL/level-1/BOX.npz     the same for a box of 2 x 2 x 2 tasks; and so on, up to the whole volume
```

The objects are npz files without pickles. Each contains the `GraphSettings` as JSON in UTF-8. These
settings must be equal in all objects.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ChunkflowError, GeometryError, OptionError, VolumeError
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import MOST_EDGES, least_mean
from chunkflow_py.segmentation.agglomeration.region_merging import FACES, Merges, OpenGraph
from chunkflow_py.segmentation.labels.links import decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store

FORMAT = "chunkflow graph 1"
_CONTACTS = tuple(Contacts.none().columns())
_OPEN = ("face", "cut", "cut_face", "fragments", "regions")
_MOST_BYTES = 1 << 34  # of the arrays of one object


@dataclass(frozen=True)
class GraphSettings:
    """The settings of a graph, which all stored objects of the graph contain.

    Attributes:
        domain: bounds of the volume, as text.
        task_size: size of the task boxes, voxels, zyx.
        dtype: type of the affinities as integers, ``uint8`` or ``uint16``.
        max_threshold: regions were merged while 1 - mean affinity was at most this.
    """

    domain: str
    task_size: tuple[int, int, int]
    dtype: str
    max_threshold: float

    @property
    def box(self) -> BoundingBox:
        """Bounds of the volume."""
        return BoundingBox.parse(self.domain)

    @property
    def size(self) -> Zyx:
        """Size of the task boxes, voxels, zyx."""
        return Zyx(*self.task_size)

    def check_volume(self, bounds: BoundingBox, url: str) -> None:
        """Check that the graph was made from a volume with the given bounds.

        Args:
            bounds: bounds of the volume at *url*.
            url: address of the volume, for the message.

        Raises:
            OptionError: the graph was made from a volume with other bounds.
        """
        if str(bounds) != self.domain:
            msg = (
                f"the hierarchy was made from a volume with the bounds {self.domain}, but {url} "
                f"has the bounds {bounds} (zyx, voxels); give the volume from which the hierarchy "
                "was made"
            )
            raise OptionError(msg)

    def check_threshold(self, threshold: float, url: str) -> None:
        """Check that the hierarchy contains all merges up to a threshold.

        Args:
            threshold: regions are merged while 1 - mean affinity is at most this.
            url: address of the hierarchy.

        Raises:
            OptionError: the hierarchy contains merges only up to a lower threshold.
        """
        if threshold > self.max_threshold:
            msg = (
                f"--threshold {threshold:g} is above {self.max_threshold:g}, the highest threshold "
                f"of the hierarchy in {url}; give at most --threshold {self.max_threshold:g}, or "
                "run segment-affinity again with a higher --max-threshold"
            )
            raise OptionError(msg)

    @property
    def least(self) -> Fraction:
        """Smallest mean affinity at which regions were merged, in integer units.

        In integer units, an affinity of 1 is 255 for uint8, and 65535 for uint16.
        """
        return least_mean(self.max_threshold, self.dtype)

    def grid(self, level: int) -> BoxGrid:
        """Return the boxes of a level; at level k, a box has 2**k tasks along each axis."""
        size = self.size * 2**level
        return BoxGrid.covering(self.box, size, respect_stop=True)

    @property
    def last_level(self) -> int:
        """Lowest level, at least 1, at which a single box covers the whole volume."""
        return max(1, *((each - 1).bit_length() for each in self.grid(0).count))

    def check(self, box: BoundingBox, level: int) -> None:
        """Check that a box belongs to a level.

        Raises:
            GeometryError: the box does not belong to the level.
        """
        grid = self.grid(level)
        cell = grid.cell_of(box.start)
        nearest = None if cell is None else grid.box(cell)
        if nearest != box:
            size = self.size * 2**level
            msg = (
                f"task {box} is not a box of level {level}. The boxes of this level begin at the "
                f"first voxel of the volume {self.domain} and have {size} voxels (zyx). The box "
                f"that contains {box.start} is {nearest}. Run generate-tasks with --volume-path, "
                f"--chunk-size {size.as_option} and --respect-stop"
            )
            raise GeometryError(msg)

    def children(self, box: BoundingBox, level: int) -> list[BoundingBox]:
        """Return the boxes of the next lower level, *level* - 1, of which *box* consists."""
        cell = self.grid(level).cell_of(box.start)
        lower = self.grid(level - 1)
        if cell is None:
            return []
        cells = product(
            *(range(2 * k, min(2 * k + 2, n)) for k, n in zip(cell, lower.count, strict=True))
        )
        return [lower.box(each) for each in cells]

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes, address: str) -> GraphSettings:
        """Recreate the settings from the JSON text that `to_json` returns.

        Raises:
            VolumeError: *text* was not written by this version.
        """
        settings = None
        with suppress(ValueError, KeyError, TypeError, AttributeError, ChunkflowError):
            values = parse_json(text)
            names = {each.name for each in fields(cls)}
            if values.pop("format") == FORMAT and set(values) == names:
                read = cls(**{**values, "task_size": tuple(map(int, values["task_size"]))})
                good = len(read.task_size) == 3 and min(read.task_size) > 0 and read.least >= 0
                if good and read.dtype in ("uint8", "uint16") and not read.box.is_empty:
                    settings = read
        if settings is None:
            msg = (
                f"{address} was not written by measure-contacts or merge-regions of this version; "
                "run these steps again"
            )
            raise VolumeError(msg)
        return settings


class GraphStore:
    """Reads and writes the stored objects of a graph.

    Args:
        store: store of the graph.
        settings: settings that all objects must have (default: those of the first object that is
            read).
    """

    def __init__(self, store: Store, settings: GraphSettings | None = None) -> None:
        self.store = store
        self.settings = settings

    @property
    def known_settings(self) -> GraphSettings:
        """The settings of the graph, given to the constructor or read from the first object.

        Raises:
            VolumeError: no settings were given, and no object has been read yet.
        """
        if self.settings is None:
            msg = (
                f"no settings of the graph in {self.store.url} are known, because no file of the "
                "graph was read; run measure-contacts and merge-regions first"
            )
            raise VolumeError(msg)
        return self.settings

    def settings_below(self, box: BoundingBox, level: int, task_size: Zyx) -> GraphSettings:
        """Read the settings that are stored with the first of the smaller boxes in *box*.

        Args:
            box: a box of level *level*.
            level: number of the level, at least 1.
            task_size: size of the tasks of measure-contacts, voxels, zyx.

        Raises:
            VolumeError: the first smaller box has no stored object, or its object was made with
                tasks of another size.
        """
        stop = (box.start + task_size * 2 ** (level - 1)).low(box.stop)
        key = _key(BoundingBox(box.start, stop), level - 1)
        if self.store.size(key) is None:
            msg = (
                f"{self._address(key)} is missing; run measure-contacts and the lower levels of "
                "merge-regions first, with the same --task-size; run generate-tasks with "
                "--volume-path and --respect-stop"
            )
            raise VolumeError(msg)
        self._get(key)
        settings = self.known_settings
        if settings.size != task_size:
            msg = (
                f"{self.store.url} contains the contacts of tasks of {settings.size} (zyx, "
                f"voxels), but --task-size is {task_size}; give --task-size "
                f"{settings.size.as_option}"
            )
            raise VolumeError(msg)
        return settings

    def write_contacts(
        self,
        box: BoundingBox,
        contacts: Contacts,
        ids: NDArray[np.uint64],
        sizes: NDArray[np.int64],
    ) -> None:
        """Write the fragment contacts of a task, and the numbers of voxels of its fragments.

        Args:
            box: box of the task.
            contacts: contacts in the box and across its lower faces (at its start along each axis).
            ids: fragments in the box.
            sizes: number of voxels of each fragment in the box.
        """
        self._put(_key(box, None), {**contacts.columns(), "ids": ids, "sizes": sizes})

    def read_contacts(
        self, box: BoundingBox
    ) -> tuple[Contacts, NDArray[np.uint64], NDArray[np.int64]]:
        """Read the contacts of a task, and the ids and sizes of fragments; see `write_contacts`."""
        key = _key(box, None)
        found = self._get(key, *_CONTACTS, "ids", "sizes")
        ids, sizes = checked_columns(
            self._address(key), uint64=[found["ids"]], int64=[found["sizes"]]
        )
        return contact_columns(found, self._address(key)), ids, sizes

    def write_level(self, box: BoundingBox, level: int, merges: Merges, graph: OpenGraph) -> None:
        """Write the merges in a box, and the graph that remains after these merges."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, table in (
            ("merges", merges.contacts), ("inside", graph.inside), ("crossing", graph.crossing)
        ):  # fmt: skip
            arrays |= {f"{name}_{key}": column for key, column in table.columns().items()}
        arrays |= {name: getattr(graph, name) for name in _OPEN}
        self._put(_key(box, level), arrays)

    def read_merges(self, box: BoundingBox, level: int) -> Merges:
        """Return the merges in a box."""
        key = _key(box, level)
        found = self._get(key, *(f"merges_{each}" for each in _CONTACTS))
        return Merges(contact_columns(found, self._address(key), "merges_"))

    def read_graph(self, box: BoundingBox, level: int) -> OpenGraph:
        """Return the graph that remains in a box after its merges."""
        key = _key(box, level)
        tables = [f"{table}_{each}" for table in ("inside", "crossing") for each in _CONTACTS]
        found, address = self._get(key, *tables, *_OPEN), self._address(key)
        inside = contact_columns(found, address, "inside_")
        crossing = contact_columns(found, address, "crossing_")
        cut, cut_face = checked_columns(address, uint64=[found["cut"]], uint8=[found["cut_face"]])
        names = checked_columns(address, uint64=[found["fragments"], found["regions"]])
        (face,) = checked_columns(address, uint8=[found["face"]])
        ascends = (names[0][1:] > names[0][:-1]).all() if len(names[0]) else True
        if len(face) != len(crossing) or max(face.max(initial=0), cut_face.max(initial=0)) >= FACES:
            raise _damage(address, "the face number of a contact or fragment is missing or wrong")
        if not ascends or not np.isin(np.concatenate((crossing.first, cut)), names[0]).all():
            raise _damage(address, "a fragment has no region")
        return OpenGraph(inside, crossing, face, cut, cut_face, *names)

    def _address(self, key: str) -> str:
        return f"{self.store.url.rstrip('/')}/{key}"

    def _put(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        about = np.frombuffer(self.known_settings.to_json().encode(), np.uint8)
        self.store.put(key, encoded(**arrays, about=about))

    def _get(self, key: str, *names: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of an object, by name and in the order of *names*.

        Raises:
            VolumeError: the object is missing or damaged, or has other settings.
        """
        address = self._address(key)
        arrays = decoded(self.store.get(key), address, *names, "about", most=_MOST_BYTES)
        settings = GraphSettings.from_json(arrays.pop("about").tobytes(), address)
        if self.settings is None:
            self.settings = settings
        if settings != self.settings:
            msg = (
                f"{address} has the settings {settings.to_json()}, which differ from "
                f"{self.settings.to_json()}; remove the graph, and run measure-contacts and "
                "merge-regions again with the same options"
            )
            raise VolumeError(msg)
        return arrays


def contact_columns(arrays: Mapping[str, NDArray[Any]], address: str, prefix: str = "") -> Contacts:
    """Check the columns that were read from a file, and return them as a table of contacts.

    Args:
        arrays: columns by name.
        address: address of the file that contains the columns, for messages.
        prefix: text before the name of each column in *arrays*.

    Raises:
        VolumeError: a column has a wrong type or length, or contains an impossible count, sum or
            tie.
    """
    columns = [arrays[f"{prefix}{each}"] for each in _CONTACTS]
    table = Contacts(*checked_columns(address, uint64=columns[:2], int64=columns[2:]))
    if len(table):
        counts = table.count.min() >= 1 and table.count.max() <= MOST_EDGES
        if not counts or min(table.total.min(), table.tie.min()) < 0:
            raise _damage(address, "a contact has an impossible count, sum or tie")
    return table


def checked_columns(address: str, **by_type: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Check the types and lengths of columns, and return the columns in one list.

    Args:
        address: address of the file that contains the columns, for messages.
        by_type: columns for each expected type, such as ``int64=[...]``.

    Raises:
        VolumeError: a column does not have the expected type, or the lengths differ.
    """
    every = [column for columns in by_type.values() for column in columns]
    good = all(
        column.ndim == 1 and column.dtype == dtype
        for dtype, columns in by_type.items()
        for column in columns
    )
    if not good or len({len(column) for column in every}) != 1:
        raise _damage(address, "the columns of its table differ in length, or have wrong types")
    return every


def _damage(address: str, why: str) -> VolumeError:
    return VolumeError(f"{address} is damaged: {why}; repeat the task that writes this file")


def _key(box: BoundingBox, level: int | None) -> str:
    return f"{'contacts' if level is None else f'level-{level}'}/{box}.npz"
