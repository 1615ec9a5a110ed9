"""The mutex watershed: against the definition, and all conventions of affinities."""

import itertools

import numpy as np
import pytest

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.affinity_layout import AffinityLayout, parse_offsets
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.agglomerate import mutex_segments
from chunkflow_py.segmentation.agglomeration.edge_affinities import as_edges
from chunkflow_py.segmentation.labels.mutex_watershed import mutex_watershed

pytest.importorskip("mwatershed")

NEAREST = ((-1, 0, 0), (0, -1, 0), (0, 0, -1))


def partition(labels):
    """Return the number of the first voxel of each voxel's segment; voxels of label 0 are alone."""
    flat = labels.ravel()
    _, first, which = np.unique(flat, return_index=True, return_inverse=True)
    return np.where(flat == 0, np.arange(len(flat)), first[which]).reshape(labels.shape)


def defined(affinity, offsets, threshold):
    """Return the partition by the definition: the best pairs first, which join or forbid."""
    shape = affinity.shape[1:]
    pairs = []
    for channel, offset in enumerate(offsets):
        for place in itertools.product(*map(range, shape)):
            other = tuple(np.add(place, offset))
            if all(0 <= at < size for at, size in zip(other, shape, strict=True)):
                weight = affinity[(channel, *place)] - (1 - threshold)
                ends = (int(np.ravel_multi_index(each, shape)) for each in (place, other))
                pairs.append((abs(weight), weight > 0, *ends))
    cluster = list(range(int(np.prod(shape))))
    apart = set()
    for _, attracts, one, two in sorted(pairs, reverse=True):
        a, b = cluster[one], cluster[two]
        if a == b:
            continue
        if not attracts:
            apart |= {(a, b), (b, a)}
        elif (a, b) not in apart:
            low, high = min(a, b), max(a, b)
            cluster = [low if each == high else each for each in cluster]
            apart = {tuple(low if each == high else each for each in pair) for pair in apart}
    return np.array(cluster).reshape(shape)


@pytest.mark.parametrize("seed", range(20))
def test_the_result_is_the_defined_one(seed):
    """Random affinities without ties, with near and far partners on both sides."""
    rng = np.random.default_rng(seed)
    shape = tuple(map(int, rng.integers(3, 6, 3)))
    offsets = ((-1, 0, 0), (0, 1, 0), (0, 0, -1), (2, 0, 0), (0, -2, 1))[: rng.integers(2, 6)]
    affinity = rng.random((len(offsets), *shape))
    threshold = float(rng.choice([0.3, 0.5, 0.8]))
    labels = mutex_watershed(affinity, offsets, threshold)
    np.testing.assert_array_equal(partition(labels), defined(affinity, offsets, threshold))


def test_equal_affinities_give_the_same_segments_each_time():
    """Ties are everywhere in uint8."""
    affinity = np.random.default_rng(0).choice([0, 100, 255], (3, 12, 12, 12)).astype(np.uint8)
    first = mutex_watershed(affinity, NEAREST, 0.5)
    for _ in range(3):
        np.testing.assert_array_equal(mutex_watershed(affinity.copy(), NEAREST, 0.5), first)


def test_a_wall_separates():
    """Two halves of a box, with repulsion across the wall only far away."""
    affinity = np.ones((4, 6, 4, 4), np.float32)
    affinity[3] = 0.5
    affinity[3, 3:5] = 0  # voxels two below are on the other side of plane 3
    affinity[0, 3] = 0.6
    labels = mutex_segments(Chunk(affinity), (*NEAREST, (-2, 0, 0)), 0.5)
    assert labels.array.max() == 2
    assert len(np.unique(labels.array[:3])) == len(np.unique(labels.array[3:])) == 1


def moved(affinity):
    """Return affinities of upper voxels, at the lower voxels."""
    result = np.zeros_like(affinity)
    for axis in range(3):
        result[axis] = np.roll(affinity[axis], -1, axis)
    return result


