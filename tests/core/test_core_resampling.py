"""Tests of chunkflow_py.core.resampling against Pillow, and of chunks against the whole."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.resampling import METHODS, Resampling
from chunkflow_py.errors import ChunkError, GeometryError, OptionError
from chunkflow_py.volume.downsample import downsample

KERNELS = {"linear": Image.Resampling.BILINEAR, "cubic": Image.Resampling.BICUBIC}


def box_of(*size: int) -> BoundingBox:
    """Return a box at the origin."""
    return BoundingBox.from_size((0, 0, 0), size)


def resampled(array, scale, method, start=(0, 0, 0)):
    """Resample a whole volume that begins at *start*."""
    resampling = Resampling(Scale.of(scale), method)
    box = BoundingBox.from_size(start, array.shape[-3:])
    return resampling(array, box, resampling.output_box(box), box)


@pytest.mark.parametrize("method", sorted(KERNELS))
@pytest.mark.parametrize("size", [(40, 30), (20, 45), (90, 120), (24, 36), (60, 90)])
def test_planes_equal_those_of_pillow(method, size):
    """Coarser and finer, with smoothing and at the edges: the same kernels as in Pillow."""
    image = np.random.default_rng(1).random((60, 90), dtype=np.float32)
    scale = (1, Fraction(60, size[0]), Fraction(90, size[1]))
    expected = Image.fromarray(image).resize(size[::-1], KERNELS[method])
    ours = resampled(image[None], scale, method)[0]
    np.testing.assert_allclose(ours, np.asarray(expected), atol=3e-7)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("method", sorted(KERNELS))
def test_each_axis_is_resampled_alike(axis, method):
    """An axis gives what any other axis gives for the same numbers, up to float32 rounding."""
    row = np.random.default_rng(2).random(30, dtype=np.float32)
    shape, scale = [1, 1, 1], [1, 1, 1]
    shape[axis], scale[axis] = 30, Fraction(4, 3)
    expected = Image.fromarray(row[None]).resize((22, 1), KERNELS[method], box=(0, 0, 88 / 3, 1))
    ours = resampled(row.reshape(shape), scale, method).ravel()
    np.testing.assert_allclose(ours[:21], np.asarray(expected)[0, :21], atol=3e-7)


@pytest.mark.parametrize("size", [(13, 40, 30), (20, 25, 45), (13, 71, 63)])
@pytest.mark.parametrize("order", [1, 3])
def test_volumes_equal_those_of_scikit_image(size, order):
    """Without smoothing, with the edge repeated: as nnU-Net resamples images and logits."""
    from skimage.transform import resize

    image = np.random.default_rng(4).normal(size=(13, 40, 37)).astype(np.float32)
    expected = resize(
        image.astype(np.float64), size, order, mode="edge", anti_aliasing=False, clip=False
    )
    scale = [Fraction(a, b) for a, b in zip(image.shape, size, strict=True)]
    ours = resampled(image, scale, "hat" if order == 1 else "spline")
    np.testing.assert_allclose(ours, expected, atol=3e-6)


def test_each_axis_may_have_its_own_method():
    """Sections far apart: nearest along z, a spline within each section."""
    image = np.random.default_rng(5).random((5, 20, 20), dtype=np.float32)
    scale = ("1/2", "2/3", "4/3")
    ours = resampled(image, scale, ("nearest", "spline", "spline"))
    planes = np.stack([resampled(plane[None], (1, *scale[1:]), "spline")[0] for plane in image])
    np.testing.assert_array_equal(ours, np.repeat(planes, 2, axis=0))
    labels = np.arange(8, dtype=np.uint64).reshape(2, 2, 2)
    assert resampled(labels, (1, 1, 1), ("nearest",) * 3).dtype == np.uint64
    with pytest.raises(OptionError, match="'mode' is not one of"):
        Resampling(Scale.of((1, 1, 1)), ("mode", "nearest", "nearest"))


def test_a_ramp_keeps_its_positions():
    """Voxel centres decide: a voxel has the value of the ramp at its own centre."""
    ramp = np.arange(100, 140, dtype=np.float32)  # the value at position p, in voxels, is p - 0.5
    for scale in (Fraction(1, 2), Fraction(2, 3), Fraction(3, 2), Fraction(5, 2)):
        ours = resampled(ramp.reshape(1, 1, -1), (1, 1, scale), "linear", (0, 0, 100))
        first = Scale.of((1, 1, scale)).coarser(BoundingBox((0, 0, 100), (1, 1, 140))).start.x
        centres = [float((first + k + Fraction(1, 2)) * scale) - 0.5 for k in range(ours.size)]
        # A wide kernel, sampled at voxels, keeps a ramp to a few hundredths of a voxel.
        tolerance = 1e-4 if scale < 1 else 0.03
        np.testing.assert_allclose(ours.ravel()[3:-3], centres[3:-3], atol=tolerance)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float64", "uint64"])
def test_the_mode_of_whole_factors_is_that_of_downsample(dtype):
    """Also which of several most frequent labels counts, for factors of 1 to 3 along each axis."""
    from chunkflow_py.core.chunk import Chunk

    labels = np.random.default_rng(3).integers(0, 4, (12, 18, 12)).astype(dtype)
    for factor in ((2, 2, 2), (1, 3, 2), (3, 1, 1)):
        expected = downsample(Chunk(labels), Zyx(*factor), "mode").array
        ours = resampled(labels, factor, "mode")
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, expected)


def test_the_mode_weighs_by_the_covered_part():
    """With a factor of 3/2, voxels cover one voxel whole and half of another one."""
    labels = np.array([7, 5, 5, 9, 9, 7]).reshape(1, 1, 6)
    assert resampled(labels, (1, 1, Fraction(3, 2)), "mode").ravel().tolist() == [7, 5, 9, 7]
    # halves of equal size: the smaller label
    assert resampled(labels, (1, 1, Fraction(1, 2)), "mode").ravel().tolist() == [
        label for label in labels.ravel().tolist() for _ in range(2)
    ]
    assert resampled(labels, (1, 1, 2), "mode").ravel().tolist() == [5, 5, 7]


def test_nearest_takes_the_voxel_at_the_centre():
    """Also where a volume begins at an odd offset."""
    values = np.arange(11).reshape(1, 1, 11)
    assert resampled(values, (1, 1, 3), "nearest", (0, 0, 1)).ravel().tolist() == [0, 3, 6, 9]
    thirds = resampled(values, (1, 1, Fraction(1, 3)), "nearest").ravel().tolist()
    assert thirds == [k // 3 for k in range(33)]


def ratios(rng: random.Random) -> tuple[Fraction, ...]:
    """Return three random ratios from 1/3 to 3, some of them 1 or whole."""
    return tuple(
        Fraction(rng.randint(1, 7), rng.randint(2, 5)) if rng.random() < 0.8 else Fraction(1)
        for _ in range(3)
    )


@pytest.mark.parametrize("seed", range(30))
def test_parts_equal_the_whole(seed):
    """30 random ratios and cuts: a part that has its required input gives the same bytes."""
    rng = random.Random(seed)
    scale, start = Scale.of(ratios(rng)), Zyx(*(rng.randint(-9, 9) for _ in range(3)))
    domain = BoundingBox.from_size(start, [rng.randint(7, 24) for _ in range(3)])
    dtype = rng.choice(["uint8", "int16", "uint32", "float32", "float64"])
    data = np.random.default_rng(seed)
    values = data.integers(0, 200, (2, *domain.size)).astype(dtype)
    if values.dtype.kind == "f":
        values += data.random(values.shape).astype(dtype)
        values[data.random(values.shape) < 0.002] = np.nan
    for method in (*METHODS, ("nearest", "spline", "hat")):
        resampling = Resampling(scale, method)
        whole_box = resampling.output_box(domain)
        whole = resampling(values, domain, whole_box, domain)
        for _ in range(6):
            low = Zyx(*(rng.randrange(a, b) for a, b in zip(*_ends(whole_box), strict=True)))
            high = Zyx(*(rng.randint(a + 1, b) for a, b in zip(low, whole_box.stop, strict=True)))
            part = BoundingBox(low, high)
            need = resampling.required_input(part, domain)
            # more than is needed makes no difference either
            need = need.grow([rng.choice([0, 0, 1, 3]) for _ in range(3)]).intersection(domain)
            cut = values[(..., *need.slices(domain.start))]
            ours = resampling(cut, need, part, domain)
            expected = whole[(..., *part.slices(whole_box.start))]
            assert ours.tobytes() == np.ascontiguousarray(expected).tobytes(), (method, part)


def _ends(box: BoundingBox) -> tuple[Zyx, Zyx]:
    return box.start, box.stop


@pytest.mark.parametrize("method", METHODS)
def test_required_input_is_no_larger_than_needed(method):
    """Changing a voxel at a corner of the required input changes the result (linear, labels)."""
    scale, domain = Scale.of((1, Fraction(3, 2), Fraction(2, 3))), box_of(3, 40, 40)
    resampling = Resampling(scale, method)
    part = BoundingBox((1, 9, 20), (2, 12, 25))
    need = resampling.required_input(part, domain)
    values = np.random.default_rng(0).random(domain.size)
    before = resampling(values, domain, part, domain)
    outside = values.copy()
    outside[:] = -1
    outside[need.slices()] = values[need.slices()]
    np.testing.assert_array_equal(resampling(outside, domain, part, domain), before)
    if method in ("linear", "nearest"):
        for axis in range(3):
            for at in (need.start[axis], need.stop[axis] - 1):
                plane = [slice(None)] * 3
                plane[axis] = slice(at, at + 1)
                changed = values.copy()
                changed[tuple(plane)] += 1
                assert (resampling(changed, domain, part, domain) != before).any()


def test_integers_are_rounded_to_even_and_clipped():
    """Cubic interpolation of a step exceeds the range of uint8, where it is cut off."""
    step = np.array([0, 0, 0, 255, 255, 255], np.uint8).reshape(1, 1, 6)
    ours = resampled(step, (1, 1, Fraction(1, 2)), "cubic").ravel()
    floats = resampled(step.astype(np.float32), (1, 1, Fraction(1, 2)), "cubic").ravel()
    assert floats.min() < -1
    assert floats.max() > 256
    np.testing.assert_array_equal(ours, np.clip(np.rint(floats), 0, 255))
    halves = np.array([1, 2, 3, 4], np.uint8).reshape(1, 1, 4)
    assert resampled(halves, (1, 1, 4), "linear").item() == 2  # 2.5


@pytest.mark.parametrize("dtype", ["bool", "uint64", "int64"])
def test_what_cannot_be_interpolated(dtype):
    """Bool has no mean, and integers of 64 bits are labels, or too large for floats."""
    with pytest.raises(ChunkError, match=f"voxels of {dtype} cannot be interpolated"):
        resampled(np.zeros((4, 4, 4), dtype), (2, 2, 2), "linear")
    assert resampled(np.ones((4, 4, 4), dtype), (2, 2, 2), "mode").all()


def test_ratios_and_methods_that_do_not_work():
    """Numbers of more than 24 bits could not be computed exactly."""
    with pytest.raises(OptionError, match="more than 24 bits; round the voxel sizes"):
        Resampling(Scale.between((1, 1, 7.123456789), (1, 1, 1)))
    with pytest.raises(
        OptionError, match="'lanczos' is not one of linear, cubic, hat, spline, nearest, mode"
    ):
        Resampling(Scale.of((1, 1, 1)), "lanczos")


def test_input_elsewhere():
    """An input without a voxel of the volume is an error; an empty result is not."""
    resampling = Resampling(Scale.of((2, 2, 2)))
    with pytest.raises(GeometryError, match="contains no voxel of the volume"):
        resampling(np.zeros((2, 2, 2)), box_of(2, 2, 2), box_of(1, 1, 1),
                   BoundingBox((8, 8, 8), (9, 9, 9)))  # fmt: skip
    empty = box_of(0, 1, 1)
    assert resampling(np.zeros((2, 2, 2)), box_of(2, 2, 2), empty, box_of(2, 2, 2)).size == 0
