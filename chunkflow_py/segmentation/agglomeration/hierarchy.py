"""The hierarchy of all merges, its cut at a threshold, and the absorption of small segments.

In the order of `Merges.sorted`, the mean affinities of the merges never rise. Therefore, the merges
with a mean affinity of at least T are exactly the merges of a greedy algorithm that stops when all
means are below T. So a hierarchy with all merges down to T contains the segmentations for T and for
all greater values of T.

Small segments are absorbed after the cut, in rounds. In each round, every small segment picks its
best contact, the two segments of each picked contact are united, and then the sums of all contacts
and the sizes of all segments are computed again. The rounds end when no segment picks a contact.
The result does not depend on the order of segments or contacts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.segmentation.agglomeration.contacts import Contacts, mean_keys
from chunkflow_py.segmentation.labels.union_find import smallest_of_sets

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from chunkflow_py.segmentation.agglomeration.region_merging import Merges


class Segments:
    """Maps the id of a fragment to the id of its segment: the smallest fragment id in the segment.

    Args:
        pairs: (n, 2) ids of fragments; the two fragments of a pair belong to one segment.
    """

    def __init__(self, pairs: NDArray[np.uint64]) -> None:
        self._ids, self._names = smallest_of_sets(pairs)

    def __call__(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the segment id of each of *ids*; a fragment without a pair is its own segment."""
        if not len(self._ids):
            return ids
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[places] == ids, self._names[places], ids)

    @property
    def changes(self) -> NDArray[np.uint64]:
        """Fragments whose id is not the id of their segment, each with the id of its segment.

        The array has the shape (n, 2): a column of fragment ids, ascending, and a column of segment
        ids.
        """
        changed = self._ids != self._names
        return np.stack((self._ids[changed], self._names[changed]), axis=1)


def reaches(contacts: Contacts, least: Fraction) -> NDArray[np.bool_]:
    """Return a mask of the contacts with a mean affinity of at least *least*, in integer units."""
    whole, rest = mean_keys(contacts.total, contacts.count)
    (least_whole,), (least_rest,) = mean_keys(
        np.array([least.numerator]), np.array([least.denominator])
    )
    reached: NDArray[np.bool_] = (whole > least_whole) | (
        (whole == least_whole) & (rest >= least_rest)
    )
    return reached


def cut(merges: Merges, least: Fraction) -> NDArray[np.uint64]:
    """Return the merges whose mean affinity is at least *least*, as (n, 2) pairs of region ids."""
    contacts = merges.contacts.rows(reaches(merges.contacts, least))
    return np.stack((contacts.first, contacts.second), axis=1)


def absorbed(
    pairs: NDArray[np.uint64],
    contacts: Contacts,
    sizes: tuple[NDArray[np.uint64], NDArray[np.int64]],
    smallest: int,
    floor: Fraction,
) -> NDArray[np.uint64]:
    """Unite each small segment with the neighbour to which its mean affinity is greatest.

    Args:
        pairs: (n, 2) ids of fragments that belong to one segment, see `cut`.
        contacts: contacts of the fragments, in any order; the contact of two fragments may have
            several rows.
        sizes: two arrays, the ids of fragments and their numbers of voxels. If an id has several
            entries, its numbers of voxels are added up.
        smallest: segments with fewer voxels than this are united with a neighbour.
        floor: smallest mean affinity at which a small segment is united, in the unit of the
            integer affinities (255 or 65535 for 1).

    Returns:
        An array of shape (n, 2): the rows of *pairs*, and further pairs that unite small segments.
    """
    while True:
        segments = Segments(pairs)
        ids, place = np.unique(segments(sizes[0]), return_inverse=True)
        voxels = np.zeros(len(ids), np.int64)
        np.add.at(voxels, place, sizes[1])
        small = ids[voxels < smallest]
        table = Contacts(
            segments(contacts.first), segments(contacts.second),
            contacts.total, contacts.count, contacts.tie,
        )  # fmt: skip
        table = table.rows(np.isin(table.first, small) | np.isin(table.second, small)).summed()
        table = table.rows(reaches(table, floor))
        picks = _picks(table, small)
        if not len(picks):
            return pairs
        pairs = np.concatenate((pairs, picks))


def _picks(table: Contacts, small: NDArray[np.uint64]) -> NDArray[np.uint64]:
    whole, rest = mean_keys(table.total, table.count)
    ends = np.concatenate((table.first, table.second))
    others = np.concatenate((table.second, table.first))
    keys = [np.concatenate((each, each)) for each in (table.tie, -rest, -whole)]
    order = np.lexsort((*keys, ends))
    ends, others = ends[order], others[order]
    best = np.ones(len(ends), bool)
    best[1:] = ends[1:] != ends[:-1]
    best &= np.isin(ends, small)
    return np.stack((ends[best], others[best]), axis=1)
