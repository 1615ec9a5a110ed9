"""The levels of a volume: what names one, and those that a new volume may have."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.protocol import coarser

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeSpec


LEVEL = " at mip "


def volume_name(place: Location) -> str:
    """Return the address of a volume, the same for all spellings of a local path."""
    if place.is_local:
        return f"file://{os.path.realpath(place.folder)}"
    return f"{place.protocol}://{place.path.strip('/')}"


def level_name(place: Location, mip: int) -> str:
    """Return the name of a level, the same for all spellings of a local path.

    Whether two names mean the same array, `chunkflow_py.volume.identity.same_array` tells: the
    level of a volume may also be addressed as an array by itself.
    """
    where = volume_name(place)
    if place.format == "h5":
        where += f":{(place.dataset or 'main').strip('/')}"
    return f"{where}{LEVEL}{mip}"


def check_levels(spec: VolumeSpec, mip: int, url: str, *, first: int | None = None) -> None:
    """Refuse levels that are no smaller than the one before, or are the same.

    Args:
        spec: of level *mip*.
        mip: number of the level.
        url: of the volume, for the message.
        first: the finest level that is made (default: *mip*).

    Raises:
        VolumeError: names the last level that makes sense.
    """
    top = max(mip, spec.max_mip)
    steps = [spec.step(level) for level in range(mip if first is None else first, top)]
    if (1, 1, 1) in steps:
        msg = (
            f"cannot create {url} with levels up to mip {top} at a factor of 1, 1, 1 (zyx), "
            "which are all the same; choose a factor such as 2, 2, 2, or no further levels"
        )
        raise VolumeError(msg)
    if spec.max_mip <= mip:
        return
    last, size = _last_level(spec, mip)
    if spec.max_mip > last:
        msg = (
            f"cannot create {url} with levels up to mip {spec.max_mip}: at mip {last} it has "
            f"{size} voxels (zyx) already, and at a factor of {spec.step(last)} no coarser level "
            f"has fewer; choose at most --max-mip {last}"
        )
        raise VolumeError(msg)


def _last_level(spec: VolumeSpec, mip: int) -> tuple[int, Zyx]:
    """Return the first level as small as a volume can become, and its extent."""
    boxes = [spec.bounds]
    for level in count(mip):
        boxes.append(coarser(boxes[-1], spec.step(level)))
        if boxes[-1] == boxes[-2] and level >= len(spec.first_factors):
            break
    smallest = boxes[-1].size
    return mip + [box.size for box in boxes].index(smallest), smallest
