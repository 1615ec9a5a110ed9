"""Connected components of small volumes that can be counted by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.segmentation.labels.components import connected_components, renumber


def touching() -> np.ndarray:
    """Four voxels; each meets the next by a face, an edge, a corner."""
    mask = np.zeros((4, 4, 4), np.uint8)
    for place in ((0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)):
        mask[place] = 1
    return mask


@pytest.mark.parametrize(("connectivity", "count"), [(6, 3), (18, 2), (26, 1)])
def test_neighbours(connectivity: int, count: int) -> None:
    """Faces, edges and corners join voxels as the connectivity says."""
    labels = connected_components(touching(), connectivity=connectivity)
    assert labels.max() == count
    assert labels.dtype == np.uint32


def test_threshold_is_not_above_itself() -> None:
    """Voxels equal to the threshold are background."""
    array = np.array([[[0.4, 0.5, 0.6, 0.2, 0.9]]], np.float32)
    assert connected_components(array, 0.5).tolist() == [[[0, 0, 1, 0, 2]]]


def test_affinities_are_averaged() -> None:
    """The mean of three channels is compared with the threshold."""
    affinity = np.zeros((3, 1, 1, 3), np.float32)
    affinity[:, 0, 0, 0] = 0.9, 0.9, 0.3
    affinity[:, 0, 0, 1] = 1.0, 0.2, 0.2
    affinity[:, 0, 0, 2] = 0.7, 0.7, 0.7
    assert connected_components(affinity, 0.6).tolist() == [[[1, 0, 2]]]


def test_labels_without_a_threshold_are_kept_apart() -> None:
    """Without a threshold, touching voxels of different values are different components."""
    assert connected_components(np.array([[[7, 7, 5, 0, 7]]])).tolist() == [[[1, 1, 2, 0, 3]]]


@given(arrays(bool, st.tuples(*[st.integers(1, 6)] * 3)))
@settings(max_examples=30, deadline=None)
def test_agrees_with_another_library(mask: np.ndarray) -> None:
    """Any mask gets the components, numbered in raster order, that SciPy finds."""
    expected, _ = ndimage.label(mask)
    assert np.array_equal(connected_components(mask), expected)


def test_empty_array() -> None:
    """An array without voxels has no components."""
    assert connected_components(np.zeros((0, 4, 4), np.uint8)).shape == (0, 4, 4)


@pytest.mark.parametrize(
    ("array", "options", "error", "words"),
    [
        (np.zeros((2, 4, 4, 4), np.uint8), {}, ChunkError, r"\(2, 4, 4, 4\).*--channels"),
        (np.zeros((4, 4, 4), np.float32), {}, ChunkError, "float32.*--threshold"),
        (np.zeros((4, 4, 4), np.uint8), {"connectivity": 8}, OptionError, "8.*6.*18.*26"),
    ],
)
def test_refused(array: np.ndarray, options: dict, error: type[Exception], words: str) -> None:
    """Arrays that cannot be labelled are refused with a remedy."""
    with pytest.raises(error, match=words):
        connected_components(array, **options)


@given(arrays(np.uint64, (2, 3, 4), elements=st.sampled_from([0, 3, 4, 20, 2**40, 2**64 - 1])))
@settings(max_examples=50, deadline=None)
def test_renumber(labels: np.ndarray) -> None:
    """New labels are 1 to N in the order of the old ones, and 0 stays 0."""
    old = sorted(set(labels.ravel().tolist()) - {0})
    new = renumber(labels)
    expected = {0: 0} | {value: index + 1 for index, value in enumerate(old)}
    assert new.ravel().tolist() == [expected[value] for value in labels.ravel().tolist()]
    assert new.dtype == np.uint32


def test_read_only_voxels_are_labelled():
    """A read-only mask, such as a mapped file, is labelled like any other."""
    mask = np.zeros((3, 4, 5), np.uint8)
    mask[1] = 1
    mask.flags.writeable = False
    assert np.array_equal(connected_components(mask), mask)


def test_negative_labels_are_segments_too() -> None:
    """Negative labels stay distinct and in order; they must not index a table from its end."""
    labels = np.array([-3, -1, 0, 0, 2, 3, -3, 2, 1], np.int64).reshape(1, 3, 3)
    assert renumber(labels).ravel().tolist() == [1, 2, 0, 0, 4, 5, 1, 4, 3]
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = rng.integers(-9, 9, (2, 4, 5))
        pairs = np.unique(np.stack((labels.ravel(), renumber(labels).ravel())), axis=1)
        assert pairs.shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))
        assert (pairs[0] == 0).tolist() == (pairs[1] == 0).tolist()
