"""Selecting objects by size and id, and filling their holes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_fill_holes

from chunkflow_py.errors import ChunkError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.labels.object_selection import (
    fill_holes,
    ids_of_text,
    mask_out,
    read_ids,
)
from chunkflow_py.store.memory_store import MemoryStore

HUGE = 2**64 - 1


@given(
    arrays(np.uint64, (2, 3, 4), elements=st.sampled_from([0, 1, 2, 7, HUGE])),
    st.integers(0, 8),
    st.none() | st.sets(st.sampled_from([1, 7, HUGE, 2**70])),
)
@settings(max_examples=60, deadline=None)
def test_objects_that_stay(labels, least, selected) -> None:
    """Objects that are large enough and selected stay; everything else becomes 0."""
    before = labels.copy()
    kept = mask_out(labels, least, selected)
    for label in set(labels.ravel().tolist()) - {0}:
        stays = (labels == label).sum() >= least and (selected is None or label in selected)
        assert (kept[labels == label] == (label if stays else 0)).all()
    assert (kept[labels == 0] == 0).all()
    assert kept.dtype == labels.dtype
    assert np.array_equal(labels, before)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint32", "int64"])
def test_every_type_of_labels(dtype: str) -> None:
    """Masks and arrays of all integer types keep their type, in any memory layout."""
    labels = np.zeros((4, 5, 6), dtype)
    labels[2:, 2:, 2:] = 1
    expected = labels.copy()
    if dtype != "bool":
        labels[0, 0, 0] = 2
    for array in (labels, np.asfortranarray(labels), labels[::1, :, ::-1][..., ::-1]):
        kept = mask_out(array, 2)
        assert kept.dtype == dtype
        assert np.array_equal(kept, expected)
        assert not mask_out(array, 1000).any()


def test_ids_of_files_and_texts() -> None:
    """Ids are integers from a JSON list, from the keys of a JSON object, or from text."""
    store = MemoryStore("ids")
    for content in (
        b"[3, 18446744073709551615]",
        b'["3", "18446744073709551615"]',
        b'{"3": 1, "18446744073709551615": 2}',
    ):
        store.put("ids.json", content)
        assert read_ids(store, "ids.json") == {3, HUGE}
    assert ids_of_text(f" 3,{HUGE}") == {3, HUGE}
    with pytest.raises(VolumeNotFoundError, match=r"other\.json does not exist"):
        read_ids(store, "other.json")
    for content in (b"[]", b"3", b"[1.5]", b"[-3]", b"[true]", b"nonsense", b'[["a"]]'):
        store.put("ids.json", content)
        with pytest.raises(VolumeError, match=r"\[34, 56, 78\]"):
            read_ids(store, "ids.json")
    with pytest.raises(OptionError, match="34,56,78"):
        ids_of_text("3,b")


def object_by_object(labels: np.ndarray) -> np.ndarray:
    """Return the result of filling each object separately, in background only."""
    filled = labels.copy()
    # of objects inside of each other the inner one takes what it encloses: it has fewer voxels
    masks = {label: binary_fill_holes(labels == label) for label in np.unique(labels[labels != 0])}
    for label, mask in sorted(masks.items(), key=lambda each: each[1].sum()):
        filled[mask & (filled == 0)] = label
    return filled


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.6, 0.8, 0.9]), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_holes_are_those_of_each_object(seed: int, density: float, count: int) -> None:
    """Filling all pieces of background at once equals filling object by object."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((5, 6, 7)) < density) * rng.integers(1, count + 1, (5, 6, 7))
    labels = labels.astype(bool if count == 1 else np.int16)
    before = labels.copy()
    assert np.array_equal(fill_holes(labels), object_by_object(labels))
    assert np.array_equal(labels, before)


def test_objects_in_holes_of_others() -> None:
    """An object in a hole stays; the enclosing object fills the background around it."""
    labels = np.zeros((9, 9, 9), np.uint64)
    labels[1:8, 1:8, 1:8] = HUGE
    labels[2:7, 2:7, 2:7] = 0
    labels[3:6, 3:6, 3:6] = 5
    labels[4, 4, 4] = 0
    filled = fill_holes(labels)
    assert filled[4, 4, 4] == 5
    assert (filled[3:6, 3:6, 3:6] == 5).all()
    assert (filled == 5).sum() == 27
    assert (filled == HUGE).sum() == 7**3 - 27


def test_maps_have_no_objects() -> None:
    """Floating-point voxels are refused with a remedy."""
    for call in (mask_out, fill_holes):
        with pytest.raises(ChunkError, match="connected-components"):
            call(np.zeros((4, 4, 4), np.float32))


def test_nothing_to_fill() -> None:
    """Thin, full and empty arrays are returned unchanged."""
    for shape in ((2, 5, 5), (4, 4, 4), (0, 4, 4)):
        for value in (0, 3):
            labels = np.full(shape, value, np.uint8)
            assert np.array_equal(fill_holes(labels), labels)