@pytest.mark.parametrize("options", [[], ["--method", "mutex"]])
def test_all_conventions_give_the_same_segments(options):
    """Order of the channels, and the voxel at which an affinity is stored."""
    pytest.importorskip("waterz")
    zyx = np.random.default_rng(1).random((3, 6, 7, 8)).astype(np.float32)

    def segments(affinity, *more):
        (operator,) = read_line(["agglomerate", *options, "--threshold", "0.5", *more])
        return operator.call(Task(items={"chunk": Chunk(affinity)})).chunk("chunk").array

    expected = partition(segments(zyx[::-1]))
    assert len(np.unique(expected)) > 2
    for affinity, more in (
        (zyx, ["--affinity-order", "zyx"]),
        (zyx, ["--no-flip-channel"]),
        (moved(zyx), ["--affinity-order", "zyx", "--affinity-at", "source"]),
        (moved(zyx)[::-1], ["--affinity-at", "source", "--affinity-order", "xyz"]),
    ):
        np.testing.assert_array_equal(partition(segments(affinity, *more)), expected)


def test_edges_of_all_layouts_are_the_same():
    """Plane 0 of each channel belongs to no edge of the array."""
    zyx = np.random.default_rng(2).integers(1, 255, (3, 4, 5, 6)).astype(np.uint8)
    for axis in range(3):
        zyx[axis].swapaxes(0, axis)[0] = 0
    for layout, affinity in (
        (AffinityLayout(), zyx[::-1]),
        (AffinityLayout("zyx"), zyx),
        (AffinityLayout("xyz", "source"), moved(zyx)[::-1]),
        (AffinityLayout("zyx", "source"), moved(zyx)),
    ):
        np.testing.assert_array_equal(as_edges(affinity, layout), zyx)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a list of offsets"),
        ("1,0", "is not a list of offsets"),
        ("a,0,0", "is not a list of offsets"),
        ("0,0,0", "remove it"),
        ("1,0,0 -1,0,0", "equal or opposite"),
        ("1,0,0 1,0,0", "equal or opposite"),
        (" ".join(f"{k},0,0" for k in range(1, 99)), "the limit is 64"),
    ],
)
def test_texts_that_are_no_offsets(text, words):
    """Each is refused in one sentence."""
    with pytest.raises(OptionError, match=words):
        parse_offsets(text)


@pytest.mark.parametrize(
    ("affinity", "words"),
    [
        (np.ones((2, 3, 3, 3)), "one offset for each channel"),
        (np.ones((3, 3, 3)), "one offset for each channel"),
        (np.full((3, 3, 3, 3), np.nan), "must be in"),
        (np.full((3, 3, 3, 3), -0.5), "must be in"),
        (np.full((3, 3, 3, 3), 9.0), "must be in"),
        (np.full((3, 3, 3, 3), -5, np.int8), "must be in"),
        (np.ones((3, 3, 3, 1)), "too long for a chunk"),
    ],
)
def test_arrays_that_are_no_affinities(affinity, words):
    """Each is refused in one sentence."""
    with pytest.raises(ChunkError, match=words):
        mutex_watershed(affinity, NEAREST, 0.5)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--affinity-offsets", "-1,0,0"], "add --method mutex"),
        (["--flip-channel", "--affinity-order", "zyx"], "contradicts --flip-channel"),
        (["--no-flip-channel", "--affinity-order", "xyz"], "contradicts --no-flip-channel"),
        (["--method", "mutex", "--threshold", "2"], "nearest value that works is 1"),
        (
            ["--method", "mutex", "--affinity-at", "source", "--affinity-offsets", "-1,0,0"],
            "leave --affinity-at out",
        ),
    ],
)
def test_refused_options(line, words):
    """Options that contradict each other."""
    with pytest.raises(OptionError, match=words):
        read_line(["agglomerate", *line])
