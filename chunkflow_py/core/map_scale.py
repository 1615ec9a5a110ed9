"""Scale of map values: an integer type represents [0, 1], and its largest value is 1.

Options that are a part of the full scale by definition, in [0, 1], are multiplied by `full_scale`.
Options in the unit of the voxels are compared as they are, and go through `check_threshold`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

BOUNDED = ("probability", "affinity")  # kinds of chunks whose values stand for [0, 1]


def full_scale(dtype: DTypeLike) -> float:
    """Return the value that stands for 1 in a map: the largest of an integer type, else 1.0."""
    import numpy as np

    kind = np.dtype(dtype)
    return float(np.iinfo(kind).max) if kind.kind in "iu" else 1.0


def check_threshold(
    threshold: float, dtype: DTypeLike, kind: str | None, option: str = "--threshold"
) -> None:
    """Refuse a fractional threshold for a map of integers.

    Args:
        threshold: that voxels will be compared with as they are.
        dtype: of the voxels.
        kind: what they mean, see `chunkflow_py.core.chunk.Chunk`.
        option: name of the option, for the message.

    Raises:
        OptionError: the chunk is a map of integers and the threshold a fraction.
    """
    top = full_scale(dtype)
    if kind in BOUNDED and top > 1 and 0 < threshold < 1:
        msg = (
            f"{option} {threshold:g} is compared with {kind} values of type {dtype}, in which "
            f"{top:.0f} stands for 1; {threshold:g} of that is {option} {threshold * top:.17g}"
        )
        raise OptionError(msg)
