"""Run networks on chunks, patch by patch, and blend the overlapping results.

This package works on arrays and needs no storage library. Its public names are imported when they
are first used:

    from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkflow_py.inference.backend_factory import create_backend as create_backend
    from chunkflow_py.inference.blend import create_window as create_window
    from chunkflow_py.inference.engine import Engine as Engine
    from chunkflow_py.inference.engine_settings import EngineSettings as EngineSettings
    from chunkflow_py.inference.inferencer import Inferencer as Inferencer
    from chunkflow_py.inference.patch_grid import PatchGeometry as PatchGeometry
    from chunkflow_py.inference.patch_grid import PatchGrid as PatchGrid
    from chunkflow_py.inference.placement import Placement as Placement

_HOMES = {
    "Engine": "engine",
    "EngineSettings": "engine_settings",
    "Inferencer": "inferencer",
    "PatchGeometry": "patch_grid",
    "PatchGrid": "patch_grid",
    "Placement": "placement",
    "create_backend": "backend_factory",
    "create_window": "blend",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  (one list, read twice)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
