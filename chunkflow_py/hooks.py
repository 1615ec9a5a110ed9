"""Hooks: methods and attributes that describe the boxes, voxels, outputs and memory of operators.

`OperatorBase` documents the hooks of operators and their defaults; `SourceBase` documents the hooks
of sources. An operator inherits from `OperatorBase`, a source from `SourceBase`. The subclass marks
each hook that it overrides: a method with the decorator `hook`, a dataclass field with the metadata
`HOOK`.

For each hook, this module also has a class with an older name. For example,
``isinstance(operator, HasHalo)`` is true if the operator overrides the hook ``required_input``.
"""

from __future__ import annotations

from chunkflow_py.core.operator_base import (
    HOOK,
    OperatorBase,
    SourceBase,
    WritersByPlace,
    hook,
    hook_value,
    hooks_of,
    with_hooks,
)
from chunkflow_py.core.outline import (
    Boxes,
    Outline,
    boxes_between,
    coarser_nm,
    scaled_boxes,
    turned_boxes,
)
from chunkflow_py.pipeline.effects import (
    keeps_labels,
    moved_boxes,
    moved_by,
    turned,
    turned_back,
    voxels_made,
)


class _DeclaresHook(type):  # of the older names
    hook: str

    def __instancecheck__(cls, operator: object) -> bool:
        try:
            return hooks_of(operator).declares(cls.hook)
        except TypeError:  # an object that is not an operator
            return False


def _older(hook: str) -> _DeclaresHook:
    return _DeclaresHook(hook, (), {"hook": hook})


ChecksMemory = _older("check_memory")
CreatesOutput = _older("create_output")
HasBounds = _older("bounds")
HasFiles = _older("needed_files")
HasHalo = _older("required_input")
HasLeftovers = _older("leftovers")
HasMargin = _older("negotiate")
HasMemory = _older("memory")
HasPrepare = _older("prepare")
HasProfile = _older("profile")
HasSettle = _older("settle")
HasSingleWriter = _older("single_writer")
HasStop = _older("stop")
HasStoredType = _older("stored_type")
HasTimes = _older("times")
HasTraffic = _older("traffic")
HasVoxelSize = _older("known_voxel_size_nm")
KeepsStored = _older("kept")
KeepsVoxels = _older("keeps_voxels")
LooksAtChunk = _older("cut_remedy")
MakesVoxels = _older("voxels")
MapsVoxels = _older("voxels_from")
MovesFaces = _older("face_offsets")
NumbersObjects = _older("labelling")
ReadsFrom = _older("origin")
ReadsFromSeveral = _older("origins")
RemovesItems = _older("removes")
ReportsProgress = _older("on_progress")
RunsCode = _older("code")
RunsNetwork = _older("network_seconds")
SetsBox = _older("set_bbox")
ShrinksVoxels = _older("shrinks_by")
StartsAhead = _older("start")
StoresOutputs = _older("stores")
TakesAnySize = _older("any_voxel_size")
ThreadSafe = _older("thread_safe")
TurnsAxes = _older("order")
WritesTo = _older("destination")
WritesToSeveral = _older("destinations")


def places_read(operator: object) -> tuple[str, ...]:
    """Return the addresses from which an operator reads: its hook ``origins``."""
    return hooks_of(operator).origins


def places_written(operator: object) -> tuple[str, ...]:
    """Return the addresses to which an operator writes: its hook ``destinations``."""
    return hooks_of(operator).destinations


__all__ = [
    "HOOK",
    "Boxes",
    "ChecksMemory",
    "CreatesOutput",
    "HasBounds",
    "HasFiles",
    "HasHalo",
    "HasLeftovers",
    "HasMargin",
    "HasMemory",
    "HasPrepare",
    "HasProfile",
    "HasSettle",
    "HasSingleWriter",
    "HasStop",
    "HasStoredType",
    "HasTimes",
    "HasTraffic",
    "HasVoxelSize",
    "KeepsStored",
    "KeepsVoxels",
    "LooksAtChunk",
    "MakesVoxels",
    "MapsVoxels",
    "MovesFaces",
    "NumbersObjects",
    "OperatorBase",
    "Outline",
    "ReadsFrom",
    "ReadsFromSeveral",
    "RemovesItems",
    "ReportsProgress",
    "RunsCode",
    "RunsNetwork",
    "SetsBox",
    "ShrinksVoxels",
    "SourceBase",
    "StartsAhead",
    "StoresOutputs",
    "TakesAnySize",
    "ThreadSafe",
    "TurnsAxes",
    "WritersByPlace",
    "WritesTo",
    "WritesToSeveral",
    "boxes_between",
    "coarser_nm",
    "hook",
    "hook_value",
    "keeps_labels",
    "moved_boxes",
    "moved_by",
    "places_read",
    "places_written",
    "scaled_boxes",
    "turned",
    "turned_back",
    "turned_boxes",
    "voxels_made",
    "with_hooks",
]
