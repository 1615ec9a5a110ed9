"""Contingency tables add up for any division; scores of objects and classes by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import adapted_rand_error, variation_of_information

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.segmentation.evaluate import evaluate, score
from chunkflow_py.segmentation.labels import contingency as module
from chunkflow_py.segmentation.labels.contingency import Contingency, contingency, joined


def volumes(seed, dtype="uint64", top=6, shape=(4, 6, 8)):
    """Return two labelled volumes with long runs along x."""
    rng = np.random.default_rng(seed)
    values = rng.choice(np.iinfo(dtype).max // 2, top).astype(dtype)
    values[0] = 0
    z, y, x = shape
    return [values[rng.integers(0, top, (z, y, x // 2))].repeat(2, axis=2) for _ in range(2)]


def as_dict(table):
    """Return the number of voxels by pair of labels."""
    keys = zip(table.segments.tolist(), table.bodies.tolist())
    return dict(zip(keys, table.voxels.tolist()))


@given(
    seed=st.integers(0, 999),
    dtype=st.sampled_from(["bool", "uint8", "uint32", "int64", "uint64"]),
    small=st.booleans(),
)
@settings(max_examples=30)
def test_every_pair_is_counted(seed, dtype, small):
    """Both ways of counting give each pair of labels with its voxels, sorted."""
    ours, truth = volumes(seed, "uint8" if dtype == "bool" else dtype)
    ours, truth = (v.astype(bool) if dtype == "bool" else v for v in (ours, truth))
    before, module._SMALL = module._SMALL, 2**22 if small else 0
    try:
        found = contingency(ours, truth)
    finally:
        module._SMALL = before
    pairs, counts = np.unique(np.stack([ours.ravel(), truth.ravel()]), axis=1, return_counts=True)
    expected = dict(zip(zip(*pairs.astype(object).tolist()), counts.tolist()))
    assert as_dict(found) == expected
    assert list(as_dict(found)) == sorted(expected)


@given(
    seed=st.integers(0, 999),
    cut=st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 8)),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=30)
def test_parts_add_up_to_the_whole(seed, cut, order):
    """Tables of any parts, in any order, add up to the table of the whole, byte for byte."""
    pair = np.stack(volumes(seed))
    parts = [pair]
    for axis, at in enumerate(cut, start=1):
        parts = [p for part in parts for p in np.split(part, [at], axis=axis)]
    order.shuffle(parts)
    total, whole = joined(contingency(*part) for part in parts), contingency(*pair)
    for name in ("segments", "bodies", "voxels"):
        assert getattr(total, name).tobytes() == getattr(whole, name).tobytes()
    known = pair[1] != 0
    error, _, _ = adapted_rand_error(
        *[np.unique(v, return_inverse=True)[1].reshape(v.shape) for v in (pair[1], pair[0])],
        ignore_labels=(0,),
    )
    split, merge = variation_of_information(
        *[np.unique(v[known], return_inverse=True)[1] for v in (pair[1], pair[0])]
    )
    found = score(total)
    assert found.adapted_rand_error == pytest.approx(error, abs=1e-9)
    assert (found.voi_split, found.voi_merge) == pytest.approx((split, merge), abs=1e-9)


def test_many_tables_are_added_up_in_little_memory(monkeypatch):
    """Waiting tables are added up once they are larger than their sum."""
    sums = []
    real = module._sum
    monkeypatch.setattr(module, "_sum", lambda tables: sums.append(len(tables)) or real(tables))
    rng = np.random.default_rng(0)
    segments, bodies = np.arange(2**18, dtype="u8"), np.full(2**18, 7, "u8")
    tables = [Contingency(segments, bodies, rng.integers(1, 9, 2**18)) for _ in range(12)]
    total = joined(iter(tables))
    assert np.array_equal(total.voxels, sum(t.voxels for t in tables))
    assert len(sums) > 2
    assert not len(joined([]))


def test_ignored_labels():
    """Voxels of ignored labels, in either volume, do not affect any score."""
    ours, truth = volumes(3, "uint32")
    segment, body = int(ours.max()), int(truth.max())
    kept = (ours != segment) & (truth != body)
    found = evaluate(ours, truth, ignore_segments=[segment], ignore_bodies=[body])
    assert found == evaluate(ours[kept], truth[kept])
    assert found != evaluate(ours, truth)
    with pytest.raises(ChunkError, match="no voxels to compare"):
        evaluate(ours, truth, ignore_bodies=np.unique(truth).tolist())


def test_objects_are_found_from_the_threshold_on():
    """Three bodies: one matches exactly, one by three quarters, and one is halved."""
    truth = np.repeat([0, 1, 2, 3], 12).reshape(1, 4, 12)
    ours = truth.copy() * 10
    ours[0, 2, 9:] = 0  # 9 of 12 voxels: an IoU of 0.75
    ours[0, 3, 6:] = 40
    found = {t: evaluate(ours, truth, iou_threshold=t).instances for t in (0.5, 0.75, 0.8)}
    assert (found[0.75]["precision"], found[0.75]["recall"]) == (2 / 4, 2 / 3)
    assert found[0.75]["f1"] == 2 * 2 / 7
    assert (found[0.8]["found"], found[0.8]["segments"], found[0.8]["bodies"]) == (1, 4, 3)
    # Either half may be the body, but only one of them is.
    assert found[0.5]["found"] == 3
    with pytest.raises(OptionError, match="above 0 and at most 1"):
        evaluate(ours, truth, iou_threshold=0)
    nothing = evaluate(np.zeros((1, 1, 2), int), np.zeros((1, 1, 2), int), ignore_zero=False)
    assert (nothing.instances["f1"], nothing.instances["found"]) == (1, 0)


def test_one_segment_is_one_body_at_most():
    """Below an IoU of 0.5 a segment may match two bodies; the largest matching counts."""
    # Segment 1 fits bodies 1 (0.4) and 2 (0.4); segment 2 fits body 1 only.
    segments, bodies = [1, 1, 2, 0], [1, 2, 1, 2]
    table = Contingency(
        np.array(segments, "u8"), np.array(bodies, "u8"), np.array([4, 4, 4, 0]) + [0, 0, 0, 1]
    )
    assert score(table, iou_threshold=0.33).instances["found"] == 2


def test_classes():
    """Classes get Dice and IoU for each label, background included, without ignored voxels."""
    truth = np.array([[[0, 0, 1, 1, 1, 2]]])
    ours = np.array([[[0, 1, 1, 1, 0, 3]]])
    found = evaluate(ours, truth, per_class=True).classes
    assert {k: (c["dice"], c["iou"]) for k, c in found.items()} == {
        "0": (0.5, 1 / 3), "1": (4 / 6, 0.5), "2": (0, 0), "3": (0, 0),
    }  # fmt: skip
    assert (found["1"]["segmentation_voxels"], found["2"]["groundtruth_voxels"]) == (3, 1)
    assert list(evaluate(ours, truth, per_class=True, ignore_bodies=[2]).classes) == ["0", "1"]
