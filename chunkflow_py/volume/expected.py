"""Arrays of which this process knows what has been stored, so that what is absent can be told lost.

A later step of a run reads what an earlier one has written. There a block that is absent is either
recorded as left out, because it held nothing but the fill value, or it is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chunkflow_py.volume.identity import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.geometry import BoundingBox


class Expected(Protocol):
    """What is known of one array."""

    def check(self, key: str, box: BoundingBox, time: int | None) -> None:
        """Refuse that a write unit is absent, if it should be there.

        Args:
            key: of its object, below the array.
            box: of its voxels.
            time: time index, in an array with a time axis.

        Raises:
            VolumeError: it was stored; says what to do.
        """


_known: list[tuple[frozenset[str], Expected]] = []  # identities of arrays


def expect(arrays: Sequence[tuple[str, Expected]]) -> None:
    """Take what is known of arrays, by their places, in place of what was told before.

    Volumes that are opened from now on for reading, by whomever, ask for it.
    """
    _known.clear()  # the volumes that are opened to find these arrays ask nothing
    _known.extend([(Place.parse(place).arrays, expected) for place, expected in arrays])


def expected_of(array_url: str) -> Expected | None:
    """Return what is known of the array at an address, if anything is."""
    if not _known:
        return None
    arrays = Place.parse(array_url).arrays
    return next((expected for known, expected in _known if known & arrays), None)
