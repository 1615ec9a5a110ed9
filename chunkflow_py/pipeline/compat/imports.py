"""Make ``import chunkflow`` work in plugins if chunkflow itself is not installed.

The replacement modules can be imported only while a plugin is loaded or called, so that other code
does not mistake them for chunkflow.
"""

from __future__ import annotations

import ast
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

ROOT = "chunkflow"
# module of chunkflow -> module of this package, and its names
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "chunkflow": {},
    "chunkflow.chunk": {"chunks": ("Chunk",)},
    "chunkflow.chunk.base": {"chunks": ("Chunk",)},
    "chunkflow.chunk.image": {"chunks": ("Image",)},
    "chunkflow.chunk.image.base": {"chunks": ("Image",)},
    "chunkflow.chunk.segmentation": {"chunks": ("Segmentation",)},
    "chunkflow.chunk.affinity_map": {"chunks": ("AffinityMap",)},
    "chunkflow.chunk.affinity_map.base": {"chunks": ("AffinityMap",)},
    "chunkflow.chunk.probability_map": {"chunks": ("ProbabilityMap",)},
    "chunkflow.lib": {},
    "chunkflow.lib.cartesian_coordinate": {
        "places": ("BoundingBox", "BoundingBoxes", "Cartesian", "to_cartesian")
    },
    "chunkflow.lib.bounding_boxes": {"places": ("BoundingBox", "BoundingBoxes", "Cartesian")},
    "chunkflow.point_cloud": {"objects": ("PointCloud",)},
    "chunkflow.synapses": {"objects": ("Synapses",)},
}


class _Finder(MetaPathFinder, Loader):
    """Finder of the modules in `MODULES`; each module is created once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.made: dict[str, ModuleType] = {}

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        is_package = any(other.startswith(f"{fullname}.") for other in MODULES)
        return ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.made.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self.made[module.__name__] = module
        for source, names in MODULES[module.__name__].items():
            for name in names:
                here = import_module(f"chunkflow_py.pipeline.compat.{source}")
                setattr(module, name, getattr(here, name))


_finder = _Finder()


@contextmanager
def importable() -> Iterator[None]:
    """Let ``import chunkflow`` find the classes of this package, unless chunkflow is installed."""
    with _finder.lock:
        if _finder.users == 0 and not _is_installed():
            sys.meta_path.insert(0, _finder)
        _finder.users += 1
    try:
        yield
    finally:
        with _finder.lock:
            _finder.users -= 1
            if _finder.users == 0 and _finder in sys.meta_path:
                sys.meta_path.remove(_finder)
                for name, module in _finder.made.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]


def _is_installed() -> bool:
    spec = find_spec(ROOT)
    # a folder named chunkflow without __init__.py has no origin
    return spec is not None and spec.origin is not None


def is_imported_by(path: Path) -> bool:
    """Return whether the file imports chunkflow although chunkflow itself is not installed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    names = [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    ]
    return any(name.partition(".")[0] == ROOT for name in names) and not _is_installed()
