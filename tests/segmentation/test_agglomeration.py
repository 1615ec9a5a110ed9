"""Exact agglomeration: the same bytes for any division into tasks, and those of a slow model."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from rigs.agglomeration import (
    Model,
    Volume,
    absorbed_by_hand,
    as_rows,
    contacts_from,
    model_segments,
    rows_of,
)

from chunkflow_py import open_volume, predict
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.segmentation.agglomeration import merge_kernel, region_merging
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean
from chunkflow_py.segmentation.agglomeration.edge_fragments import FragmentRule, components
from chunkflow_py.segmentation.agglomeration.hierarchy import Segments, absorbed
from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_hierarchy
from chunkflow_py.segmentation.agglomeration.region_merging import OpenGraph, merge_box
from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions

ROOT = Path(__file__).resolve().parents[2]


def random_edges(seed, shape=None):
    """Affinities of few values, so that ties are everywhere, or of blobs with membranes."""
    rng = np.random.default_rng(seed)
    shape = shape or tuple(rng.integers(3, 12, 3))
    values = rng.choice([0, 30, 100, 128, 140, 255], size=(3, *shape)).astype(np.uint8)
    if seed % 3 == 0:  # thick cells
        values = np.maximum(values, rng.choice([0, 255], size=(3, *shape), p=[0.2, 0.8]))
    if seed % 3 == 1:  # few values
        values = rng.integers(0, 3, (3, *shape)).astype(np.uint8) * 100
    return values.astype(np.uint8)


def adversarial(name):
    """A volume that is hard to divide."""
    shape = (8, 12, 10)
    edges = np.zeros((3, *shape), np.uint8)
    z, y, x = np.indices(shape)
    if name == "constant":
        edges[:] = 128
    elif name == "two-values":
        edges[:] = np.where((z + y + x) % 2, 100, 101)
    elif name == "checkerboard":
        edges[:] = 255 * ((z // 2 + y // 2 + x // 2) % 2)
    elif name == "plateaus":
        edges[:] = 40 * (z // 3 + y // 4) % 256
    elif name == "snake":  # one path through all tasks
        edges[2] = 255
        edges[1] = np.where((x == 0) | (x == shape[2] - 1), 200, 20)
        edges[0] = np.where((y == 0) & (x == 0), 200, 10)
    elif name == "frame":  # one region touches every boundary
        outside = (z == 0) | (y == 0) | (x == 0) | (z == 7) | (y == 11) | (x == 9)
        edges[:] = np.where(outside, 250, np.random.default_rng(0).integers(0, 200, shape))
    return edges


ADVERSARIAL = ["constant", "two-values", "checkerboard", "plateaus", "snake", "frame"]


def check_divisions(edges, options, divisions, threshold=0.6, seed=0):
    """Check that random divisions give the bytes of one task, with and without small segments."""
    rng = random.Random(seed)
    volume = Volume(edges, options, (3, -2, 5))
    shape = edges.shape[1:]
    whole = {}
    for number in range(divisions + 1):
        size = shape if not number else tuple(rng.randint(1, n) for n in shape)
        for small in ({}, {"min_size": 9, "min_affinity": 0.1}):
            final, store, segments = volume.segmented(size, threshold, number, **small)
            merges, _ = read_hierarchy(store)
            got = (final.tobytes(), as_rows(merges.contacts), segments.tobytes())
            assert got == whole.setdefault(bool(small), got), (size, small)
    return volume


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_any_division_gives_the_same_bytes(method, seed):
    """Fragments, hierarchy and segments do not depend on the tasks."""
    check_divisions(random_edges(seed), FragmentOptions(method, 0.3, 0.5), 2, seed=seed)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_volumes(name):
    """Constant values, plateaus, a path through all tasks, a region at every boundary."""
    check_divisions(adversarial(name), FragmentOptions("affinity", 0.3, 0.5), 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_many_divisions_give_the_same_bytes(method, seed):
    """The same for more volumes, thresholds and divisions, and for the adversarial volumes."""
    options = FragmentOptions(method, *[(0.3, 0.5), (0.1, 0.9), (0.0, 0.4)][seed % 3])
    for threshold in (0.3, 0.6, 0.9):
        check_divisions(random_edges(seed), options, 3, threshold, seed)
    check_divisions(adversarial(ADVERSARIAL[seed % len(ADVERSARIAL)]), options, 3, seed=seed)


@pytest.fixture(scope="module")
def fib25():
    """Affinities of one patch of the shipped network, zyx, uint8."""
    folder = ROOT / "examples" / "fib25"
    image = open_volume(str(folder / "raw.h5"))
    affinity = predict(
        image.read(BoundingBox.from_size((100, 60, 60), (32, 64, 64))),
        folder / "unet_fib25_model.py",
        weights=folder / "unet_fib25.pt",
        patch_size=(32, 64, 64),
        overlap=(0, 0, 0),
        output_kind="affinity",
    )
    return np.rint(affinity[::-1].astype(np.float64) * 255).astype(np.uint8)


@pytest.mark.long
@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_fifty_divisions_of_real_affinities(method, fib25):
    """FIB-25, with the default thresholds; tasks are as small as 5 voxels along an axis."""
    rng = random.Random(0)
    options = FragmentOptions(method, 0.4, 0.5)
    volume, whole = Volume(fib25, options), None
    for number in range(51):
        size = fib25.shape[1:] if not number else tuple(rng.randint(5, n) for n in fib25.shape[1:])
        final, store, segments = volume.segmented(size, 0.9, number)
        merges, _ = read_hierarchy(store)
        got = final.tobytes(), as_rows(merges.contacts), segments.tobytes()
        whole = whole or got
        assert got == whole, size


@pytest.mark.parametrize("seed", range(8))
def test_the_result_is_that_of_the_greedy_algorithm(seed):
    """The hierarchy is the list of the slow model, and the cut is its segmentation."""
    edges = random_edges(seed, tuple(np.random.default_rng(seed).integers(3, 7, 3)))
    volume = Volume(edges, FragmentOptions("affinity", 0.3, 0.9))
    rng = random.Random(seed)
    size = tuple(rng.randint(1, n) for n in edges.shape[1:])
    for threshold in (0.95, 0.5):
        fragments, store, segments = volume.segmented(size, threshold, seed)
        expected = model_segments(fragments, edges, least_mean(threshold, "uint8"))
        np.testing.assert_array_equal(segments, expected)
    merges, _ = read_hierarchy(store)
    assert as_rows(merges.contacts) == Model(rows_of(fragments, edges)).greedy(
        least_mean(0.95, "uint8")
    )


@pytest.mark.parametrize("seed", range(12))
def test_small_segments_are_united_in_rounds(seed):
    """The result is that of the slow model, for any order and division of the contacts."""
    rng = random.Random(seed)
    edges = random_edges(seed, (4, 5, 6))
    fragments = np.random.default_rng(seed).integers(1, 40, (4, 5, 6)).astype(np.uint64)
    rows = rows_of(fragments, edges)
    ids, counts = np.unique(fragments, return_counts=True)
    sizes = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    pairs = np.array([(1, 5), (5, 9), (2, 3)], np.uint64)
    segments = Segments(pairs)
    for smallest, floor in ((4, Fraction(0)), (9, Fraction(90))):
        expected = absorbed_by_hand(
            {each: int(segments(np.array([each], np.uint64))[0]) for each in sizes},
            sizes, rows, smallest, floor,
        )  # fmt: skip
        rng.shuffle(rows)
        united = Segments(
            absorbed(pairs, contacts_from(rows), (ids, counts.astype(np.int64)), smallest, floor)
        )
        got = dict(zip(ids.tolist(), united(ids).tolist(), strict=True))
        assert got == expected


def test_both_kernels_merge_the_same():
    """The compiled loop and the interpreted one return the same merges and blocked regions."""
    if not merge_kernel.IS_COMPILED:
        pytest.skip("numba is not installed: only the interpreted loop exists")
    for seed in range(20):
        edges = random_edges(seed, (5, 6, 7))
        fragments = np.arange(1, 211, dtype=np.uint64).reshape(5, 6, 7)
        table = contacts_from(rows_of(fragments, edges)).summed()
        numbers = [column.astype(np.int64) for column in table.columns().values()]
        got = []
        for kernel in (merge_kernel.merge_best_first, merge_kernel.interpreted()):
            blocked = np.zeros(211, bool)
            blocked[::17] = True
            merges = kernel(*(each.copy() for each in numbers), blocked, 90, 0)
            got.append([each.tolist() for each in (*merges, blocked)])
        assert got[0] == got[1]


# --- mutations: each must be noticed by a comparison above ----------------------------------------


def breaks(seeds):
    """Return whether some division of some volume gives other bytes, or not the greedy result."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        values = (3, 5, 20)[seed % 3]
        edges = (rng.integers(1, values, (3, *rng.integers(4, 8, 3))) * (250 // values)).astype(
            np.uint8
        )
        volume = Volume(edges, FragmentOptions("affinity", 0.0, 1.0))
        size = tuple(rng.integers(2, 5, 3).tolist())
        try:
            fragments, store, _ = volume.segmented(size, 0.9, seed)
        except VolumeError:  # a graph contradicts itself
            return True
        merges, _ = read_hierarchy(store)
        expected = Model(rows_of(fragments, edges)).greedy(least_mean(0.95, "uint8"))
        if as_rows(merges.contacts) != expected:
            return True
    return False


def test_a_tie_decided_by_region_ids_is_noticed(monkeypatch):
    """Ids fall when regions merge, so they must not decide between equal means."""
    assert not breaks(range(6))
    merged = region_merging._merged

    def by_id(ids, table, blocked, least):
        return merged(ids, replace(table, tie=table.first.astype(np.int64)), blocked, least)

    monkeypatch.setattr(region_merging, "_merged", by_id)
    assert breaks(range(30))


def test_merging_an_open_region_is_noticed(monkeypatch):
    """A region that continues outside of the box may have a better contact there."""
    of_box = OpenGraph.of_box

    def all_closed(*arguments):
        graph = of_box(*arguments)
        return replace(graph, cut=graph.cut[:0], cut_face=graph.cut_face[:0])

    monkeypatch.setattr(OpenGraph, "of_box", all_closed)
    assert breaks(range(30))


def test_contacts_across_the_box_decide(monkeypatch):
    """A closed region at the boundary may have its best contact outside."""
    of_box = OpenGraph.of_box

    def alone(*arguments):
        graph = of_box(*arguments)
        return replace(graph, crossing=graph.crossing.rows(slice(0, 0)), face=graph.face[:0])

    monkeypatch.setattr(OpenGraph, "of_box", alone)
    assert breaks(range(30))


def test_sums_in_floating_point_are_noticed(monkeypatch):
    """A rounded mean depends on the order in which contacts are added up."""
    summed = Contacts.summed

    def rounded(table, **options):
        result = summed(table, **options)
        mean = (result.total / np.maximum(1, result.count)).astype(np.float16)
        return replace(result, total=np.rint(mean.astype(float) * result.count).astype(np.int64))

    monkeypatch.setattr(Contacts, "summed", rounded)
    assert breaks(range(30))


def test_a_halo_one_voxel_short_is_noticed(monkeypatch):
    """A fragment that is decided without its whole neighbourhood depends on the tasks."""
    halo = FragmentRule.halo.fget
    monkeypatch.setattr(FragmentRule, "halo", property(lambda rule: halo(rule) - 1))
    options = FragmentOptions("affinity", 0.3, 0.9)
    with pytest.raises(AssertionError):
        [check_divisions(random_edges(seed), options, 1, seed=seed) for seed in range(20)]


def test_the_edge_of_the_volume_is_no_membrane():
    """Plane 0 of a channel is not read: whatever it contains, the fragments are the same."""
    edges = np.full((3, 4, 5, 6), 200, np.uint8)
    for method in ("distance", "affinity"):
        rule = FragmentRule(method, 100, 150)
        expected = rule.choose(edges)
        for value in (0, 255):
            other = edges.copy()
            for axis in range(3):
                other[(axis, *(0 if a == axis else slice(None) for a in range(3)))] = value
            for one, two in zip(rule.choose(other), expected, strict=True):
                inner = (slice(None),) * (one.ndim - 3) + (slice(1, None),) * 3
                np.testing.assert_array_equal(one[inner], two[inner])
            assert not rule.choose(other).background.any()
        assert len(np.unique(components(expected))) == 1


@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_the_halo_is_exact(method):
    """With the halo, a box chooses its edges as the whole volume does; with one voxel less, not."""
    wrong = {0: 0, 1: 0}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shape = rng.integers(9, 14, 3)
        edges = np.where(
            rng.random((3, *shape)) < rng.uniform(0.05, 0.6), 0, rng.choice([60, 200, 255])
        ).astype(np.uint8)
        rule = FragmentRule(method, 60, 100, cap=2, smoothing=0)
        whole = rule.choose(edges)
        box = BoundingBox.from_size((4, 4, 4), (2, 2, 2))
        for less in wrong:
            around = box.grow(rule.halo - less).intersection(BoundingBox(Zyx(0, 0, 0), Zyx(*shape)))
            part = rule.choose(edges[(slice(None), *around.slices((0, 0, 0)))])
            own, at = box.slices(around.start), box.slices((0, 0, 0))
            joins = [whole.joins[(slice(None), *at)], part.joins[(slice(None), *own)]]
            # The edges of a box are chosen by its voxels and by their lower neighbours.
            if method == "affinity":
                joins = [each[:, 1:, 1:, 1:] for each in joins]
            same = np.array_equal(*joins)
            same &= np.array_equal(whole.background[at], part.background[own])
            wrong[less] += not same
    assert not wrong[0]
    assert wrong[1]


def test_an_open_graph_that_is_merged_again_does_not_change():
    """A task that runs twice stores the same merges and the same graph."""
    edges = random_edges(0, (6, 8, 9))
    box = BoundingBox.from_size((0, 0, 0), (6, 8, 9))
    fragments = np.arange(1, 433, dtype=np.uint64).reshape(6, 8, 9)
    inner = BoundingBox.from_size((0, 0, 0), (3, 8, 5))
    around = inner.grow((1, 1, 1)).intersection(box).slices((0, 0, 0))
    graph = OpenGraph.of_box(fragments[around], edges[(slice(None), *around)], inner, box)
    merges, left = merge_box(graph, Fraction(100))
    assert len(merges)
    again, same = merge_box(left, Fraction(100))
    assert not len(again)
    assert as_rows(same.inside) == as_rows(left.inside)
    assert as_rows(same.crossing) == as_rows(left.crossing)
