"""Chunk: an array with its position in the volume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py import BoundingBox, Chunk, Zyx
from chunkflow_py.errors import ChunkError, GeometryError

DOMAIN = BoundingBox.parse("0-100_0-100_0-100")


def cube(offset: tuple[int, int, int] = (10, 20, 30), channels: int = 0) -> Chunk:
    """Return a small chunk whose voxels all differ."""
    shape = (channels, 2, 3, 4) if channels else (2, 3, 4)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return Chunk(array, offset, (40, 4.5, 4.5), "image", DOMAIN)


def test_a_chunk_knows_its_place() -> None:
    """Size, channels, box, voxel size and domain are as given."""
    chunk = cube(channels=5)
    assert chunk.shape == (5, 2, 3, 4)
    assert chunk.ndim == 4
    assert chunk.channels == 5
    assert cube().channels == 1
    assert chunk.size == Zyx(2, 3, 4)
    assert chunk.bbox == BoundingBox.parse("10-12_20-23_30-34")
    assert chunk.voxel_size_nm == (40.0, 4.5, 4.5)
    assert chunk.domain == DOMAIN
    assert len(chunk) == 5
    assert repr(chunk) == (
        "Chunk(image, 10-12_20-23_30-34, shape (5, 2, 3, 4), float32, "
        "voxels of (40.0, 4.5, 4.5) nm)"
    )


def test_defaults() -> None:
    """A bare array lies at the origin, with voxels of 1 nm, and is its own domain."""
    chunk = Chunk(np.zeros((1, 2, 3), np.uint8))
    assert (chunk.voxel_offset, chunk.voxel_size_nm, chunk.kind) == ((0, 0, 0), (1, 1, 1), None)
    assert chunk.domain == chunk.bbox
    assert "unknown kind" in repr(chunk)


@pytest.mark.parametrize("shape", [(), (3,), (3, 3), (1, 1, 1, 1, 1)])
def test_other_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    """A chunk has three axes, or four with channels."""
    with pytest.raises(ChunkError, match=r"\(z, y, x\) or \(c, z, y, x\)"):
        Chunk(np.zeros(shape))


def test_unknown_kind_is_refused() -> None:
    """The message lists the valid kinds."""
    with pytest.raises(ChunkError, match="'picture' is not one of image, segmentation"):
        Chunk(np.zeros((1, 1, 1)), kind="picture")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(1, 1), (1, 1, 0), (1, 1, -4), (1, 1, np.nan), (1, 1, np.inf)])
def test_impossible_voxel_size_is_refused(size: tuple[float, ...]) -> None:
    """A voxel size is three positive numbers."""
    with pytest.raises(ChunkError, match="three positive numbers"):
        Chunk(np.zeros((1, 1, 1)), voxel_size_nm=size)


def test_chunk_outside_of_its_domain_is_refused() -> None:
    """A chunk is a part of its domain; both boxes are in the message."""
    with pytest.raises(GeometryError, match=r"99-101_0-1_0-1 .* domain 0-100_0-100_0-100"):
        Chunk(np.zeros((2, 1, 1)), (99, 0, 0), domain=DOMAIN)


# --- NumPy ---------------------------------------------------------------------------------------


def test_voxels_are_in_the_byte_order_of_this_machine() -> None:
    """Arrays of another byte order keep their values; others are not copied."""
    swapped = np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    foreign = swapped.astype(swapped.dtype.newbyteorder("S"))
    chunk = Chunk(foreign)
    assert chunk.dtype.isnative
    assert not foreign.dtype.isnative
    np.testing.assert_array_equal(chunk.array, swapped)
    assert Chunk(swapped).array is swapped


def test_numpy_sees_the_array_itself() -> None:
    """np.asarray makes no copy unless another dtype or a copy is asked for."""
    chunk = cube()
    assert np.asarray(chunk) is chunk.array
    assert np.asarray(chunk, dtype=np.uint8).dtype == np.uint8
    assert not np.shares_memory(np.array(chunk), chunk.array)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(chunk, dtype=np.uint8, copy=False)


@pytest.mark.parametrize(
    "calculate",
    [
        lambda c: c + 1,
        lambda c: 1 - c,
        np.sqrt,
        lambda c: c > 3,
        lambda c: np.maximum(c, c),
        lambda c: c * np.float32(2) + c,
        lambda c: c * np.ones((2, 3, 4)),
    ],
)
@pytest.mark.parametrize("channels", [0, 3])
def test_ufuncs_give_chunks_in_the_same_place(calculate: object, channels: int) -> None:
    """Elementwise calculations give what NumPy gives, and keep place, size and domain."""
    chunk = cube(channels=channels)
    result = calculate(chunk)  # type: ignore[operator]
    assert isinstance(result, Chunk)
    np.testing.assert_array_equal(result.array, calculate(chunk.array))  # type: ignore[operator]
    assert (result.bbox, result.voxel_size_nm, result.domain) == (
        chunk.bbox,
        chunk.voxel_size_nm,
        DOMAIN,
    )


def test_ufunc_between_zyx_and_czyx() -> None:
    """A chunk without channels is broadcast over the channels of another."""
    result = cube() + cube(channels=3)
    assert result.shape == (3, 2, 3, 4)
    assert result.bbox == cube().bbox


def test_ufunc_of_two_results() -> None:
    """A ufunc that returns two arrays returns two chunks."""
    quotient, rest = divmod(cube(), 5)
    assert quotient.bbox == rest.bbox == cube().bbox
    np.testing.assert_array_equal(quotient.array * 5 + rest.array, cube().array)


@pytest.mark.parametrize("use", [np.add, np.maximum, np.equal])
def test_ufunc_of_different_boxes_is_refused(use: np.ufunc) -> None:
    """Chunks of equal shape in different places are never mixed; the common box is offered."""
    with pytest.raises(ChunkError, match=r"10-12_20-23_30-34 and 10-12_21-24_30-34; cut both"):
        use(cube(), cube((10, 21, 30)))


def test_out_is_filled_and_returned() -> None:
    """out= takes a chunk or an array, and returns it."""
    chunk, out = cube(), cube()
    array = out.array
    assert np.add(chunk, 1, out=out) is out
    assert out.array is array
    np.testing.assert_array_equal(array, chunk.array + 1)
    plain = np.zeros(chunk.shape, np.float32)
    assert np.add(chunk, 1, out=plain) is plain
    np.testing.assert_array_equal(plain, array)
    assert np.add(chunk.array, 2, out=out) is out
    np.testing.assert_array_equal(array, chunk.array + 2)


def test_out_elsewhere_is_refused() -> None:
    """out= is checked like an input, and unchanged if it is refused."""
    out = cube((0, 0, 0))
    before = out.array.copy()
    with pytest.raises(ChunkError, match="different boxes"):
        np.add(cube(), 1, out=out)
    np.testing.assert_array_equal(out.array, before)


def test_in_place_arithmetic_changes_the_array() -> None:
    """`chunk += 1` is in place, as with NumPy."""
    chunk = cube()
    same, array = chunk, chunk.array
    chunk += 1
    assert chunk is same
    assert chunk.array is array
    np.testing.assert_array_equal(array, cube().array + 1)


def test_reductions_give_plain_numbers_and_arrays() -> None:
    """A sum has no position in the volume."""
    chunk = cube()
    assert np.add.reduce(chunk, axis=None) == chunk.array.sum()
    assert np.max(chunk.array) == np.maximum.reduce(chunk, axis=None)
    along = np.add.reduce(chunk, axis=0)
    assert type(along) is np.ndarray
    out = np.zeros((3, 4), np.float32)
    assert np.add.reduce(chunk, axis=0, out=out) is out


def test_result_of_another_extent_is_an_array() -> None:
    """A result of another extent is an array, not a chunk."""
    chunk = Chunk(np.zeros((1, 3, 4)))
    assert type(chunk + np.zeros((5, 3, 4))) is np.ndarray


# --- parts ---------------------------------------------------------------------------------------

starts = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 3))


@given(starts, st.sampled_from([0, 2]))
def test_cut_by_global_coordinates_is_a_view(start: tuple[int, int, int], channels: int) -> None:
    """chunk[box] holds the voxels of that box, shares memory, and keeps the domain."""
    chunk = cube(channels=channels)
    box = BoundingBox(chunk.voxel_offset + start, chunk.bbox.stop)
    part = chunk[box]
    assert part.bbox == box
    assert part.domain == DOMAIN
    assert (part.kind, part.voxel_size_nm) == (chunk.kind, chunk.voxel_size_nm)
    assert np.shares_memory(part.array, chunk.array)
    z, y, x = start
    np.testing.assert_array_equal(part.array, chunk.array[..., z:, y:, x:])
    part.array[...] = -1
    assert (chunk.array[..., z:, y:, x:] == -1).all()


@pytest.mark.parametrize("box", ["9-12_20-23_30-34", "10-12_20-23_30-35", "0-1_0-1_0-1"])
def test_cut_outside_is_refused(box: str) -> None:
    """A box that reaches outside is an error, never a smaller chunk; the part inside is named."""
    with pytest.raises(GeometryError, match="reaches outside of chunk 10-12_20-23_30-34"):
        cube().cut(BoundingBox.parse(box))


def test_empty_cut() -> None:
    """An empty box inside gives an empty chunk of that box; one outside is refused."""
    inside = BoundingBox.parse("11-11_20-23_30-34")
    assert cube().cut(inside).bbox == inside
    with pytest.raises(GeometryError, match="reaches outside"):
        cube().cut(BoundingBox.parse("5-5_0-23_30-34"))


def test_other_indices_are_numpys() -> None:
    """chunk[0], chunk[mask] and the like index the array."""
    chunk = cube()
    np.testing.assert_array_equal(chunk[0], chunk.array[0])
    np.testing.assert_array_equal(chunk[..., 1:], chunk.array[..., 1:])


def test_with_array_keeps_everything_else() -> None:
    """New voxels in the same place keep voxel size, domain and kind, unless told otherwise."""
    chunk = cube()
    other = chunk.with_array(np.zeros((7, 2, 3, 4), np.uint8))
    assert (other.bbox, other.kind, other.domain) == (chunk.bbox, "image", DOMAIN)
    assert chunk.with_array(chunk.array, kind="segmentation").kind == "segmentation"
    assert chunk.with_array(chunk.array, kind=None).kind is None


def test_with_array_of_another_extent_needs_an_offset() -> None:
    """Voxels of another extent need a voxel offset."""
    chunk = cube()
    with pytest.raises(ChunkError, match=r"extent \(1, 1, 1\) .* extent \(2, 3, 4\).*voxel_offset"):
        chunk.with_array(np.zeros((1, 1, 1)))
    assert chunk.with_array(np.zeros((1, 1, 1)), (11, 21, 31)).voxel_offset == (11, 21, 31)


def test_with_array_beyond_the_domain_grows_it() -> None:
    """Padding may reach outside of the volume; the domain grows to hold it."""
    chunk = Chunk(np.zeros((2, 2, 2)))
    padded = chunk.with_array(np.zeros((4, 4, 4)), (-1, -1, -1))
    assert padded.domain == padded.bbox
