"""The volumes that a step reads and writes.

The volumes are found in the spec of the run, without calling an operator of the pipeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import UNIT_SCALE, Scale, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.volume.protocol import Volume

# An entry of the spec for a level: the address, for a file with its dataset, and the mip.
_LEVEL = re.compile(r"(?P<address>.+) at mip (?P<mip>[0-9]+)")
_FACTOR_OF = "downsample"  # the operator whose output has larger voxels than its input


@dataclass(frozen=True)
class RunVolume:
    """A volume that a step reads or writes.

    Attributes:
        role: ``input`` or ``output``.
        operator: name of the operator that reads or writes the volume.
        address: address at which the volume is opened.
        mip: resolution level of the volume.
        shrink: extent of a voxel of the volume, zyx, in voxels at the resolution of the tasks.
    """

    role: str
    operator: str
    address: str
    mip: int
    shrink: Scale = UNIT_SCALE

    def open(self, mip: int | None = None) -> Volume:
        """Open the volume at its level `mip`, or at another level if *mip* is given.

        Raises:
            ChunkflowError: the volume cannot be opened.
        """
        return open_volume(self.address, self.mip if mip is None else mip)


def volumes_of(stage: RunStep) -> tuple[list[RunVolume], list[str]]:
    """Return the volumes that a step reads and writes, and sentences about its other data.

    Other data are files and addresses that are not volumes. If an operator reads or writes several
    levels of a volume, only the first level is returned.
    """
    found, others = [], []
    shrink = UNIT_SCALE
    scales = {each.operator: Scale.of(each.scale) for each in stage.outputs}
    for operator, options in stage.options:
        if operator == _FACTOR_OF and not options.get("coarse_tasks"):
            shrink = shrink * Zyx.of(options.get("factor") or (1, 1, 1))
        shrink = scales.get(operator, shrink)
        for role, key in (("input", "reads"), ("output", "writes")):
            seen: set[str] = set()
            for declared in options.get(key) or ():
                place = _place(role, operator, declared, options, shrink)
                if place is None:
                    others.append(
                        f"{operator} {'reads' if key == 'reads' else 'writes'} {declared}"
                    )
                elif place.address not in seen:
                    seen.add(place.address)
                    found.append(place)
    return found, others


def _place(
    role: str, operator: str, declared: str, options: dict[str, Any], shrink: Scale
) -> RunVolume | None:
    level = _LEVEL.fullmatch(declared)
    address, mip = (level["address"], int(level["mip"])) if level else (declared, 0)
    for typed in _strings(options):
        try:
            place = Location.parse(typed)
        except VolumeError:
            continue
        where = f"{place.store_url}:{(place.dataset or 'main').strip('/')}"
        if address in (place.store_url, where) and place.format is not None:
            return RunVolume(role, operator, typed, mip, shrink)
    return None if level is None else RunVolume(role, operator, address, mip, shrink)


def _strings(options: dict[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key not in ("reads", "writes") and isinstance(value, str) and "://" in value:
            yield value
