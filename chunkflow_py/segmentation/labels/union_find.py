"""Which labels are one object: union-find over pairs, in whole arrays.

The smallest label of a set stands for it, so that neither the order nor the number of pairs
matters. Pairs are added a part at a time; of what was added only a forest is kept (one pair for
each label that is not the smallest of its set). Memory is at most about 250 bytes for each
different label of the pairs, however many pairs there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_WAITING = 2**20  # pairs that are gathered before they are worked in


def smallest_of_sets(
    pairs: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return each label of *pairs*, and the smallest of all that hang together with it.

    In every round each root that has a smaller neighbour is hung below it, then all paths are
    shortened; two rounds at least halve the number of roots that have neighbours.

    Args:
        pairs: (n, 2) labels that belong together.

    Returns:
        The labels in rising order, and for each the smallest of its set.
    """
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
    """Sets of labels that grow by pairs."""

    _kept: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    _waiting: list[NDArray[np.uint64]] = field(default_factory=list)
    _count: int = 0

    def add(self, pairs: NDArray[np.uint64]) -> None:
        """Join the two labels of each of *pairs*, (n, 2)."""
        if len(pairs):
            self._waiting.append(pairs)
            self._count += len(pairs)
        # As much as is kept already: then all the work is a few times that of one go.
        if self._count >= max(LEAST_WAITING, len(self._kept)):
            self._work_in()

    def changes(self) -> NDArray[np.uint64]:
        """Return (n, 2): labels that are not the smallest of their set, in order, and that one."""
        self._work_in()
        return self._kept

    def _work_in(self) -> None:
        if not self._waiting:
            return
        pairs = np.concatenate([self._kept, *self._waiting])
        self._waiting.clear()
        self._count = 0
        labels, smallest = smallest_of_sets(pairs)
        changed = labels != smallest
        self._kept = np.stack((labels[changed], smallest[changed]), axis=1)
