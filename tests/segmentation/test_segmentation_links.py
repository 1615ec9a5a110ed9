"""Links of labels: finding and storing them, and solving them into a table."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.labels.label_table import LabelTable, relabelled, write_table
from chunkflow_py.segmentation.labels.linking import solve_links
from chunkflow_py.segmentation.labels.links import (
    encoded_links,
    link_key,
    links_in,
    lower_slab,
    overlap_pairs,
    touching_pairs,
)
from chunkflow_py.store.memory_store import MemoryStore

PLANES = arrays(np.uint64, (2, 4, 5), elements=st.integers(0, 3))
NO_PAIR = np.empty((0, 2), np.uint64)


@given(PLANES, PLANES, st.sampled_from([6, 18, 26]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_pairs_that_touch(planes, values, connectivity, has_values) -> None:
    """Each pair of different labels that touch across the planes is returned once."""
    (lower, upper), (below, above) = planes, values
    upper = upper + 2 * (upper > 0)  # the labels 3 to 5: 3 is in both
    furthest = {6: 0, 18: 1, 26: 2}[connectivity]
    expected = set()
    for y, x, dy, dx in product(range(4), range(5), (-1, 0, 1), (-1, 0, 1)):
        if abs(dy) + abs(dx) > furthest or not (0 <= y + dy < 4 and 0 <= x + dx < 5):
            continue
        a, b = int(lower[y, x]), int(upper[y + dy, x + dx])
        if a and b and a != b and not (has_values and below[y, x] != above[y + dy, x + dx]):
            expected.add((min(a, b), max(a, b)))
    found = touching_pairs(lower, upper, connectivity, (below, above) if has_values else None)
    assert [tuple(pair) for pair in found.tolist()] == sorted(expected)


def test_segments_are_linked_to_their_best_partner() -> None:
    """Mutual best partners that share enough are linked, and nothing else."""
    first = np.array([1] * 6 + [2] * 6 + [3] * 4 + [0] * 4, np.uint64)
    second = np.array([11] * 5 + [12] * 7 + [13] * 1 + [0] * 3 + [14] * 4, np.uint64)
    # 1: 5 of 6 with 11, 1 with 12.  2: 6 of 6 with 12 (6 of 7).  3: 1 of 4 with 13 (1 of 1)
    assert overlap_pairs(first, second).tolist() == [[1, 11], [2, 12], [3, 13]]
    assert overlap_pairs(first, second, 0.7).tolist() == [[1, 11], [2, 12]]
    assert overlap_pairs(first, second, 0.95).tolist() == []
    assert overlap_pairs(first, second, 0.5, 6).tolist() == [[2, 12]]
    joined = np.where(second == 12, 11, second)  # 6 voxels of 1, and 6 of 2: of equals the smallest
    assert overlap_pairs(first, joined, 0).tolist() == [[1, 11], [3, 13]]
    joined[0] = 0
    assert overlap_pairs(first, joined, 0).tolist() == [[2, 11], [3, 13]]
    assert overlap_pairs(first, np.zeros_like(first)).tolist() == []


def put(store, box, pairs, **about) -> None:
    """Store links of a task."""
    region = Region.parse(box)
    store.put(link_key(region), encoded_links(np.array(pairs, np.uint64).reshape(-1, 2), about))


def test_links_become_a_table() -> None:
    """Chains of links across tasks end at the smallest id; time points are independent."""
    links, table = MemoryStore("links"), MemoryStore("table")
    put(links, "0-4_0-4_0-4", [[5, 2**64 - 1]])
    put(links, "0-4_0-4_4-8", [[3, 5], [7, 8]])
    put(links, "0-4_0-4_8-12", [])
    put(links, "t1_0-4_0-4_0-4", [[5, 6]])
    solve_links(links, table)
    labels = np.array([[[0, 1, 3, 5, 6, 7, 8, 2**64 - 1]]], np.uint64)
    mapped = relabelled(labels, LabelTable(table)).tolist()
    assert mapped == [[[0, 1, 3, 3, 6, 7, 7, 3]]]
    assert relabelled(labels, LabelTable(table, 1))[0, 0, 3:5].tolist() == [5, 5]
    assert labels[0, 0, 3] == 5
    stored = {key: table.get(key) for key in table.list()}
    solve_links(links, table)
    assert stored == {key: table.get(key) for key in table.list()}


def test_links_of_two_cuts_are_refused() -> None:
    """Overlapping tasks, two linking methods, damaged files and no links are refused."""
    links, table = MemoryStore("cuts"), MemoryStore("cuts table")
    with pytest.raises(VolumeError, match="has no links"):
        list(links_in(links))
    put(links, "0-4_0-4_0-4", [[1, 2]])
    put(links, "0-4_0-4_2-6", [[1, 2]])
    with pytest.raises(VolumeError, match="of tasks that overlap"):
        solve_links(links, table)
    links.delete(link_key(Region.parse("0-4_0-4_2-6")))
    put(links, "0-4_0-4_4-8", [[1, 2]], touch=26)
    with pytest.raises(VolumeError, match="were made with the method"):
        solve_links(links, table)
    links.put(link_key(Region.parse("0-4_0-4_4-8")), b"PK damage")
    with pytest.raises(VolumeError, match=r"0-4_0-4_4-8\.npz is damaged"):
        solve_links(links, table)
    assert not list(table.list())


def test_a_table_in_pieces() -> None:
    """Only the pieces that may list an id are read; a damaged one is never used."""
    rng = np.random.default_rng(0)
    old = np.unique(rng.integers(1, 2**60, 1000, np.uint64))
    changes = np.stack((old, old // np.uint64(2)), axis=1)
    store = MemoryStore("pieces")
    with pytest.raises(VolumeNotFoundError, match="solve-labels"):
        LabelTable(store).new_ids(old)
    write_table(store, changes, piece=64)
    others = np.array([0, 2**64 - 1], np.uint64)
    ids = np.unique(np.concatenate((old[::7], old[::5] + np.uint64(1), others)))
    expected = [int(i) // 2 if i in set(old.tolist()) else int(i) for i in ids.tolist()]
    assert LabelTable(store).new_ids(ids).tolist() == expected
    store.put("000003.npy", b"damage")
    some = old[:64]  # all in the first piece
    assert LabelTable(store).new_ids(some).tolist() == (some // 2).tolist()
    with pytest.raises(VolumeError, match=r"000003\.npy .* disagrees with the checksum"):
        LabelTable(store).new_ids(ids)


def has(box, place) -> bool:
    """Return whether a voxel lies in a box."""
    return all(a <= p < b for a, p, b in zip(box.start, place, box.stop, strict=True))


def test_every_face_is_seen_by_a_task() -> None:
    """For each pair of voxels that touch across task boundaries, one task reads both."""
    bounds = BoundingBox.from_size((1, 2, 3), (4, 5, 4))
    boxes = [
        BoundingBox.from_size((1 + z, 2 + y, 3 + x), (2, min(3, 5 - y), 2))
        for z, y, x in product((0, 2), (0, 3), (0, 2))
    ]
    places = list(product(*map(range, bounds.start, bounds.stop)))
    owner = {p: box for box in boxes for p in places if has(box, p)}
    for connectivity, most in ((6, 1), (18, 2), (26, 3)):
        slabs = [
            {place for place in places if has(slab, place)}
            for box in boxes
            for axis in range(3)
            if (slab := lower_slab(box, bounds, axis, connectivity)) is not None
        ]
        for p, q in product(places, places):
            steps = [abs(a - b) for a, b in zip(p, q)]
            if max(steps) == 1 and sum(steps) <= most and owner[p] != owner[q]:
                assert any(p in slab and q in slab for slab in slabs), (connectivity, p, q)
