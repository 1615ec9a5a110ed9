"""Peak detection in maps."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.segmentation.peaks import detect_peaks, find_peaks


def volume(**values):
    """Return a line of 20 voxels along x with some values, such as x3=5."""
    array = np.zeros((1, 1, 20), np.float32)
    for name, value in values.items():
        array[0, 0, int(name[1:])] = value
    return array


@pytest.mark.parametrize(
    ("values", "distance", "expected"),
    [
        ({"x3": 5, "x9": 4}, 3, [3, 9]),
        ({"x3": 4, "x9": 5}, 3, [9, 3]),  # the highest first
        ({"x3": 5, "x6": 4}, 3, [3]),  # not higher than what is 3 away
        ({"x3": 5, "x7": 4}, 3, [3, 7]),
        ({"x3": 1, "x9": 5}, 3, [9]),  # not above the threshold
        ({"x3": 5, "x4": 5, "x5": 5}, 3, [4]),  # the middle of a flat top
        ({"x3": 5, "x4": 5}, 3, [3]),
        ({"x3": 5, "x5": 5}, 3, [3]),  # two tops of equal height
        ({"x2": 5, "x5": 5, "x8": 5}, 3, [2]),  # each but the first is near to an earlier one
        ({"x2": 5, "x5": 4, "x8": 3}, 3, [2]),  # as among those of other heights
        ({"x0": 5, "x19": 4}, 3, [0, 19]),  # at the faces
        ({}, 3, []),
    ],
)
def test_peaks_of_a_line(values, distance, expected):
    """Small examples give the expected peaks in the expected order."""
    found = find_peaks(volume(**values), distance, 1)
    assert found.tolist() == [[0, 0, x] for x in expected]
    half = find_peaks(volume(**values).astype(np.float16), distance, 1)
    assert half.tolist() == found.tolist()


def test_the_middle_of_a_flat_top():
    """The peak of a saturated ball in 3D is its centre."""
    grid = np.indices((15, 15, 15)) - 7
    ball = (255 * (np.square(grid).sum(axis=0) <= 16)).astype(np.uint8)
    assert find_peaks(ball, 5, 100).tolist() == [[7, 7, 7]]


def test_peaks_are_higher_than_all_around_and_apart():
    """In any map, each peak is the maximum of its neighbourhood, and no two peaks are near."""
    array = np.random.default_rng(0).integers(0, 30, (12, 30, 30)).astype(np.uint8)
    found = find_peaks(array, 3, 20)
    assert len(found) > 5
    for z, y, x in found:
        near = array[max(0, z - 3) : z + 4, max(0, y - 3) : y + 4, max(0, x - 3) : x + 4]
        assert array[z, y, x] == near.max() > 20
    apart = np.abs(found[:, None] - found[None]).max(axis=2)
    assert apart[~np.eye(len(found), dtype=bool)].min() > 3
    heights = array[tuple(found.T)].astype(int)
    assert (np.diff(heights) <= 0).all()


def test_confidences_are_parts_of_the_full_scale():
    """The full scale of integers is the type's maximum; the chunk's maximum does not matter."""
    chunk = Chunk((volume(x3=102, x9=51)).astype(np.uint8), (5, 6, 7), (40, 4, 4))
    points = detect_peaks(chunk, 3, 0.3)
    assert points.positions.tolist() == [[5, 6, 10]]
    assert points.confidences == pytest.approx([0.4])
    assert points.voxel_size_nm == (40, 4, 4)
    assert len(detect_peaks(chunk, 3, 0.1)) == 2
    assert len(detect_peaks(Chunk(volume(x3=0.31)[None]), 3)) == 1


def test_what_has_no_peaks_is_refused():
    """Several channels, NaN and options out of range are refused."""
    with pytest.raises(ChunkError, match="has 2 channels"):
        detect_peaks(Chunk(np.zeros((2, 1, 1, 1))))
    with pytest.raises(ChunkError, match="contains NaN"):
        detect_peaks(Chunk(volume(x3=np.nan)))
    with pytest.raises(OptionError, match=r"got min_distance 0 and threshold_rel 0\.3"):
        detect_peaks(Chunk(volume()), 0)
