"""The hierarchy of all merges, its cut at a threshold, and the absorption of small segments.

The mean affinities of the merges fall, in the order of `Merges.sorted`. Therefore, the merges of at
least a mean T are exactly those of the greedy algorithm that stops at T: one hierarchy contains the
segmentations for all thresholds above the one it was made for.

Small segments are absorbed after the cut, in rounds: every segment below the size picks its best
contact, all picks are united at once, and sums and sizes are added anew. The rounds end when no
segment picks a contact. They do not depend on any order.
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
    """Names of fragments -> names of segments, each the smallest id of its fragments.

    Args:
        pairs: (n, 2) ids that belong to one segment.
    """

    def __init__(self, pairs: NDArray[np.uint64]) -> None:
        self._ids, self._names = smallest_of_sets(pairs)

    def __call__(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the segments of *ids*; an id without a pair is a segment of its own."""
        if not len(self._ids):
            return ids
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[places] == ids, self._names[places], ids)

    @property
    def changes(self) -> NDArray[np.uint64]:
        """(n, 2): ids that are not segments (ascending), and their segments."""
        changed = self._ids != self._names
        return np.stack((self._ids[changed], self._names[changed]), axis=1)


def reaches(contacts: Contacts, least: Fraction) -> NDArray[np.bool_]:
    """Return whether the mean affinity of each contact is at least *least*, in integer units."""
    whole, rest = mean_keys(contacts.total, contacts.count)
    (least_whole,), (least_rest,) = mean_keys(
        np.array([least.numerator]), np.array([least.denominator])
    )
    reached: NDArray[np.bool_] = (whole > least_whole) | (
        (whole == least_whole) & (rest >= least_rest)
    )
    return reached


def cut(merges: Merges, least: Fraction) -> NDArray[np.uint64]:
    """Return (n, 2) pairs of region ids: the merges of at least a mean affinity."""
    contacts = merges.contacts.rows(reaches(merges.contacts, least))
    return np.stack((contacts.first, contacts.second), axis=1)


def absorbed(
    pairs: NDArray[np.uint64],
    contacts: Contacts,
    sizes: tuple[NDArray[np.uint64], NDArray[np.int64]],
    smallest: int,
    floor: Fraction,
) -> NDArray[np.uint64]:
    """Unite segments below a size with their best neighbours.

    Args:
        pairs: (n, 2) ids of fragments that belong to one segment, see `cut`.
        contacts: contacts of the fragments; rows may be in any order, and repeat.
        sizes: ids of fragments, and their numbers of voxels; ids may repeat.
        smallest: segments of fewer voxels are united with another one.
        floor: smallest mean affinity of the contact with that other one, in integer units.

    Returns:
        (n, 2) *pairs*, and those that unite small segments.
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
    """Return (n, 2): each of the *small* segments and the segment of its best contact."""
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
