"""Scores against scikit-image, and on volumes with known scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from skimage.metrics import adapted_rand_error, variation_of_information

from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.evaluate import evaluate, relabel

labels = arrays(np.int32, (4, 5, 6), elements=st.integers(0, 5))


@given(labels, labels)
@settings(max_examples=60, deadline=None)
def test_agrees_with_scikit_image(segmentation: np.ndarray, truth: np.ndarray) -> None:
    """Every score equals that of scikit-image to 1e-9 where the truth is not 0."""
    truth[0, 0, :2] = 1  # at least one pair belongs together in both
    segmentation[0, 0, :2] = 1
    score = evaluate(segmentation, truth)
    known = truth != 0
    # What it returns second is divided by the pairs of the truth, whatever its name there.
    error, recall, precision = adapted_rand_error(truth, segmentation, ignore_labels=(0,))
    split, merge = variation_of_information(truth[known], segmentation[known])
    assert score.adapted_rand_error == pytest.approx(error, abs=1e-9)
    assert score.rand_merge == pytest.approx(precision, abs=1e-9)
    assert score.rand_split == pytest.approx(recall, abs=1e-9)
    assert score.voi_split == pytest.approx(split, abs=1e-9)
    assert score.voi_merge == pytest.approx(merge, abs=1e-9)
    assert score.voi == pytest.approx(split + merge, abs=1e-9)


@given(labels)
@settings(max_examples=20, deadline=None)
def test_names_of_labels_do_not_matter(truth: np.ndarray) -> None:
    """The ground truth with other, huge labels is a perfect segmentation."""
    truth[0] = 1
    score = evaluate(truth.astype(np.uint64) * np.uint64(2**59) + np.uint64(7), truth)
    perfect = (score.voi, score.rand_split, score.rand_merge, score.adapted_rand_error)
    assert perfect == pytest.approx((0, 1, 1, 0), abs=1e-12)


def test_a_body_cut_in_halves() -> None:
    """Halving a body costs one bit of split and no merge; joining two costs one bit of merge."""
    whole, halves = np.ones((2, 2, 2), int), np.ones((2, 2, 2), int)
    halves[1] = 2
    cut, joined = evaluate(halves, whole), evaluate(whole, halves)
    assert (cut.voi_split, cut.voi_merge) == (1, 0)
    assert (joined.voi_split, joined.voi_merge) == (0, 1)
    assert (cut.rand_split, cut.rand_merge) == pytest.approx((12 / 28, 1))
    assert (cut.voxels, cut.segments, cut.bodies) == (8, 2, 1)


def test_unlabelled_truth_is_left_out_or_counted() -> None:
    """Voxels with ground truth 0 count only if the caller asks for them."""
    truth, segmentation = np.array([[[0, 0, 1, 1]]]), np.array([[[3, 4, 5, 5]]])
    assert evaluate(segmentation, truth).voi == 0
    assert evaluate(segmentation, truth, ignore_zero=False).voi_split == pytest.approx(0.5)


def test_single_voxels_have_no_pairs() -> None:
    """If no two voxels belong together, nothing is split or merged."""
    score = evaluate(np.array([[[1, 2, 3]]]), np.array([[[4, 5, 6]]]))
    assert (score.rand_split, score.rand_merge, score.adapted_rand_error) == (1, 1, 0)


@pytest.mark.parametrize(
    ("segmentation", "truth", "words"),
    [
        (np.ones((2, 2, 2), int), np.ones((2, 2, 3), int), r"\(2, 2, 2\).*\(2, 2, 3\)"),
        (np.ones((2, 2, 2)), np.ones((2, 2, 2), int), "segmentation.*float64"),
        (np.ones((2, 2, 2), int), np.ones((2, 2, 2)), "ground truth.*float64"),
        (np.ones((2, 2, 2), int), np.zeros((2, 2, 2), int), "no voxels to compare"),
    ],
)
def test_refused(segmentation: np.ndarray, truth: np.ndarray, words: str) -> None:
    """Volumes that cannot be compared are refused with both values."""
    with pytest.raises(ChunkError, match=words):
        evaluate(segmentation, truth)


def test_relabel_parts_what_does_not_meet() -> None:
    """In both volumes, separate pieces of one label become two objects; ground truth 0 stays."""
    ours, truth = relabel(np.array([[[9, 9, 0, 8, 9]]]), np.array([[[5, 0, 5, 5, -3]]]))
    assert ours[0, 0, [0, 1, 3, 4]].tolist() == [1, 1, 2, 3]
    assert ours[0, 0, 2] in {1, 2}
    assert truth.tolist() == [[[1, 0, 2, 2, 3]]]


def test_relabel_joins_over_corners() -> None:
    """Voxels of one label that touch by a corner are one object."""
    array = np.zeros((2, 2, 2), np.uint8)
    array[0, 0, 0] = array[1, 1, 1] = 4
    ours, _ = relabel(array, array)
    assert ours[0, 0, 0] == ours[1, 1, 1] == 1


def test_relabel_knows_the_voxel_size() -> None:
    """An unlabelled voxel takes the label of the segment nearest in nm, not in voxels."""
    array = np.zeros((2, 1, 3), np.uint8)
    array[1, 0, 0], array[0, 0, 2] = 1, 2  # one voxel away in z, two in x
    near_in_voxels, _ = relabel(array, array, (1, 1, 1))
    near_in_nm, _ = relabel(array, array, (40, 4, 4))
    assert near_in_voxels[0, 0, 0] == near_in_voxels[1, 0, 0]
    assert near_in_nm[0, 0, 0] == near_in_nm[0, 0, 2]


def test_relabel_of_nothing() -> None:
    """A segmentation without segments stays empty."""
    ours, _ = relabel(np.zeros((2, 2, 2), int), np.ones((2, 2, 2), int))
    assert not ours.any()
