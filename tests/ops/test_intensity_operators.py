"""The small operators on grey values: by hand-computed examples, and where they are refused."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.exposure import equalize_adapthist
from skimage.exposure import rescale_intensity as by_skimage

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.clahe import Equaliser, clahe
from chunkflow_py.ops.inverse import inverse
from chunkflow_py.ops.mapto01 import mapto01
from chunkflow_py.ops.normalize_section_shang import normalize_section_shang
from chunkflow_py.ops.rescale_intensity import rescale_intensity
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.ops.stretch_intensity import stretch_intensity


def row(*values, dtype=np.uint8):
    """Return a chunk (1, 1, n)."""
    return Chunk(np.array([[values]], dtype), (1, 2, 3), (40, 4, 4), "image")


def values(chunk):
    """Return the voxels of a chunk as a list."""
    return chunk.array.ravel().tolist()


def test_inverse():
    """Unsigned integers are taken from the largest of their type, floats from 1."""
    assert values(inverse(row(0, 1, 255))) == [255, 254, 0]
    assert values(inverse(row(0, 65535, dtype=np.uint16))) == [65535, 0]
    found = inverse(row(0, 0.25, 1, dtype=np.float32))
    assert (values(found), found.dtype) == ([1, 0.75, 0], np.float32)
    with pytest.raises(ChunkError, match="has values from -0.5 to 1; put rescale-intensity"):
        inverse(row(-0.5, 1, dtype=np.float32))
    with pytest.raises(ChunkError, match="int16"):
        inverse(row(1, dtype=np.int16))
    with pytest.raises(ChunkError, match="a segmentation"):
        inverse(row(1).with_array(np.ones((1, 1, 1), np.uint8), (0, 0, 0), kind="segmentation"))


def test_mapto01():
    """-1 becomes 0 and 1 stays; other values and types are refused."""
    found = mapto01(row(-1, 0, 1, dtype=np.float32))
    assert (values(found), found.dtype) == ([0, 0.5, 1], np.float32)
    for wrong in (row(0, 1), row(0, 1.5, dtype=np.float32), row(np.nan, dtype=np.float32)):
        with pytest.raises(ChunkError, match=r"mapto01 needs .* in \[-1, 1\]"):
            mapto01(wrong)


def test_stretch_intensity():
    """The thresholds become 0 and the largest value; in between it is linear, rounded."""
    assert values(stretch_intensity(row(0, 50, 100, 150, 200), 50, 150)) == [0, 0, 128, 255, 255]
    assert values(stretch_intensity(row(0, 128, 255))) == [0, 128, 254]
    top = stretch_intensity(row(0, 300, 500, dtype=np.uint16), 300, 500)
    assert (values(top), top.dtype) == ([0, 0, 65535], np.uint16)
    with pytest.raises(OptionError, match="--min-threshold 9 must be"):
        stretch_intensity(row(1), 9, 9)
    with pytest.raises(ChunkError, match="float32; use rescale-intensity"):
        stretch_intensity(row(1, dtype=np.float32))


@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["uint8", "uint16", "int16", "uint32", "float32"]),
    low=st.integers(-20, 90),
    width=st.integers(1, 200),
)
@settings(max_examples=40)
def test_rescale_intensity_agrees_with_scikit_image(seed, dtype, low, width):
    """Every type is mapped as scikit-image maps doubles, then rounded once."""
    array = np.random.default_rng(seed).integers(0, 100, (2, 3, 4, 5)).astype(dtype)
    span = (low, low + width)
    exact = by_skimage(array.astype(float), span, (0, 255))
    for target in (None, "uint8", "float32"):
        found = rescale_intensity(Chunk(array), *span, dtype=target).array
        assert found.dtype == np.dtype(target or dtype)
        near = 0.5001 if found.dtype.kind != "f" else 1e-4
        np.testing.assert_allclose(found, exact, atol=near)


def test_rescale_intensity_of_a_chunks_own_range():
    """Without a range it is that of the chunk; one value becomes the lowest."""
    assert values(rescale_intensity(row(10, 15, 20))) == [0, 128, 255]
    assert values(rescale_intensity(row(7, 7))) == [0, 0]
    assert values(rescale_intensity(row(2**24, 2**24, dtype=np.float32))) == [0, 0]
    assert values(rescale_intensity(row(10, 20), high=5)) == [255, 255]
    assert values(rescale_intensity(row(10, 20), low=25)) == [0, 0]
    unit = rescale_intensity(row(0, 255), out_high=1, dtype="float32")
    assert values(unit) == [0, 1]
    with pytest.raises(ChunkError, match="from 0 to 255, which do not fit into int8"):
        rescale_intensity(row(1, dtype=np.int8))
    with pytest.raises(OptionError, match="--low 5 must be below --high 5"):
        rescale_intensity(row(1), 5, 5)
    for wrong, options in ((np.nan, {"low": 0, "high": 1}), (np.inf, {})):
        with pytest.raises(ChunkError, match=f"from .* to {wrong}, but the range must be finite"):
            rescale_intensity(row(wrong, 1, dtype=np.float32), **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32])
def test_normalize_section_shang(dtype):
    """The values but for the very extremes span the nominal range; the extremes lie outside."""
    sections = np.array([[[0, 10, 20, 30, 90]], [[5, 5, 6, 6, 6]]], dtype)
    found = normalize_section_shang(Chunk(sections), 0, 100)
    assert found.dtype == np.float32
    assert found.array[0, 0].tolist() == [-50, 0, 50, 100, 400]
    assert found.array[1, 0].tolist() == [5, 5, 6, 6, 6]
    clipped = normalize_section_shang(Chunk(np.stack([sections] * 2)), 0, 100, True)
    assert clipped.array[1, 0, 0].tolist() == [0, 0, 50, 100, 100]
    top = 1 if dtype == np.float32 else np.iinfo(dtype).max
    assert normalize_section_shang(Chunk(sections)).array[0, 0, 3] == np.float32(top)
    with pytest.raises(OptionError, match="--nominalmin 2 must be below --nominalmax 1"):
        normalize_section_shang(Chunk(sections), 2, 1)
    for chunk in (Chunk(sections.astype(np.uint64)), Chunk(sections, kind="segmentation")):
        with pytest.raises(ChunkError, match="holds .* labels; load the image instead"):
            normalize_section_shang(chunk)


def test_clahe_is_that_of_scikit_image():
    """Sections are equalised by themselves, or in 3D, over the whole range of the type."""
    rng = np.random.default_rng(0)
    array = (rng.integers(0, 60, (3, 20, 24)) + np.arange(24)).astype(np.uint8)
    found = clahe(Chunk(array), (2, 8, 8), 0.02).array
    unit = (array[1] - array[1].min()) / float(np.ptp(array[1]))
    expected = np.rint(equalize_adapthist(unit, (8, 8), 0.02) * 255)
    assert np.abs(found[1] - expected).max() <= 1
    assert (found.dtype, found[1].max()) == (np.uint8, 255)
    whole = clahe(Chunk(np.stack([array] * 2)), (2, 8, 8), 0.02, per_section=False).array
    unit = (array - array.min()) / float(np.ptp(array))
    expected = np.rint(equalize_adapthist(unit, (2, 8, 8), 0.02) * 255)
    assert np.abs(whole[1] - expected).max() <= 1
    flat = np.full((1, 4, 4), 9, np.uint16)
    assert np.array_equal(clahe(Chunk(flat)).array, flat)
    wide = clahe(Chunk(array.astype(np.uint64) << 56), (2, 64, 64)).array
    assert wide.max() == 2**64 - 2**11  # the largest of both uint64 and float64
    real = clahe(Chunk(array / 10 - 3), (2, 64, 64)).array
    assert (real.min() >= 0, real.max()) == (True, 1)
    for wrong in (array.astype(np.int16), np.full((1, 2, 2), np.nan)):
        with pytest.raises(ChunkError, match="clahe needs unsigned integers or finite"):
            clahe(Chunk(wrong))


def test_clahe_asks_for_a_tile_around_the_box():
    """The margin is one tile in plane, and along z too in 3D, inside of the volume."""
    box, domain = BoundingBox.parse("0-4_50-60_50-60"), BoundingBox.parse("0-9_0-99_0-99")
    flat, deep = (Equaliser(Zyx(2, 8, 8), per_section=flag) for flag in (True, False))
    assert str(flat.required_input(box, domain)) == "0-4_42-68_42-68"
    assert str(deep.required_input(box, domain)) == "0-6_42-68_42-68"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rescale-intensity --low 9 --high 3", "--low 9 must be below --high 3"),
        ("rescale-intensity --out-low 9 --out-high 3", "--out-low 9 must be"),
        ("stretch-intensity --min-threshold 300", "below --max-threshold 256"),
        ("normalize-section-shang --nominalmin 3 --nominalmax 2", "--nominalmin 3 must be"),
        ("clahe --clip-limit 0", "0<x<=1"),
    ],
)
def test_bad_options_end_with_2(words, said):
    """Ranges that are none are a usage error."""
    result = CliRunner().invoke(cli, ["create-chunk", *words.split()])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("work", "remedy"),
    [
        ("normalize-contrast", "give the URL of its output as --levels"),
        ("rescale-intensity --low 0", "give --low and --high"),
        ("normalize-section-shang", "use normalize-contrast --levels"),
        ("clahe", "or stretch-intensity instead of clahe"),
        ("rescale-intensity --low 0 --high 9", None),
        ("stretch-intensity", None),
    ],
)
def test_grey_values_that_depend_on_the_cut_are_told_of(tmp_path, work, remedy):
    """Once, where chunks are parts of a volume, with what does not depend on it."""
    save_h5(Chunk(np.arange(256, dtype=np.uint8).reshape(4, 8, 8)), tmp_path / "a.h5")
    for cut, count in (("", 0), ("generate-tasks -z 4 8 8 -c 2 8 8 -s 0 0 0 ", remedy is not None)):
        result = CliRunner().invoke(cli, f"{cut}load-h5 -f {tmp_path}/a.h5 {work}".split())
        assert result.exit_code == 0, result.output
        assert result.stderr.count("the volume is 0-4_0-8_0-8: the result depends on how") == count
        assert not count or remedy in result.stderr
