"""Exact agglomeration: the same bytes for any division into tasks, and those of a slow model."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from rigs.agglomeration import Model, Volume, as_rows, model_segments, rows_of

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean
from chunkflow_py.segmentation.agglomeration.edge_fragments import FragmentRule
from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_hierarchy
from chunkflow_py.segmentation.agglomeration.region_merging import OpenGraph, merge_box
from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions


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


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_any_division_gives_the_same_bytes(method, seed):
    """Fragments, hierarchy and segments do not depend on the tasks."""
    options = FragmentOptions(method, 0.3, 0.5)
    check_divisions(random_edges(seed), options, 3, seed=seed)


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_adversarial_volumes(method, name):
    """Constant values, plateaus, a path through all tasks, a region at every boundary."""
    check_divisions(adversarial(name), FragmentOptions(method, 0.3, 0.5), 2)


@pytest.mark.parametrize("seed", range(20))
def test_the_result_is_that_of_the_greedy_algorithm(seed):
    """The hierarchy is the list of the slow model, and the cut is its segmentation."""
    edges = random_edges(seed, tuple(np.random.default_rng(seed).integers(3, 8, 3)))
    volume = Volume(edges, FragmentOptions("affinity", 0.3, 0.9))
    rng = random.Random(seed)
    size = tuple(rng.randint(1, n) for n in edges.shape[1:])
    for threshold in (0.95, 0.6, 0.5):
        fragments, store, segments = volume.segmented(size, threshold, seed)
        expected = model_segments(fragments, edges, least_mean(threshold, "uint8"))
        np.testing.assert_array_equal(segments, expected)
    merges, _ = read_hierarchy(store)
    assert as_rows(merges.contacts) == Model(rows_of(fragments, edges)).greedy(
        least_mean(0.95, "uint8")
    )


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
