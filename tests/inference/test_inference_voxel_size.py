"""Data of another voxel size than the network's are refused, and the mip that fits is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.voxel_size import check_voxel_size

SIZES = st.tuples(*[st.floats(1, 1000)] * 3)


@given(model=SIZES, factor=st.tuples(*[st.floats(0.9, 1.1)] * 3))
def test_data_within_a_tenth_pass(model, factor):
    """Up to 10 % off on each axis is no error, the ends included."""
    check_voxel_size(model, [m * f for m, f in zip(model, factor)])


@given(
    model=SIZES,
    axis=st.integers(0, 2),
    factor=st.one_of(st.floats(0.01, 0.899), st.floats(1.101, 100)),
)
def test_one_axis_off_is_enough(model, axis, factor):
    """An axis that is farther off is named with both values."""
    data = [m * factor if i == axis else m for i, m in enumerate(model)]
    name = "zyx"[axis]
    with pytest.raises(OptionError, match=rf"by more than 10% \(.*{name} .* instead of"):
        check_voxel_size(model, data)


def test_the_whole_sentence():
    """Both sizes, the axes that are off, units, and the mip to load."""
    with pytest.raises(OptionError) as caught:
        check_voxel_size((40, 16, 16), (40, 4, 4), mip=0)
    assert str(caught.value) == (
        "the network was trained on voxels of 40 16 16 nm (zyx), but the voxels of the data (mip "
        "0) are 40 4 4 nm, which differs by more than 10% (y 4 instead of 16; x 4 instead of 16); "
        "load the data with --mip 2, if each mip doubles the voxel size in plane"
    )


@pytest.mark.parametrize(
    ("model", "data", "mip", "remedy"),
    [
        ((40, 16, 16), (40, 4, 4), 1, "load the data with --mip 3, if each .* in plane"),
        ((16, 16, 16), (8, 8, 8), 0, "load the data with --mip 1, if each .* along all axes"),
        ((8, 8, 8), (32, 32, 32), 2, "load the data with --mip 0, if each .* along all axes"),
        ((8, 8, 8), (32, 32, 32), 1, "no mip would fit if each mip doubles the voxel size"),
        ((40, 16, 16), (40, 4, 4), None, "load a mip that is 4 times coarser in plane"),
        ((4, 4, 4), (8, 8, 8), None, "load a mip that is 2 times finer along all axes"),
        (
            (30, 4, 4),
            (40, 8, 8),
            1,
            "no mip would fit if .*; add --resample linear",
        ),
        ((40, 17, 17), (40, 4, 4), 0, "load the data with --mip 2"),
    ],
)
def test_the_mip_is_derived_where_levels_are_not_known(model, data, mip, remedy):
    """Pyramids are made by factors of 2 in plane or along all axes; no mip lies below 0."""
    with pytest.raises(OptionError, match=remedy):
        check_voxel_size(model, data, mip)


def test_the_mip_is_looked_up_where_levels_are_known():
    """What the volume says of its levels counts, also where factors differ; else all are listed."""
    levels = [(0, (40, 4, 4)), (1, (40, 8, 8)), (2, (40, 24, 24)), (3, (80, 48, 48))]
    with pytest.raises(OptionError, match=r"load the data with --mip 2$"):
        check_voxel_size((40, 24, 24), (40, 4, 4), 0, levels)
    with pytest.raises(OptionError, match=r"fits \(mip 0 40 4 4, .* mip 3 80 48 48 nm\)"):
        check_voxel_size((40, 16, 16), (40, 4, 4), 0, levels)


def test_an_axis_on_which_it_does_not_matter():
    """A network of sections has no voxel size along z."""
    check_voxel_size((None, 8, 8), (30, 8, 8))
    with pytest.raises(OptionError, match=r"voxels of any 8 8 nm .*\(x 4 instead of 8\); no mip"):
        check_voxel_size((None, 8, 8), (30, 8, 4), 0)


def test_another_tolerance():
    """The tolerance can be set, and is said."""
    check_voxel_size((10, 10, 10), (14, 10, 10), tolerance=0.5)
    with pytest.raises(OptionError, match=r"more than 2% \(z 10.5 instead of 10\)"):
        check_voxel_size((10, 10, 10), (10.5, 10, 10), tolerance=0.02)


@pytest.mark.parametrize("model", [(0, 1, 1), (1, 1), (1, 1, float("nan")), (-4, 4, 4)])
def test_what_is_no_voxel_size(model):
    """The network's voxel size is three positive numbers."""
    with pytest.raises(OptionError, match="--model-voxel-size-nm .* three positive numbers"):
        check_voxel_size(model, (1, 1, 1))
