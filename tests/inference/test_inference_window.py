"""Blending windows follow their formulas and are symmetric."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.window import BUMPS, create_window


@given(st.tuples(*[st.integers(1, 12)] * 3).map(Zyx.of), st.sampled_from(BUMPS))
def test_windows_are_positive_symmetric_and_peak_in_the_middle(size, bump):
    """Every window is float32, positive, equal under mirroring, and largest at the centre."""
    window = create_window(size, bump)
    assert window.shape == size
    assert window.dtype == np.float32
    assert (window > 0).all()
    assert np.isfinite(window).all()
    for axis in range(3):
        assert np.array_equal(window, np.flip(window, axis))
    assert window.max() == window[tuple(n // 2 for n in size)]


def test_wu_follows_its_formula():
    """exp(−Σ 1/(1−u²)), u = 2(i+1)/(n+1) − 1, rescaled to [1, 1e6], voxel by voxel."""
    size = (3, 4, 5)
    reference = np.empty(size)
    for index in np.ndindex(size):
        u = [2 * (i + 1) / (n + 1) - 1 for i, n in zip(index, size, strict=True)]
        reference[index] = np.exp(-sum(1 / (1 - v * v) for v in u))
    low, high = reference.min(), reference.max()
    reference = (reference - low) / (high - low) * (1e6 - 1) + 1
    np.testing.assert_allclose(create_window(Zyx(*size), "wu"), reference, rtol=1e-6)


def test_zung_follows_its_formula():
    """exp(−Σ (u(1−u))^(−3/2)) over its maximum, floored at 1e-6."""
    size = (3, 4, 5)
    reference = np.empty(size)
    for index in np.ndindex(size):
        u = [(i + 1) / (n + 1) for i, n in zip(index, size, strict=True)]
        reference[index] = np.exp(-sum((v * (1 - v)) ** -1.5 for v in u))
    reference = np.maximum(reference / reference.max(), 1e-6)
    np.testing.assert_allclose(create_window(Zyx(*size), "zung"), reference, rtol=1e-6)


def test_zung_does_not_underflow_at_the_faces_of_a_large_patch():
    """The floor holds where the plain formula would be zero."""
    window = create_window(Zyx(20, 256, 256), "zung")
    assert window.min() == np.float32(1e-6)
    assert window.max() == 1


def test_an_unknown_window_lists_those_there_are():
    """A wrong name is an option error."""
    with pytest.raises(OptionError, match="'hann'; --bump is one of wu, zung, gaussian"):
        create_window(Zyx(2, 2, 2), "hann")
