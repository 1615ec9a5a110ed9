"""Operators of other packages: entry points of the group ``chunkflow_py.operators``.

They are read from the ``entry_points.txt`` of what lies on ``sys.path``, as importlib.metadata
does, whose import alone would take longer than all of ``chunkflow --help``. Nothing of the packages
is imported before one of their commands is named.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

GROUP = "chunkflow_py.operators"


@lru_cache(maxsize=1)
def installed() -> dict[str, str]:
    """Return the operators of other packages: name of the command -> ``module`` or ``module:x``."""
    found: dict[str, str] = {}
    for text in _entry_point_files():
        _, _, section = text.partition(f"[{GROUP}]\n")
        for line in section.partition("\n[")[0].splitlines():
            name, is_one, target = line.partition("=")
            if is_one:
                found.setdefault(name.strip().replace("_", "-"), target.partition("[")[0].strip())
    return found


def _entry_point_files() -> Iterator[str]:
    """Yield the entry point files of the packages on sys.path, in its order."""
    for folder in sys.path:
        try:
            entries = sorted(Path(folder).iterdir())
        except OSError:  # zipped, or not there
            continue
        for entry in entries:
            if entry.suffix in (".dist-info", ".egg-info"):
                try:
                    text = (entry / "entry_points.txt").read_text(encoding="utf-8")
                except OSError:  # most have none
                    continue
                if GROUP in text:
                    yield text


def path_of(name: str) -> Path | None:
    """Return the file of the operator, or ``None`` if that is not found without an import."""
    package, *modules = installed()[name].partition(":")[0].split(".")
    spec = find_spec(package)  # which imports nothing for a name without dots
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    for module in modules:
        path = path.parent / module / "__init__.py"
        if not path.is_file():
            path = path.parent.with_suffix(".py")
    return path if path.is_file() else None


def load(name: str) -> click.Command:
    """Import the operator and return its click command.

    Raises:
        OptionError: It cannot be imported, or is not an operator.
    """
    from chunkflow_py.pipeline.operator import OperatorCommand

    module, _, attribute = installed()[name].partition(":")
    try:
        command = getattr(import_module(module), attribute or "command", None)
    except ImportError as error:
        msg = f"{name} of {module}, which is installed, cannot be imported: {error}"
        raise OptionError(msg) from error
    if not isinstance(command, OperatorCommand):
        msg = (
            f"{name} of {module}, which is installed, is not an operator; its entry point must "
            "name a module with a function command under @transform, @operator or @source"
        )
        raise OptionError(msg)
    return command
