"""Chunked inference for volumes too large for one machine.

Public names are imported on first use, so that ``import chunkflow_py`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkflow_py.api import Pipeline as Pipeline
    from chunkflow_py.api import predict as predict
    from chunkflow_py.api import write_volume as write_volume
    from chunkflow_py.core.allocator import keep_freed_memory as keep_freed_memory
    from chunkflow_py.core.chunk import Chunk as Chunk
    from chunkflow_py.core.geometry import BoundingBox as BoundingBox
    from chunkflow_py.core.geometry import BoxGrid as BoxGrid
    from chunkflow_py.core.geometry import Region as Region
    from chunkflow_py.core.geometry import Zyx as Zyx
    from chunkflow_py.core.points import Points as Points
    from chunkflow_py.core.skeleton import Skeleton as Skeleton
    from chunkflow_py.core.synapses import Synapses as Synapses
    from chunkflow_py.core.task import Task as Task
    from chunkflow_py.volume import open_volume as open_volume

_HOMES = {
    "BoundingBox": "chunkflow_py.core.geometry",
    "BoxGrid": "chunkflow_py.core.geometry",
    "Chunk": "chunkflow_py.core.chunk",
    "Pipeline": "chunkflow_py.api",
    "Points": "chunkflow_py.core.points",
    "Region": "chunkflow_py.core.geometry",
    "Skeleton": "chunkflow_py.core.skeleton",
    "Synapses": "chunkflow_py.core.synapses",
    "Task": "chunkflow_py.core.task",
    "Zyx": "chunkflow_py.core.geometry",
    "keep_freed_memory": "chunkflow_py.core.allocator",
    "open_volume": "chunkflow_py.volume",
    "predict": "chunkflow_py.api",
    "write_volume": "chunkflow_py.api",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  (one list, read twice)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
