"""The stored hierarchy: one order of all merges, whatever boxes they come from."""

import secrets

import numpy as np
import pytest

from chunkflow_py.segmentation.agglomeration import graph_memory
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean, scale_of
from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings
from chunkflow_py.segmentation.agglomeration.hierarchy import reaches
from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_hierarchy, write_hierarchy
from chunkflow_py.segmentation.agglomeration.region_merging import Merges
from chunkflow_py.store.memory_store import MemoryStore


def random_merges(rng, count, dtype):
    """Return merges in the order of their means, many of them equal."""
    edges = rng.integers(1, 4, count)
    means = rng.choice([0, 1, scale_of(dtype) // 2, scale_of(dtype) - 1, scale_of(dtype)], count)
    total = np.clip(means * edges - rng.integers(0, 2, count), 0, None)
    ids = np.arange(1, 2 * count + 1, dtype=np.uint64).reshape(2, count)
    return Merges(Contacts(*ids, total, edges, rng.permutation(count))).sorted()


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("seed", range(5))
def test_any_division_into_parts_gives_the_same_hierarchy(dtype, seed):
    """The merges of boxes are brought into one order, and cut at a threshold."""
    rng = np.random.default_rng(seed)
    merges = random_merges(rng, 200, dtype)
    settings = GraphSettings("0-1_0-1_0-1", (1, 1, 1), dtype, 1.0)
    stored = []
    for parts in (1, 7, 50):
        store, of_part = MemoryStore(secrets.token_hex(8)), rng.integers(0, parts, len(merges))
        boxes = (Merges(merges.contacts.rows(of_part == part)) for part in range(parts))
        write_hierarchy(store, boxes, settings, piece=16)
        stored.append({key: store.get(key) for key in store.list()})
        found, _ = read_hierarchy(store)
        for name, column in merges.contacts.columns().items():
            np.testing.assert_array_equal(getattr(found.contacts, name), column)
        some, _ = read_hierarchy(store, 0.5)
        wanted = merges.contacts.rows(reaches(merges.contacts, least_mean(0.5, dtype)))
        np.testing.assert_array_equal(some.contacts.tie, wanted.tie)
    assert stored[0] == stored[1] == stored[2]


def test_a_volume_without_merges():
    """A hierarchy may be empty."""
    store = MemoryStore(secrets.token_hex(8))
    write_hierarchy(store, [Merges()], GraphSettings("0-1_0-1_0-1", (1, 1, 1), "uint8", 0.5))
    assert len(read_hierarchy(store)[0]) == 0


def test_expected_memory_grows_slower_than_a_box():
    """Boxes twice as long have less than eight times as many open contacts."""
    small, large = (graph_memory.graph_bytes(64 * 256 * 256 * factor) for factor in (1, 8))
    assert 4 * small < large < 8 * small
