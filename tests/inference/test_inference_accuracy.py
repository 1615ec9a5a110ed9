"""Accuracy: how far two outputs are from each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.inference.accuracy import compare, error_against, non_empty_batches
from chunkflow_py.inference.backends import create_backend

SETTINGS = {
    "model": "rsunet",
    "input_patch_size": Zyx(4, 16, 16),
    "output_patch_size": Zyx(4, 16, 16),
    "batch_size": 2,
    "device": "cpu",
}


def test_numbers_are_those_of_numpy():
    """Largest, 99.9th percentile and mean agree with NumPy's."""
    difference = np.random.default_rng(0).exponential(size=(3, 10, 20, 30)).astype(np.float32)
    zeros = torch.zeros(difference.shape)
    found = error_against(zeros, -torch.from_numpy(difference))
    assert found.largest == difference.max()
    assert found.percentile_999 == np.quantile(difference, 0.999, method="inverted_cdf")
    assert found.mean == pytest.approx(difference.mean(dtype=np.float64))
    assert str(found).startswith("largest ")


def test_not_a_number_is_never_small():
    """A NaN in an output makes all three NaN, which is below no limit."""
    measured = torch.zeros(10000)
    measured[5] = math.nan
    found = error_against(torch.zeros(10000), measured)
    assert not found.largest < 1
    assert not found.percentile_999 < 1
    assert not found.mean < 1


def test_shapes_must_agree():
    """Outputs of two shapes are refused with both."""
    with pytest.raises(ChunkError, match=r"\(2, 3\) and \(3, 2\)"):
        error_against(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ChunkError, match="hold a value"):
        error_against(torch.zeros(0), torch.zeros(0))


def test_patches_that_vary_most_are_compared():
    """Constant patches are left out, and the last batch is filled up with zeros."""
    patches = torch.rand(5, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    patches[1] = 0.5
    patches[3] *= 10
    first, second = non_empty_batches(patches, 2, most=3)
    assert torch.equal(first[0], patches[3])
    assert not bool(second[1].any())
    assert not any(torch.equal(patch, patches[1]) for patch in (*first, *second))
    assert non_empty_batches(torch.ones(3, 1, 2, 2, 2), 2) == []


def test_backends_are_compared_on_patches():
    """Float32 is itself to the byte; bfloat16 is near, and never exact."""
    reference = create_backend(**SETTINGS)
    half = create_backend(**SETTINGS, dtype="bfloat16")
    batches = non_empty_batches(torch.rand(4, 1, 4, 16, 16), 2)
    same = compare(create_backend(**SETTINGS), reference, batches)
    near = compare(half, reference, batches)
    assert same.largest == 0
    assert 0 < near.mean < near.percentile_999 <= near.largest < 0.05


def test_nothing_to_compare_on():
    """Without a patch there is no accuracy."""
    backend = create_backend(**SETTINGS)
    with pytest.raises(ChunkError, match="no patch to compare"):
        compare(backend, backend, [])


def test_outputs_of_another_shape_are_told():
    """Two networks whose outputs differ in shape cannot be compared."""
    other = create_backend(**(SETTINGS | {"model": "rsunet"}), num_output_channels=2)
    batches = [torch.rand(2, 1, 4, 16, 16)]
    with pytest.raises(ChunkError, match=r"\(2, 3, 4, 16, 16\) and \(2, 2, 4, 16, 16\)"):
        compare(other, create_backend(**SETTINGS), batches)
