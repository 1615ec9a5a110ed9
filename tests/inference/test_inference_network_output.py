"""Activations: right, stable, and the same for a voxel wherever it lies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.network_output import activated


def logits(*shape, spread=30.0, seed=0):
    """Return reproducible values around zero."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return (values - 0.5) * 2 * spread


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 3, 4, 5, 6), (1, 4, 5, 6)])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_values_are_those_of_double_precision(shape, activation):
    """Patches and slabs get what float64 gives, rounded."""
    values = logits(*shape)
    exact = values.double()
    expected = exact.sigmoid() if activation == "sigmoid" else exact.softmax(-4)
    result = activated(values, activation)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected.float(), rtol=5e-6, atol=1e-30)


def test_none_returns_the_same_tensor():
    """Without an activation nothing is copied."""
    values = logits(3, 2, 2, 2)
    assert activated(values, "none") is values


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_large_logits_are_no_problem(activation):
    """Logits that overflow float32 when exponentiated still give 0 and 1."""
    values = torch.tensor([-3e38, -1e4, 1e4, 3e38]).reshape(1, 4, 1, 1).repeat(2, 1, 1, 1)
    values[1] = -values[0]
    result = activated(values, activation)
    assert result[0].flatten().tolist() == [0, 0, 1, 1]
    assert result[1].flatten().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@given(
    start=st.tuples(*[st.integers(0, 20)] * 3),
    size=st.tuples(*[st.integers(1, 29)] * 3),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last_3d]),
)
@settings(max_examples=40, deadline=None)
def test_a_voxel_has_one_value_however_the_volume_is_cut(activation, start, size, layout):
    """Not one bit depends on the place in memory, the extent of the block or its layout.

    This fails with `torch.sigmoid` and `torch.softmax`.
    """
    values = logits(1, 3, 21, 40, 49)
    whole = activated(values, activation)
    box = (slice(None), slice(None), *(slice(a, a + s) for a, s in zip(start, size, strict=True)))
    block = values[box].contiguous(memory_format=layout)
    assert torch.equal(activated(block, activation), whole[box])
    assert torch.equal(activated(values[box], activation), whole[box])


def test_softmax_over_each_output():
    """Several outputs that lie one after the other sum to one each by itself."""
    values = logits(1, 6, 2, 3, 4)
    result = activated(values, "softmax", (2, 3, 1))
    for first, last in [(0, 2), (2, 5), (5, 6)]:
        assert torch.equal(result[:, first:last], activated(values[:, first:last], "softmax"))
    torch.testing.assert_close(result.sum(1), torch.full((1, 2, 3, 4), 3.0))


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_input_is_kept_unless_in_place(activation, dtype):
    """A backend's buffer is not written to; a float32 buffer of ours is, to save the copy."""
    values = logits(2, 3, 2, 4, 4, spread=5).to(dtype)
    before = values.clone()
    result = activated(values, activation)
    assert torch.equal(values, before)
    assert torch.equal(activated(values, activation, in_place=True), result)
    assert torch.equal(values, result) == (dtype is torch.float32)


def test_wrong_names_and_counts():
    """An unknown activation, or channels that do not add up, are refused with both values."""
    values = logits(3, 1, 1, 1)
    with pytest.raises(OptionError, match="'relu' is not one of none, sigmoid, softmax"):
        activated(values, "relu")
    with pytest.raises(OptionError, match=r"2 \+ 2 channels, 4 in all, but .* returned 3"):
        activated(values, "softmax", (2, 2))
