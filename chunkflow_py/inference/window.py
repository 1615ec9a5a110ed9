"""Blending windows: how much a patch counts at each of its voxels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Zyx

Bump = Literal["wu", "zung", "gaussian", "linear", "constant"]
BUMPS: tuple[Bump, ...] = get_args(Bump)


def create_window(size: Zyx, bump: Bump = "wu") -> NDArray[np.float32]:
    """Return the weight of each voxel of a patch.

    With i = 0 … n−1 along an axis of n voxels:

    * ``wu``: exp(−Σ 1/(1−u²)), u = 2(i+1)/(n+1) − 1, rescaled linearly to [1, 1e6];
    * ``zung``: exp(−Σ (u(1−u))^(−3/2)), u = (i+1)/(n+1), divided by its maximum, at least 1e-6;
    * ``gaussian``: standard deviation n/8 around the centre, maximum 1, at least 1e-6;
    * ``linear``: Π min(i+1, n−i), a tent, divided by its maximum;
    * ``constant``: 1.

    Args:
        size: extent of the output patch, voxels, zyx.
        bump: name of the window.

    Returns:
        (z, y, x) float32, positive everywhere and equal under mirroring of any axis.

    Raises:
        OptionError: there is no window of that name.
    """
    # Terms are made of whole numbers, so that mirror images agree to the last bit: otherwise a
    # flipped run would blend differently.
    if bump == "constant":
        return np.ones(size, np.float32)
    if bump == "wu":
        window = np.exp(
            -_sum([1 / (1 - ((2 * np.arange(n) + 1 - n) / (n + 1)) ** 2) for n in size])
        )
        low, high = window.min(), window.max()
        if high > low:
            window = (window - low) / (high - low) * (1e6 - 1) + 1
        else:
            window = np.ones_like(window)
    elif bump == "zung":
        places = [np.arange(n) for n in size]
        exponent = _sum([((i + 1) * (len(i) - i) / (len(i) + 1) ** 2) ** -1.5 for i in places])
        # Relative to the smallest exponent, so that the centre never underflows.
        window = np.maximum(np.exp(exponent.min() - exponent), 1e-6)
    elif bump == "gaussian":
        terms = [((np.arange(n) - (n - 1) / 2) / (n / 8)) ** 2 / 2 for n in size]
        exponent = _sum(terms)
        window = np.maximum(np.exp(exponent.min() - exponent), 1e-6)
    elif bump == "linear":
        tents = [np.minimum(np.arange(n) + 1, n - np.arange(n)).astype(float) for n in size]
        window = tents[0][:, None, None] * tents[1][:, None] * tents[2]
        window /= window.max()
    else:
        msg = f"there is no window {bump!r}; --bump is one of {', '.join(BUMPS)}"
        raise OptionError(msg)
    return window.astype(np.float32)


def _sum(terms: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return terms[0][:, None, None] + terms[1][:, None] + terms[2]
