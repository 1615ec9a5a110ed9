"""Contacts: tables with one row for each pair of touching regions.

An edge is a pair of voxels that share a face. Each edge has an affinity and an index. A row
contains the sum of the affinities of the edges between the two regions, the number of these edges
(count), and the lowest index of these edges (tie). The mean affinity of a contact is sum / count.
Means are compared exactly, by `mean_keys`. If the means of two contacts are equal, the contact with
the smaller tie is better.

Sums of uint8 affinities fit into int64 for volumes of up to 10**16 voxels. Sums of uint16
affinities fit for volumes of up to 4.6 * 10**13 voxels. `edge_affinities.check_sums` refuses larger
volumes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.agglomeration.edge_affinities import MOST_EDGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox

_EDGES_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class Contacts:
    """A table of contacts, one row for each pair of regions.

    Attributes:
        first, second: ids of the two regions, uint64.
        total: sum of the affinities of the edges between them, int64.
        count: number of these edges, int64.
        tie: lowest index of these edges, int64; see `edge_affinities`.
    """

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    total: NDArray[np.int64]
    count: NDArray[np.int64]
    tie: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.first)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def rows(self, which: Any) -> Contacts:
        """Return the rows selected by *which*: a mask, an array of positions or a slice."""
        return Contacts(*(column[which] for column in self.columns().values()))

    @classmethod
    def none(cls) -> Contacts:
        """Return a table without rows."""
        ids, numbers = np.empty(0, np.uint64), np.empty(0, np.int64)
        return cls(ids, ids, numbers, numbers, numbers)

    @classmethod
    def joined(cls, tables: Iterable[Contacts]) -> Contacts:
        """Return the rows of all tables, one after the other."""
        tables = [cls.none(), *tables]
        names = [each.name for each in fields(cls)]
        return cls(*(np.concatenate([getattr(each, name) for each in tables]) for name in names))

    def summed(self, *, is_directed: bool = False) -> Contacts:
        """Return a table with one row for each pair of regions, adding up the rows of equal pairs.

        The rows are sorted by ids, and the smaller id of each row is first. Rows whose two ids are
        equal are left out.

        Args:
            is_directed: whether (a, b) and (b, a) count as two different pairs. If so, the two ids
                of a row keep their order.

        Raises:
            ChunkError: two regions touch at more than `MOST_EDGES` voxel faces.
        """
        apart = self.first != self.second
        table = self if apart.all() else self.rows(apart)
        if not len(table):
            return self.none()
        low, high = table.first, table.second
        if not is_directed:
            low, high = np.minimum(low, high), np.maximum(low, high)
        order = np.lexsort((high, low))
        low, high = low[order], high[order]
        new = np.ones(len(low), bool)
        new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        starts = np.flatnonzero(new)
        count = np.add.reduceat(table.count[order], starts)
        if count.max() > MOST_EDGES:
            at = int(count.argmax())
            msg = (
                f"regions {low[starts][at]} and {high[starts][at]} share {count.max()} voxel "
                f"faces, but at most {MOST_EDGES} are supported; raise --aff-threshold-high, so "
                "that fragments are smaller"
            )
            raise ChunkError(msg)
        return Contacts(
            low[starts],
            high[starts],
            np.add.reduceat(table.total[order], starts),
            count,
            np.minimum.reduceat(table.tie[order], starts),
        )


def contacts_of(
    fragments: NDArray[np.uint64],
    edges: NDArray[Any],
    start: Iterable[int],
    domain: BoundingBox,
    axes: Iterable[int] = (0, 1, 2),
    *,
    is_directed: bool = False,
) -> Contacts:
    """Return the contacts of the fragments in a box, one row for each pair; see `Contacts.summed`.

    Args:
        fragments: (z, y, x) ids of fragments. Background, 0, has no contacts.
        edges: (3, z, y, x) affinities of the same voxels as integers. In channel k, the values of
            plane 0 along axis k are not used, because their edges lead out of the array.
        start: position of the arrays' first voxel in the volume, zyx.
        domain: bounds of the volume.
        axes: axes (0 for z) along which contacts are counted.
        is_directed: if true, `Contacts.first` is the fragment that contains the first voxel of the
            edges (the voxel with the smaller coordinate), so a pair of fragments can have two rows,
            one for each order. If false, `Contacts.first` is the smaller id.
    """
    row, rows = int(domain.size.x), int(domain.size.x) * int(domain.size.y)
    at = [int(a) - int(b) for a, b in zip(start, domain.start, strict=True)]
    offset = at[0] * rows + at[1] * row + at[2]
    ids, labels = _numbered(fragments)
    tables = []
    planes = max(1, _EDGES_AT_ONCE // max(1, labels[:1].size))
    for low in range(0, len(labels), planes):
        for axis in axes:
            first = max(0, low - 1) if axis == 0 else low
            part = labels[first : low + planes]
            upper = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
            lower = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
            between = np.zeros(part.shape, bool)
            np.not_equal(part[lower], part[upper], out=between[upper])
            between[upper] &= part[lower] != 0
            between[upper] &= part[upper] != 0
            upper_voxels = np.flatnonzero(between)
            if not len(upper_voxels):
                continue
            one = part.ravel()[upper_voxels - (part[0].size, part.shape[2], 1)[axis]]
            two = part.ravel()[upper_voxels]
            pairs = one.astype(np.min_scalar_type(len(ids) ** 2)) * len(ids) + two
            order = np.argsort(pairs)
            pairs = pairs[order]
            starts = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
            z, y, x = np.unravel_index(upper_voxels[order], part.shape)
            edge = 3 * ((z + first) * rows + y * row + x + offset) + axis
            values = edges[axis, first : low + planes][z, y, x]
            table = Contacts(
                ids[one[order[starts]]],
                ids[two[order[starts]]],
                np.add.reduceat(values, starts, dtype=np.int64),
                np.diff(starts, append=len(pairs)),
                np.minimum.reduceat(edge, starts),
            )
            tables.append(table)
    return Contacts.joined(tables).summed(is_directed=is_directed)


def _numbered(fragments: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    import fastremap

    labels, numbers = fastremap.renumber(fragments, preserve_zero=True)
    ids = np.zeros(1 + int(max(numbers.values(), default=0)), np.uint64)
    ids[np.fromiter(numbers.values(), np.int64)] = np.fromiter(numbers, np.uint64)
    return ids, np.ascontiguousarray(labels)


def mean_keys(
    total: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two integers for each mean, total / count, so that means can be compared exactly.

    The first integer is the integer part of the mean. The second integer is the fractional part of
    the mean, in units of 2**-62, rounded down. Of two means, the greater has the greater pair of
    integers (the second integer decides if the first integers are equal). Two different fractions
    with denominators below 2**31 differ by more than 2**-62, so different means have different
    pairs. Equal means have equal pairs.

    Args:
        total: sums, at least 0.
        count: numbers of summands, 1 to 2**31 - 1.
    """
    whole, rest = np.divmod(total, count)
    high, rest = np.divmod(rest << 31, count)
    return whole, (high << 31) | ((rest << 31) // count)
