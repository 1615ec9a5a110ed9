"""mask."""

from fractions import Fraction
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.ops.create_chunk import create_chunk
from chunkflow_py.ops.mask import mask
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.mask import box_mask, mask_of
from chunkflow_py.volume.protocol import VolumeSpec


def volume_of(array, offset=(0, 0, 0), voxel_size=(40, 8, 8)):
    """Return what mask_of needs of a volume, over an array in memory."""
    chunk = Chunk(array, offset, voxel_size)
    return SimpleNamespace(
        url="memory", bounds=chunk.bbox, voxel_size_nm=voxel_size, read=chunk.cut
    )


# Quotients of the sizes are whole, 3/2, 10/4 = 5/2, and 7.4/4 = 37/20.
@settings(max_examples=40)
@given(
    seed=st.integers(0, 9999),
    start=st.tuples(*[st.integers(-9, 9)] * 3),
    size=st.tuples(*[st.integers(1, 7)] * 3),
    coarse_nm=st.tuples(*[st.sampled_from([4, 6, 7.4, 8, 10, 12, 16])] * 3),
    inverse=st.booleans(),
)
def test_each_voxel_takes_the_mask_voxel_that_holds_its_centre(
    seed, start, size, coarse_nm, inverse
):
    """Voxel p is kept where the mask at (p + 1/2)·size is not zero; outside it is zero."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 2, (5, 6, 7)).astype(np.uint8) * 9
    offset = (-2, -3, -1)
    array = rng.integers(1, 99, (2, *size)).astype(np.int32)
    chunk = Chunk(array, start, (4, 4, 4))
    volume = volume_of(coarse, offset, coarse_nm)
    kept = box_mask(volume, chunk.bbox, chunk.voxel_size_nm)
    kept = kept.inverted() if inverse else kept
    found, expected = mask(chunk, kept), array.copy()
    for index in np.ndindex(*size):
        centre = [Fraction(4 * (2 * (s + i) + 1), 2) for s, i in zip(start, index, strict=True)]
        place = [c // Fraction(str(nm)) for c, nm in zip(centre, coarse_nm, strict=True)]
        place = tuple(p - o for p, o in zip(place, offset, strict=True))
        inside = all(0 <= p < n for p, n in zip(place, coarse.shape, strict=True))
        if (bool(coarse[place]) if inside else False) == inverse:
            expected[(..., *index)] = 0
    assert np.array_equal(found.array, expected)
    assert np.array_equal(mask(chunk, kept.whole()).array, expected)
    # Cut in two, it is the same.
    cut = BoundingBox.from_size(start, (size[0], size[1], -(-size[2] // 2)))
    part = mask(chunk.cut(cut), box_mask(volume, cut, (4, 4, 4)).inverted() if inverse
                else box_mask(volume, cut, (4, 4, 4)))  # fmt: skip
    assert np.array_equal(part.array, expected[..., : cut.size.x])


def test_masking_keeps_everything_else():
    """Kept voxels stay; the others become zero, NaN too; every channel is masked."""
    array = np.full((2, 1, 1, 3), np.nan, np.float32)
    array[..., 0] = 3
    chunk = Chunk(array, (1, 2, 3), (40, 4, 4), "affinity")
    result = mask(chunk, np.array([[[True, False, False]]]))
    assert result.array.ravel().tolist() == [3, 0, 0, 3, 0, 0]
    assert result.dtype == np.float32
    assert repr(result) == repr(chunk)
    assert np.isnan(array[..., 1:]).all()


def test_a_mask_of_several_channels_keeps_where_any_is_set():
    """Of a mask with channels any non-zero one keeps the voxel."""
    coarse = np.zeros((2, 1, 1, 2), bool)
    coarse[1, 0, 0, 1] = True
    chunk = Chunk(np.ones((1, 1, 2), np.uint8), voxel_size_nm=(40, 8, 8))
    assert mask_of(chunk, volume_of(coarse)).ravel().tolist() == [False, True]


def test_missing_masks_can_be_refused():
    """With fill_missing off a chunk beyond the mask is an error that names both boxes."""
    chunk = Chunk(np.ones((1, 1, 5), np.uint8), voxel_size_nm=(40, 4, 4))
    volume = volume_of(np.ones((1, 1, 2), np.uint8))
    assert mask_of(chunk, volume).ravel().tolist() == [True] * 4 + [False]
    with pytest.raises(GeometryError, match="needs box 0-1_0-1_0-3 of mask memory.*0-1_0-1_0-2"):
        mask_of(chunk, volume, fill_missing=False)


@pytest.mark.parametrize("size", [(40, 3, 8), (20, 8, 8)])
def test_finer_masks_are_refused(size):
    """The mask's voxels must not be smaller than the chunk's, which would leave some unasked."""
    chunk = Chunk(np.ones((1, 1, 1), np.uint8), voxel_size_nm=(40, 8, 8))
    volume = volume_of(np.ones((1, 1, 1)), voxel_size=size)
    with pytest.raises(ChunkError, match="must not be smaller; choose another --mip"):
        mask_of(chunk, volume)


@pytest.fixture
def mask_volume(tmp_path):
    """Create a zarr volume of voxels of 40×8×8 nm, whose second half in x is set."""
    pytest.importorskip("zarr")
    array = np.zeros((4, 4, 4), np.uint8)
    array[:, :, 2:] = 1
    spec = VolumeSpec(
        BoundingBox.parse("0-4_0-4_0-4"), (40, 8, 8), array.dtype, None, None, Zyx(4, 4, 4)
    )
    url = f"zarr://{tmp_path}/mask.zarr"
    volume = create_volume(spec, url)
    volume.write(Chunk(array, (0, 0, 0), (40, 8, 8)))
    return url


def line(url, *more):
    """Return a line that masks a chunk of voxels of 20×4×4 nm and another of it."""
    create = [
        "create-chunk",
        "-s",
        "8",
        "8",
        "8",
        "-p",
        "random",
        "-e",
        "20",
        "4",
        "4",
        "copy-var",
        "-t",
        "second",
    ]
    return [*create, "mask", "-v", url, "-i", "chunk,second", "-o", "a,b", *more]


@pytest.mark.parametrize("inverse", [False, True])
def test_a_coarser_mask_in_a_line(mask_volume, tmp_path, inverse):
    """Several chunks are masked by a volume of half the resolution, or by its inverse."""
    more = ["--mip", "0", *(["--inverse"] if inverse else [])]
    save = ["save-h5", "-i", "b", "-f", f"{tmp_path}/b.h5"]
    result = CliRunner().invoke(cli, [*line(mask_volume, *more), *save])
    assert result.exit_code == 0, result.output
    expected = create_chunk(Zyx(8, 8, 8), pattern="random").array.copy()
    expected[:, :, slice(4, None) if inverse else slice(4)] = 0
    with h5py.File(tmp_path / "b.h5") as file:
        assert np.array_equal(file["main"], expected)


def test_masks_that_cannot_work_are_one_sentence(mask_volume):
    """A missing volume, a missing level and unequal names end without a traceback."""
    run = CliRunner()
    result = run.invoke(cli, line("zarr://nowhere.zarr"))
    assert (result.exit_code, "nowhere.zarr" in result.output) == (1, True)
    result = run.invoke(cli, line(mask_volume))  # level 5
    assert result.exit_code == 1
    assert "Error:" in result.output
    result = run.invoke(cli, ["create-chunk", "mask", "-v", "x", "-i", "chunk", "-o", "a,b"])
    assert (result.exit_code, "give one output name for each" in result.output) == (2, True)
