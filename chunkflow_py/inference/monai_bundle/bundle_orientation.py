"""Order and direction of a network's axes, compared with those of a patch (z, y, x).

MONAI loads images as (x, y, z). The transform `Orientation` then reorders and flips the axes so
that they point into the directions of its code. For example, ``RAS``: the first axis points to the
right of the patient, the second to the front (anterior), the third to the head (superior).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAIRS = {"L": "R", "R": "L", "P": "A", "A": "P", "I": "S", "S": "I"}


class NetworkAxes(NamedTuple):
    """Axes of a network.

    Attributes:
        sources: for each spatial axis of the network, the axis of the patch: 0, 1, 2 for z, y, x.
        flipped: for each spatial axis of the network, whether it runs against the patch's axis.
    """

    sources: tuple[int, int, int] = (2, 1, 0)
    flipped: tuple[bool, bool, bool] = (False, False, False)

    def zyx(self, numbers: Sequence[float]) -> tuple[float, float, float]:
        """Return *numbers*, which have the order of the network's axes, in the order z, y, x."""
        found = [0.0, 0.0, 0.0]
        for source, number in zip(self.sources, numbers, strict=True):
            found[source] = number
        return found[0], found[1], found[2]


def is_orientation(code: str) -> bool:
    """Return whether *code* names each of the three directions once, such as ``RAS`` or ``PSR``."""
    return len(code) == 3 and all({a, b} & set(code) for a, b in ("LR", "PA", "IS"))


def network_axes(wanted: str | None, image: str | None) -> NetworkAxes:
    """Return the axes of a network that wants the orientation *wanted*.

    Args:
        wanted: code of the orientation of the network, or ``None`` for that of the image.
        image: code of the directions of x, y and z of the image (default: *wanted*).

    Raises:
        OptionError: *image* is not a code.
    """
    if image is not None and not is_orientation(image):
        msg = (
            f"--image-orientation {image} is not a code of three directions such as RAS: one of "
            "L and R, one of P and A, one of I and S, for x, y and z"
        )
        raise OptionError(msg)
    if wanted is None or image is None:
        return NetworkAxes()
    sources, flipped = [], []
    for letter in wanted:
        found = next(i for i, other in enumerate(image) if other in (letter, _PAIRS[letter]))
        sources.append(2 - found)
        flipped.append(image[found] != letter)
    return NetworkAxes((sources[0], sources[1], sources[2]), (flipped[0], flipped[1], flipped[2]))
