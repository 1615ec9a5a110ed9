"""Union-find with numpy: the sets of labels that pairs of labels connect.

The smallest label of a set represents the set, so the result does not depend on the order of pairs,
or on how often a pair occurs. Pairs are added in batches. After each batch, only one pair is kept
for each label: the label and the smallest label of its set. So the memory is at most about 250
bytes for each distinct label, for any number of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_WAITING = 2**20  # pairs that are collected before they are merged into the forest


def smallest_of_sets(
    pairs: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the labels of *pairs*, and for each label the smallest label of its set.

    Args:
        pairs: (n, 2); the two labels of a pair belong to the same set.

    Returns:
        The labels in ascending order, and for each label the smallest label of its set.
    """
    # In each round, every root that has a pair with a smaller root becomes the child of that root;
    # then each label is attached directly to its root. Two rounds at least halve the number of
    # roots that still have pairs.
    labels = np.unique(pairs)
    first, second = (np.searchsorted(labels, pairs[:, side]) for side in (0, 1))
    parent = np.arange(len(labels))
    while len(first):
        first, second = parent[first], parent[second]
        apart = first != second
        first, second = first[apart], second[apart]
        low, high = np.minimum(first, second), np.maximum(first, second)
        np.minimum.at(parent, high, low)
        while not np.array_equal(shorter := parent[parent], parent):
            parent = shorter
        first, second = low, high
    return labels, labels[parent]


@dataclass
class Forest:
    """Disjoint sets of labels, joined pair by pair."""

    _kept: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    _waiting: list[NDArray[np.uint64]] = field(default_factory=list)
    _count: int = 0

    def add(self, pairs: NDArray[np.uint64]) -> None:
        """Join the sets of the two labels of each pair in *pairs*, (n, 2)."""
        if len(pairs):
            self._waiting.append(pairs)
            self._count += len(pairs)
        # Merging when the number of pairs has doubled keeps the total work proportional to it.
        if self._count >= max(LEAST_WAITING, len(self._kept)):
            self._merge()

    def changes(self) -> NDArray[np.uint64]:
        """Return pairs of a label and the smallest label of its set, where the two differ.

        The result is an array of shape (n, 2).
        """
        self._merge()
        return self._kept

    def _merge(self) -> None:
        if not self._waiting:
            return
        pairs = np.concatenate([self._kept, *self._waiting])
        self._waiting.clear()
        self._count = 0
        labels, smallest = smallest_of_sets(pairs)
        changed = labels != smallest
        self._kept = np.stack((labels[changed], smallest[changed]), axis=1)
