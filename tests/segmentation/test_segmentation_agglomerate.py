"""Agglomeration of three cells in a row with known borders."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import ChunkError, ChunkflowError, OptionError
from chunkflow_py.segmentation.labels import waterz_process
from chunkflow_py.segmentation.labels.agglomerate import agglomerate
from chunkflow_py.segmentation.labels.fragments import interior, seeded_fragments

SIZE = (10, 12, 30)


def three_cells(weak: float = 0.6, strong: float = 0.05) -> np.ndarray:
    """Affinities (x, y, z) of cells x < 10, 10 <= x < 20 and 20 <= x.

    The border at x = 10 has affinity *weak*, the one at x = 20 *strong*.
    """
    affinity = np.full((3, *SIZE), 0.99, np.float32)
    affinity[0, :, :, 10], affinity[0, :, :, 20] = weak, strong
    return affinity


def counts(affinity: np.ndarray, *thresholds: float, **settings_: object) -> list[int]:
    """Return the number of segments at each threshold."""
    return [int(s.max()) for s in agglomerate(affinity, thresholds, **settings_)]


def test_merges_while_one_minus_mean_affinity_is_below() -> None:
    """Two segments are merged once the threshold exceeds 1 - their mean affinity."""
    affinity = three_cells(weak=0.6, strong=0.05)
    assert counts(affinity, 0.35, 0.45, 0.90, 0.97) == [3, 2, 2, 1]


def test_seeded_fragments_are_merged_by_the_same_rule() -> None:
    """Cells with membranes one voxel thick get a fragment each, and merge at their score."""
    affinity = three_cells()
    for x, value in ((10, 0.3), (20, 0.05)):
        affinity[:, :, :, x] = affinity[0, :, :, x + 1] = value
    assert counts(affinity, 0.65, 0.75, 0.9, 0.97, fragments="seeded") == [3, 2, 2, 1]


def test_labels_lie_where_the_cells_are() -> None:
    """Segments are dense labels that fill the boxes of the cells."""
    (labels,) = agglomerate(three_cells(), [0.7])
    assert labels.shape == SIZE
    assert labels.dtype == np.uint32
    assert (labels[:, :, :20] == labels[0, 0, 0]).all()
    assert (labels[:, :, 20:] == labels[0, 0, 29]).all()
    assert sorted(np.unique(labels)) == [1, 2]


def test_flip_channel_says_which_order_the_channels_have() -> None:
    """Channels z, y, x without the flip give the same result as x, y, z with it."""
    affinity = three_cells()
    (expected,) = agglomerate(affinity, [0.7])
    (same,) = agglomerate(affinity[::-1], [0.7], flip_channel=False)
    (wrong,) = agglomerate(affinity, [0.7], flip_channel=False)
    assert np.array_equal(same, expected)
    assert not np.array_equal(wrong, expected)


@pytest.mark.parametrize("method", ["waterz", "seeded"])
def test_lowest_faces_are_never_used(method: str) -> None:
    """The unused values on the lowest faces do not affect the result."""
    affinity = three_cells()
    (expected,) = agglomerate(affinity, [0.7], method)
    affinity[0, :, :, 0] = affinity[1, :, 0] = np.nan
    affinity[2, 0] = 1e9
    (labels,) = agglomerate(affinity, [0.7], method)
    assert np.array_equal(labels, expected)


def test_input_is_untouched() -> None:
    """Affinities and fragments are not modified."""
    affinity, fragments = three_cells(), np.ones(SIZE, np.uint64)
    fragments[:, :, 15:] = 7
    before = affinity.copy(), fragments.copy()
    list(agglomerate(affinity, [0.7, 0.9], fragments))
    assert np.array_equal(affinity, before[0])
    assert np.array_equal(fragments, before[1])


def test_integers_are_divided_by_their_maximum() -> None:
    """Quantised affinities give the same segments as the original affinities."""
    affinity = three_cells()
    (expected,) = agglomerate(affinity, [0.7])
    (labels,) = agglomerate(np.rint(affinity * 255).astype(np.uint8), [0.7])
    assert np.array_equal(labels, expected)


def test_fragments_of_an_earlier_step() -> None:
    """Given fragments are merged, even with huge labels, and 0 stays 0."""
    fragments = np.full(SIZE, 2**60, np.uint64)
    fragments[:, :, 10:20], fragments[:, :, 20:] = 5, 2**40
    fragments[:, 0] = 0
    (labels,) = agglomerate(three_cells(), [0.7], fragments)
    assert not labels[:, 0].any()
    assert (labels[:, 1:, :20] == labels[0, 1, 0]).all()
    assert (labels[:, 1:, 20:] == labels[0, 1, 29]).all()
    assert labels[0, 1, 0] != labels[0, 1, 29]


@pytest.mark.parametrize("method", ["waterz", "seeded"])
def test_low_affinities_are_background(method: str) -> None:
    """A voxel without an affinity above the low threshold is background."""
    affinity = three_cells()
    affinity[:, 5, 5, 5] = 0
    affinity[0, 5, 5, 6] = affinity[1, 5, 6, 5] = affinity[2, 6, 5, 5] = 0
    (labels,) = agglomerate(affinity, [0.7], method)
    assert labels[5, 5, 5] == 0
    assert (labels == 0).sum() == 1


def test_waterz_keeps_our_stdout_clean() -> None:
    """What waterz prints does not reach stdout, which is for results."""
    code = (
        "import numpy as np\n"
        "from chunkflow_py.segmentation.labels.agglomerate import agglomerate\n"
        "print(next(agglomerate(np.ones((3, 8, 8, 8), 'float32'), [0.5])).max())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.long
def test_works_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """The default score needs no compiler; a score that cannot be compiled fails with a message."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    affinity = three_cells()
    assert counts(affinity, 0.7) == [2]
    with pytest.raises(ChunkflowError, match="waterz failed on"):
        counts(affinity, 0.7, scoring_function="NoSuchScore<RegionGraphType>")


