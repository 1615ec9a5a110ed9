"""The volumes that a stage reads and writes, as its spec says; nothing of its line is called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.spec import Stage
    from chunkflow_py.volume.protocol import Volume

# What the spec says of a level: an address, and of a file also its dataset.
_LEVEL = re.compile(r"(?P<address>.+) at mip (?P<mip>[0-9]+)")
_FACTOR_OF = "downsample"  # the operator whose output has larger voxels than its input


@dataclass(frozen=True)
class Place:
    """A volume of a stage.

    Attributes:
        role: ``input`` or ``output``.
        operator: that reads or writes it.
        address: to open it with.
        mip: its level.
        shrink: how many voxels of tasks make one of it, zyx.
    """

    role: str
    operator: str
    address: str
    mip: int
    shrink: Zyx = Zyx(1, 1, 1)

    def open(self, mip: int | None = None) -> Volume:
        """Return the volume, or another level of it.

        Raises:
            ChunkflowError: it cannot be opened.
        """
        return open_volume(self.address, self.mip if mip is None else mip)


def places_of(stage: Stage) -> tuple[list[Place], list[str]]:
    """Return the volumes that a stage reads and writes, and what else it reads and writes.

    Of several levels that one operator writes, the finest is taken.
    """
    found, others = [], []
    shrink = Zyx(1, 1, 1)
    for operator, options in stage.options:
        if operator == _FACTOR_OF and not options.get("coarse_tasks"):
            shrink = shrink * Zyx.of(options.get("factor") or (1, 1, 1))
        for role, key in (("input", "reads"), ("output", "writes")):
            seen: set[str] = set()
            for said in options.get(key) or ():
                place = _place(role, operator, said, options, shrink)
                if place is None:
                    others.append(f"{operator} {'reads' if key == 'reads' else 'writes'} {said}")
                elif place.address not in seen:
                    seen.add(place.address)
                    found.append(place)
    return found, others


def _place(
    role: str, operator: str, said: str, options: dict[str, Any], shrink: Zyx
) -> Place | None:
    level = _LEVEL.fullmatch(said)
    address, mip = (level["address"], int(level["mip"])) if level else (said, 0)
    for typed in _strings(options):
        try:
            place = Location.parse(typed)
        except VolumeError:
            continue
        where = f"{place.store_url}:{(place.dataset or 'main').strip('/')}"
        if address in (place.store_url, where) and place.format is not None:
            return Place(role, operator, typed, mip, shrink)
    return None if level is None else Place(role, operator, address, mip, shrink)


def _strings(options: dict[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key not in ("reads", "writes") and isinstance(value, str) and "://" in value:
            yield value


def opened(place: Place, mip: int | None = None) -> Volume | str:
    """Return the volume, or why it cannot be opened."""
    try:
        return place.open(mip)
    except ChunkflowError as error:
        return str(error)
