"""Scale of probability and affinity maps: the largest value of an integer type stands for 1.

Options give values in one of two units. A fraction of the full scale, in [0, 1], is multiplied by
`full_scale`. A value in the unit of the voxels is compared with the voxels directly;
`check_threshold` refuses such a value if it is probably meant as a fraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

BOUNDED = ("probability", "affinity")  # kinds of chunks with values in [0, 1]


def full_scale(dtype: DTypeLike) -> float:
    """Return the value that stands for 1 in a map: the maximum of an integer dtype, else 1.0."""
    import numpy as np

    kind = np.dtype(dtype)
    return float(np.iinfo(kind).max) if kind.kind in "iu" else 1.0


def check_threshold(
    threshold: float, dtype: DTypeLike, kind: str | None, option: str = "--threshold"
) -> None:
    """Raise an error if a map of integers is to be compared with a threshold between 0 and 1.

    Args:
        threshold: value that voxels will be compared with, in the unit of the voxels.
        dtype: type of the voxels.
        kind: what the voxels are, such as ``affinity``; see `chunkflow_py.core.chunk.Chunk`.
        option: name of the option, for the message.

    Raises:
        OptionError: the voxels are a map of integers, and *threshold* is between 0 and 1.
    """
    top = full_scale(dtype)
    if kind in BOUNDED and top > 1 and 0 < threshold < 1:
        msg = (
            f"{option} {threshold:g} is compared with {kind} values of type {dtype}, in which "
            f"{top:.0f} stands for 1; for {threshold:g} of full scale, write "
            f"{option} {threshold * top:.17g}"
        )
        raise OptionError(msg)
