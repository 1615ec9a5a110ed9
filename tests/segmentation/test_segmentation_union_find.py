"""Vectorised union-find, compared with SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from chunkflow_py.segmentation.labels import union_find
from chunkflow_py.segmentation.labels.union_find import Forest, smallest_of_sets


def by_scipy(pairs: np.ndarray) -> dict[int, int]:
    """Return label -> smallest label of its set."""
    labels, codes = np.unique(pairs, return_inverse=True)
    a, b = codes.reshape(-1, 2).T
    graph = coo_array((np.ones(len(a)), (a, b)), shape=(len(labels),) * 2)
    _, sets = connected_components(graph, directed=False)
    return {int(labels[k]): int(labels[sets == sets[k]].min()) for k in range(len(labels))}


LABELS = st.integers(0, 12) | st.integers(2**64 - 4, 2**64 - 1)


@given(st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=25), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_smallest_label_of_each_set(pairs: list[tuple[int, int]], step: int) -> None:
    """For pairs added at once or a few at a time, each label gets the smallest of its set."""
    array = np.array(pairs, np.uint64)
    expected = by_scipy(array)
    labels, smallest = smallest_of_sets(array)
    assert dict(zip(labels.tolist(), smallest.tolist(), strict=True)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(union_find, "LEAST_WAITING", 3)
        forest = Forest()
        for at in range(0, len(array), step):
            forest.add(array[at : at + step])
        changes = forest.changes()
    assert dict(changes.tolist()) == {a: b for a, b in expected.items() if a != b}
    assert (np.diff(changes[:, 0].astype(object)) > 0).all()


@pytest.mark.long
def test_long_chains_take_few_rounds() -> None:
    """A chain of a million labels in random order, the worst case for paths, is one set."""
    order = np.random.default_rng(0).permutation(10**6).astype(np.uint64)
    labels, smallest = smallest_of_sets(np.stack((order[:-1], order[1:]), axis=1))
    assert len(labels) == 10**6
    assert not smallest.any()


def test_nothing_is_linked() -> None:
    """Without pairs nothing changes."""
    forest = Forest()
    forest.add(np.empty((0, 2), np.uint64))
    assert forest.changes().shape == (0, 2)
