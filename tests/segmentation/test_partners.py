"""Assignment of postsynaptic points to T-bars, and duplicates, against results by hand."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.labels.partners import doubled, objects_at, ranks, with_partners


def line(*positions):
    """Return positions along x."""
    return np.array([[0, 0, x] for x in positions])


def test_ranks_are_places_in_a_group():
    """Items are ranked by the first key, then by the second."""
    group, first, second = np.array([7, 3, 7, 7, 3]), np.array([1, 0, 0, 1, 0]), np.arange(5, 0, -1)
    assert ranks(group, first, second).tolist() == [2, 1, 0, 1, 0]
    assert ranks(np.zeros(0, int)).tolist() == []


def test_points_go_to_the_nearest_t_bar():
    """Points beyond the distance are dropped; of too many points, the most confident stay."""
    synapses = Synapses(line(0, 100))
    points = Points(line(4, 3, 8, 95, 60), confidences=np.array([0.5, 0.5, 0.9, 0.4, 1.0]))
    found = with_partners(synapses, points, max_distance=10, max_number=2)
    assert found.post[:, 2].tolist() == [3, 8, 95]
    assert found.post_to_pre.tolist() == [0, 0, 1]
    assert found.post_confidence.tolist() == [0.5, 0.9, 0.4]
    assert found.post_users is None


def test_a_t_bar_keeps_the_points_that_it_has():
    """A T-bar with partners gets no others, and its nearest points go to no other T-bar."""
    synapses = Synapses(
        line(0, 100), line(5), np.array([0]), users=("ada",), post_users=np.array([0], np.int32)
    )
    points = Points(line(1, 99), confidences=np.array([0.9, 0.8]))
    found = with_partners(synapses, points, 200, 9)
    assert found.post[:, 2].tolist() == [5, 99]
    assert found.post_confidence.tolist() == [1.0, 0.8]
    assert found.post_users.tolist() == [0, -1]
    nothing = Points(np.zeros((0, 3), int), confidences=np.zeros(0))
    assert with_partners(synapses, nothing, 9, 9) is synapses


@pytest.mark.parametrize(
    ("objects", "protected", "expected"),
    [
        ([1, 1, 1, 1], "", [0, 1, 0, 1]),
        ([1, 2, 1, 2], "", [0, 0, 0, 0]),
        ([0, 0, 0, 0], "", [0, 0, 0, 0]),  # background is no object
        ([1, 1, 1, 1], "1", [1, 0, 1, 0]),  # what is protected wins over what is nearer
        ([1, 1, 1, 1], "01", [0, 0, 1, 0]),
    ],
)
def test_points_on_one_object_are_one_contact(objects, protected, expected):
    """The point nearest to the T-bar stays, and so does a point near only to a removed one."""
    synapses = Synapses(line(0), line(5, 10, 15, 20), np.zeros(4, int))
    kept = np.array([str(index) in protected for index in range(4)])
    found = doubled(synapses, np.array(objects, np.uint64), 6, kept)
    assert found.astype(int).tolist() == expected


def test_objects_at_points():
    """Labels are read by global position; points outside the chunk get 0."""
    labels = np.arange(1, 9, dtype=np.uint64).reshape(2, 2, 2)
    points = np.array([[10, 20, 30], [11, 21, 31], [9, 20, 30], [12, 20, 30]])
    assert objects_at(Chunk(labels, (10, 20, 30)), points).tolist() == [1, 8, 0, 0]
    for wrong in (labels.astype(np.float32), np.stack([labels, labels])):
        with pytest.raises(ChunkError, match="labels are integers in one channel"):
            objects_at(Chunk(wrong), points)
