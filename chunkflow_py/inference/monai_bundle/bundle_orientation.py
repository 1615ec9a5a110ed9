"""Order and direction of a network's axes, compared with those of a patch (z, y, x).

MONAI loads images as (x, y, z). The transform `Orientation` then reorders and flips the axes. The
code of the transform states the directions of the axes. With the code ``RAS``, the first axis
points to the right of the patient, the second to the front (anterior), and the third to the head
(superior).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAIRS = {"L": "R", "R": "L", "P": "A", "A": "P", "I": "S", "S": "I"}


class NetworkAxes(NamedTuple):
    """Order and direction of a network's spatial axes, compared with the axes of a patch.

    Attributes:
        sources: for each spatial axis of the network, the axis of the patch: 0, 1, 2 for z, y, x.
        flipped: for each spatial axis of the network, whether the network's axis and the patch's
            axis have opposite directions.
    """

    sources: tuple[int, int, int] = (2, 1, 0)
    flipped: tuple[bool, bool, bool] = (False, False, False)

    def zyx(self, numbers: Sequence[float]) -> tuple[float, float, float]:
        """Reorder *numbers* from the order of the network's axes to the order z, y, x."""
        found = [0.0, 0.0, 0.0]
        for source, number in zip(self.sources, numbers, strict=True):
            found[source] = number
        return found[0], found[1], found[2]


def is_orientation(code: str) -> bool:
    """Return whether *code* is an orientation code, such as ``RAS`` or ``PSR``."""
    return len(code) == 3 and all({a, b} & set(code) for a, b in ("LR", "PA", "IS"))


def network_axes(wanted: str | None, image: str | None) -> NetworkAxes:
    """Return order and direction of a network's axes, compared with the axes of a patch.

    Args:
        wanted: code of the orientation that the network expects; ``None`` if the network takes
            images in the orientation that they have.
        image: code of the directions of the x, y and z axes of the image (default: *wanted*).

    Raises:
        OptionError: *image* is not an orientation code.
    """
    if image is not None and not is_orientation(image):
        msg = (
            f"--image-orientation {image} is not a code of the directions of x, y and z; write "
            "one letter for each axis, such as RAS: L or R, P or A, and I or S, in any order"
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
