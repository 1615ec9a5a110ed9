"""Annotations: their arrays are checked, and points and synapses become annotations."""

import numpy as np
import pytest

from chunkflow_py.core.annotations import Annotations, Property, Relation, take_lists
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError

ONE = np.zeros((1, 1, 3))


def test_points_become_annotations_at_the_centres_of_voxels():
    """Confidences become a property."""
    points = Points(np.array([[1, 2, 3], [4, 5, 6]]), (40, 8, 8), np.array([0.5, 0.25]))
    annotations = Annotations.of_points(points)
    assert annotations.kind == "point"
    assert annotations.geometry.tolist() == [[[1.5, 2.5, 3.5]], [[4.5, 5.5, 6.5]]]
    assert annotations.voxel_size_nm == (40, 8, 8)
    assert annotations.properties[0].values.tolist() == [0.5, 0.25]


def test_synapses_become_lines():
    """Each postsynaptic point gives a line from its T-bar, with the T-bar's segment."""
    synapses = Synapses(
        np.array([[0, 0, 0], [9, 9, 9], [5, 5, 5]]),
        np.array([[8, 8, 8], [7, 7, 7], [1, 1, 1]]),
        np.array([1, 1, 0]),
        (8, 8, 8),
        np.array([0.1, 0.2, 0.3], np.float32),
        np.array([0.4, 0.5, 0.6], np.float32),
        object_ids=np.array([0, 20, 30]),
    )
    lines = Annotations.of_synapses(synapses)
    assert lines.geometry[:, 0, 0].tolist() == [9.5, 9.5, 0.5]
    assert lines.geometry[:, 1, 0].tolist() == [8.5, 7.5, 1.5]
    assert [each.name for each in lines.properties] == ["pre_confidence", "post_confidence"]
    np.testing.assert_allclose(lines.properties[0].values, [0.2, 0.2, 0.1])
    assert [each.tolist() for each in lines.relations[0].lists()] == [[20], [20], []]


def test_take_keeps_what_belongs_together():
    """Ids, values and segments follow their annotations."""
    annotations = Annotations(
        "line",
        np.arange(18).reshape(3, 2, 3),
        ids=np.array([7, 8, 9]),
        properties=(Property("k", "uint8", np.array([1, 2, 3])),),
        relations=(Relation.to_several("to", [[5], [], [6, 2**64 - 1]]),),
    )
    some = annotations.take(np.array([2, 0]))
    assert some.geometry[:, 0, 0].tolist() == [12, 0]
    assert (some.ids.tolist(), some.properties[0].values.tolist()) == ([9, 7], [3, 1])
    assert [each.tolist() for each in some.relations[0].lists()] == [[6, 2**64 - 1], [5]]


def test_take_lists():
    """Empty lists, repeated lists and no lists."""
    counts, values = np.array([2, 0, 3], np.uint32), np.arange(5)
    taken = take_lists(counts, values, np.array([2, 1, 0, 2]))
    assert taken[0].tolist() == [3, 0, 2, 3]
    assert taken[1].tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert take_lists(counts, values, np.zeros(0, int))[1].tolist() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Annotations("star", ONE), "unknown kind 'star'"),
        (lambda: Annotations("line", ONE), r"shape \(1, 1, 3\), but must have shape \(n, 2, 3\)"),
        (lambda: Annotations("point", ONE + np.nan), "annotation 0 .*nan.* not finite"),
        (lambda: Annotations("point", ONE + 1e39), "annotation 0 .*1e.39.* not finite"),
        (lambda: Annotations("ellipsoid", [[[1, 1, 1], [2, -3, 2]]]), "negative radius -3.0"),
        (lambda: Annotations("point", ONE, ids=[2**64]), "is 18446744073709551616, but ids have"),
        (lambda: Annotations("point", ONE, ids=[-1]), "is -1, but ids have 64 bits"),
        (lambda: Annotations("point", ONE, ids=[1.5]), "must be an integer, got 1.5"),
        (lambda: Annotations("point", ONE, ids=np.array([1.0])), "must be an integer"),
        (lambda: Annotations("point", ONE, ids=[1, 2]), "2 values of ids for 1 annotations; give"),
        (lambda: Property("k", "int64", np.ones(1)), "unknown type 'int64'; choose one of float32"),
        (lambda: Property("K", "int8", np.ones(1)), "property name 'K' is not valid"),
        (lambda: Property("k", "uint8", [1, 256]), "annotation 1 is 256, which is not of type"),
        (lambda: Property("k", "int16", [0.5]), "annotation 0 is 0.5, which is not of type int16"),
        (lambda: Property("k", "int16", [np.nan]), "annotation 0 is nan"),
        (lambda: Property("k", "rgb", np.ones((1, 4))), r"shape \(1, 4\), not .n, 3"),
        (lambda: Property("k", "rgb", np.ones((1, 3)), labels={1: "a"}), "choose a numeric type"),
        (lambda: Relation.to_one("a b", [1]), "relation name 'a b' is not valid"),
        (lambda: Relation.to_one("to", [2**64]), "segment of relation to is 18446744073709551616"),
        (lambda: Relation("to", [2], np.ones(1, int)), "1 segments, but its counts add up to 2"),
        (
            lambda: Annotations(
                "point", ONE, properties=(Property("a", "int8", [1]),),
                relations=(Relation.to_one("a", [1]),),
            ),
            "need different names",
        ),
    ],
)  # fmt: skip
def test_wrong_arrays_are_refused(make, message):
    """The message says what is wrong, in one sentence."""
    with pytest.raises(ChunkError, match=message):
        make()