def test_a_killed_process_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """When the system kills waterz for its memory, the error says how much it needs."""
    script = f"{tmp_path}/killed.py"
    with open(script, "w") as file:  # noqa: PTH123
        file.write("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(waterz_process, "__file__", script)
    with pytest.raises(ChunkflowError, match=r"signal 9.*\(10, 12, 30\).*GB.*smaller"):
        counts(three_cells(), 0.7)


def test_an_abandoned_sweep_leaves_no_process() -> None:
    """Closing the generator early ends waterz."""
    before = children()
    sweep = agglomerate(three_cells(), [0.1, 0.5, 0.9])
    next(sweep)
    sweep.close()
    assert children() == before


def children() -> set[str]:
    """Return the process ids of this process's children."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
        return set(file.read().split())


@pytest.mark.parametrize(
    ("affinity", "options", "error", "words"),
    [
        (np.zeros((2, 4, 4, 4), "f4"), {}, ChunkError, r"\(3, z, y, x\), got \(2, 4, 4, 4\)"),
        (np.zeros((4, 4, 4), "f4"), {}, ChunkError, r"got \(4, 4, 4\)"),
        (np.zeros((3, 0, 4, 4), "f4"), {}, ChunkError, "no voxel"),
        (np.full((3, 4, 4, 4), 255, "f4"), {}, ChunkError, r"\[0, 1\].*255"),
        (np.full((3, 4, 4, 4), np.nan, "f4"), {}, ChunkError, r"\[0, 1\].*nan"),
        (
            np.zeros((3, 4, 4, 4), "f4"),
            {"fragments": np.zeros((4, 4, 5), "u8")},
            ChunkError,
            r"\(4, 4, 5\).*\(4, 4, 4\)",
        ),
        (np.zeros((3, 4, 4, 4), "f4"), {"aff_threshold_low": 1.0}, OptionError, "low 1.0.*0.9999"),
    ],
)
def test_refused(affinity: np.ndarray, options: dict, error: type[Exception], words: str) -> None:
    """Other arrays than affinities and fragments of another shape are refused with both values."""
    with pytest.raises(error, match=words):
        counts(affinity, 0.7, **options)


@pytest.mark.parametrize("thresholds", [(), (0.5, 0.5), (0.7, 0.3)])
def test_thresholds_must_rise(thresholds: tuple[float, ...]) -> None:
    """Thresholds must be ascending, because each merges the segments of the one before."""
    with pytest.raises(OptionError, match="ascending"):
        counts(three_cells(), *thresholds)


def test_request_by_request() -> None:
    """The program returns the labels of each threshold, and refuses truncated input."""
    affinity = np.ascontiguousarray(three_cells()[::-1])
    settings_ = {"aff_threshold_low": 0.001, "aff_threshold_high": 0.9999}
    request = {
        "shape": SIZE,
        "thresholds": [0.35, 0.7],
        "has_fragments": False,
        "settings": settings_,
    }
    sent = json.dumps(request).encode() + b"\n" + affinity.tobytes()
    answer = io.BytesIO()
    waterz_process.serve(io.BytesIO(sent), answer)
    labels = np.frombuffer(answer.getvalue(), np.uint64).reshape(2, *SIZE)
    assert [len(np.unique(part)) for part in labels] == [3, 2]
    with pytest.raises(EOFError, match="ended 4 bytes before"):
        waterz_process.serve(io.BytesIO(sent[:-4]), io.BytesIO())


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_interior_is_the_mean_of_the_pairs(seed: int) -> None:
    """The interior value of a voxel is the mean over all its pairs, also on faces of the array."""
    affinity = np.random.default_rng(seed).random((3, 3, 4, 2)).astype(np.float32)
    expected = np.zeros((3, 4, 2))
    for place in np.ndindex(3, 4, 2):
        pairs = []
        for axis in range(3):
            if place[axis]:
                pairs.append(affinity[(axis, *place)])
            above = tuple(p + (a == axis) for a, p in enumerate(place))
            if above[axis] < (3, 4, 2)[axis]:
                pairs.append(affinity[(axis, *above)])
        expected[place] = np.mean(pairs)
    assert np.allclose(interior(affinity), expected, atol=1e-6)


def test_seeds_are_physical() -> None:
    """A cell one slice thick is a separate fragment only if slices are thick."""
    affinity = np.full((3, 9, 9, 9), 0.99, np.float32)
    affinity[:, 3] = affinity[:, 5] = 0.0
    assert seeded_fragments(affinity, voxel_size_nm=(4, 4, 4)).max() == 2
    assert seeded_fragments(affinity, voxel_size_nm=(40, 4, 4)).max() == 3


def test_one_cell_without_a_border() -> None:
    """Affinities of 1 everywhere give one fragment."""
    assert (
        seeded_fragments(np.ones((3, 5, 5, 5), np.float32)).tolist() == np.ones((5, 5, 5)).tolist()
    )
