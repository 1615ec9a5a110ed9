"""Boxes, maps and synapses of 1.x: the same answers as ours, and the rules that differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core import geometry
from chunkflow_py.pipeline.compat.boundary import from_plugin, to_plugin
from chunkflow_py.pipeline.compat.chunks import Chunk, ProbabilityMap, Segmentation
from chunkflow_py.pipeline.compat.objects import Synapses
from chunkflow_py.pipeline.compat.places import BoundingBox, BoundingBoxes, Cartesian

corner = st.tuples(*[st.integers(-20, 20)] * 3)
size = st.tuples(*[st.integers(1, 30)] * 3)


@settings(max_examples=60, deadline=None)
@given(corner, size, corner, size, size)
def test_boxes_agree_with_ours(start, extent, other_start, other_extent, block):
    """Text, hull, intersection, growth, moves and whole blocks, for boxes of integers."""
    ours = geometry.BoundingBox.from_size(start, extent)
    theirs = to_plugin(ours)
    assert from_plugin(theirs) == ours
    assert (theirs.string, tuple(theirs.shape)) == (str(ours), tuple(ours.size))
    assert BoundingBox.from_string(f"a/b/{theirs.string}.h5") == theirs
    assert theirs.slices == ours.slices()
    assert BoundingBox.from_slices(theirs.slices) == BoundingBox.from_delta(start, extent)
    other = geometry.BoundingBox.from_size(other_start, other_extent)
    assert from_plugin(theirs.union(to_plugin(other))) == ours.hull(other)
    common = theirs.intersection(to_plugin(other))
    if not ours.intersection(other).is_empty:
        assert from_plugin(common) == ours.intersection(other)
    assert from_plugin(theirs.adjust(block)) == ours.grow(block)
    assert theirs.adjust(2).adjust(-2) == theirs.adjust((0,) * 6) == theirs.clone() == theirs
    assert from_plugin(theirs + block) == ours.translate(block)
    blocks = theirs.decompose(block)
    whole = geometry.BoxGrid.covering(ours, geometry.Zyx.of(block))
    assert list(map(from_plugin, blocks)) == [box for box in whole if ours.contains(box)]
    assert BoundingBoxes.from_array(blocks.array) == blocks


def test_numbers_of_a_position():
    """Elementwise with numbers and triples; an order holds for all axes; fractions stay."""
    a = Cartesian(4, 5, 6)
    assert a + 1 == (5, 6, 7)
    assert a - (1, 2, 3) == 3
    assert a * (2, 1, 1) == Cartesian(8, 5, 6)
    assert a / 4 == (1, 1.25, 1.5)
    assert (a / 4).ceil == (1, 2, 2)
    assert a // 4 == (1, 1, 1)
    assert a % 4 == (0, 1, 2)
    assert -a == (-4, -5, -6)
    assert a.inverse == (6, 5, 4)
    assert a < (5, 6, 7)
    assert not a < (5, 6, 6)
    assert a <= a
    assert a >= 4
    assert not a > 4
    assert a != (4, 5, 7)
    assert a != "text"
    assert {a: 1}[Cartesian(4, 5, 6)] == 1
    assert isinstance(a + 1, Cartesian)
    assert a.tuple == tuple(a.list) == tuple(a.vec.tolist())
    box = BoundingBox.from_center(Cartesian(5, 5, 5), 2)
    assert (box.string, box.size3()) == ("3-7_3-7_3-7", (4, 4, 4))
    assert BoundingBox.from_center((5, 5, 5), 2, even_size=False).shape == 5
    assert box.contains((7, 7, 7))
    assert not box.contains((8, 7, 7))
    with pytest.raises(ValueError, match="zip"):
        a + (1, 2)


def test_peaks_of_a_map():
    """Global positions with their heights; a map without peaks has None; integers are refused."""
    pytest.importorskip("skimage")
    array = np.zeros((9, 30, 40), np.float32)
    array[4, 15, 10], array[4, 15, 30] = 1.0, 0.8
    prob = ProbabilityMap.from_chunk(Chunk(array, (100, 200, 300), (40, 4, 4)))
    points, confidences = prob.detect_points(min_distance=3.0, threshold_rel=0.3)
    assert points.tolist() == [[104, 215, 310], [104, 215, 330]]
    assert confidences[0] == 1 > confidences[1] > 0.7
    assert ProbabilityMap(np.zeros((9, 9, 9), np.float32)).detect_points() == (None, None)
    with pytest.raises(TypeError, match="not uint8; scale them to"):
        ProbabilityMap(np.zeros((9, 9, 9), np.uint8))


def test_rules_for_synapses():
    """Which points are too many or stand for a contact twice, and what removal leaves."""
    pytest.importorskip("scipy")
    post = np.array([[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [1, 9, 9, 9], [1, 0, 0, 80]])
    syns = Synapses(np.array([[0, 0, 0], [9, 9, 9], [5, 5, 5]]), post=post)
    assert (len(syns), syns.pre_num, syns.post_num) == (5, 3, 5)
    assert syns.find_redundent_post(num_threshold=2, distance_threshold=50) == {2, 4}
    seg = Segmentation(np.ones((10, 10, 10), np.uint32))
    seg.array[0, 0, 3] = 2
    assert syns.find_duplicate_post_on_same_neuron(seg, 1.5) == {1}
    assert syns.pre_indices_without_post == [2]
    syns.remove_synapses_without_post()
    syns.add_pre(np.array([[1, 1, 1]])).remove_pre([0])
    assert syns.pre.tolist() == [[9, 9, 9], [1, 1, 1]]
    assert syns.post.tolist() == [[0, 9, 9, 9], [0, 0, 0, 80]]
    assert from_plugin({"a": [syns]})["a"][0].post_to_pre.tolist() == [0, 0]
