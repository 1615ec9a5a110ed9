"""Sums without rounding: the sums do not depend on the order of the summands.

Each sum is a row of digits to base 2^16, lowest first, in int64:

```
value = 2^offset · (d0 + d1·2^16 + d2·2^32 + ...)
```

In a *unique* row, each digit except the last is in [0, 2^16), so equal sums have equal rows. Rows
are added digit by digit, so the digits of a sum can be larger. `carried` then makes the row unique
again. Up to 2^47 rows can be added without overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BITS = 16
_BASE = 1 << _BITS
INTEGER_DIGITS = 6  # 96 bits
FLOAT_OFFSET = -149  # exponent of the smallest float32
FLOAT_DIGITS = 20  # 2^-149 to 2^171, for sums of at most 2^42 float32


def of_integers(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers as rows of digits, along a new last axis of length `INTEGER_DIGITS`."""
    rest = values.astype(np.int64)
    digits = np.empty((*values.shape, INTEGER_DIGITS), np.int64)
    for number in range(INTEGER_DIGITS):
        digits[..., number] = rest & (_BASE - 1)
        rest >>= _BITS
    digits[..., -1] += rest * _BASE  # the sign
    return digits


def sums_of_floats(
    values: NDArray[np.float32], total: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the sum of each group of floats as a row of digits, (groups, `FLOAT_DIGITS`).

    Args:
        values: (n,) float32, all finite.
        total: function that divides n integers into groups, and returns the sum of each group. A
            group must have at most 2^36 values.
    """
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 24).astype(np.int64)  # values = whole · 2^(exponent - 24), exactly
    shift = exponent.astype(np.int64) - 24 - FLOAT_OFFSET
    whole >>= np.maximum(-shift, 0)  # values near zero have fewer bits, so only zeros are lost
    first, within = np.divmod(np.maximum(shift, 0), _BITS)
    whole <<= within  # at most 40 bits
    digits: NDArray[np.int64] | None = None
    for number in np.unique(first):
        here = np.where(first == number, whole, 0)
        low, high = total(here & (_BASE - 1)), total(here >> _BITS)
        if digits is None:
            digits = np.zeros((len(low), FLOAT_DIGITS), np.int64)
        digits[:, number] += low
        digits[:, number + 1] += high
    if digits is None:
        return np.zeros((len(total(np.zeros(len(values), np.int64))), FLOAT_DIGITS), np.int64)
    return digits


def carried(digits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the same sums with each digit except the last in [0, 2^16).

    Equal sums then have equal rows of digits.
    """
    result = digits.copy()
    for number in range(result.shape[-1] - 1):
        result[..., number + 1] += result[..., number] >> _BITS
        result[..., number] &= _BASE - 1
    return result


def as_floats(digits: NDArray[np.int64], offset: int = 0) -> NDArray[np.float64]:
    """Return sums as floats with a relative error of about 2^-51.

    Args:
        digits: result of `carried`, so that equal sums give equal floats.
        offset: exponent of 2 by which the sums are scaled; see the formula of the module.
    """
    result = np.zeros(digits.shape[:-1])
    for number in reversed(range(digits.shape[-1])):
        result += np.ldexp(digits[..., number].astype(np.float64), _BITS * number + offset)
    return result
