"""Find operators that other packages declare as entry points of ``chunkflow_py.operators``.

This module reads the ``entry_points.txt`` files of packages on ``sys.path``. It does not use
importlib.metadata, because importing that module takes longer than all of ``chunkflow --help``. A
package is imported only when one of its commands is used.
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
    """Return a dict from operator name to entry point: ``module`` or ``module:attribute``."""
    operators: dict[str, str] = {}
    for text in _entry_point_files():
        _, _, section = text.partition(f"[{GROUP}]\n")
        for line in section.partition("\n[")[0].splitlines():
            name, equals, target = line.partition("=")
            if equals:
                command = name.strip().replace("_", "-")
                operators.setdefault(command, target.partition("[")[0].strip())
    return operators


def _entry_point_files() -> Iterator[str]:
    for folder in sys.path:
        try:
            entries = sorted(Path(folder).iterdir())
        except OSError:  # a zip file, or a missing folder
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
    """Return the file of an operator, or ``None`` if it cannot be found without an import."""
    package, *modules = installed()[name].partition(":")[0].split(".")
    spec = find_spec(package)  # imports nothing for a name without dots
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    for module in modules:
        path = path.parent / module / "__init__.py"
        if not path.is_file():
            path = path.parent.with_suffix(".py")
    return path if path.is_file() else None


def load(name: str) -> click.Command:
    """Import an operator of another package and return its click command.

    Raises:
        OptionError: the module of the operator cannot be imported, or does not define an operator.
    """
    from chunkflow_py.pipeline.operator import OperatorCommand

    module, _, attribute = installed()[name].partition(":")
    try:
        command = getattr(import_module(module), attribute or "command", None)
    except ImportError as error:
        msg = f"the operator {name} of the installed module {module} cannot be imported: {error}"
        raise OptionError(msg) from error
    if not isinstance(command, OperatorCommand):
        msg = (
            f"{name} of the installed module {module} is not an operator; the entry point must "
            "name a module with a function called 'command' that is decorated with @transform, "
            "@operator or @source"
        )
        raise OptionError(msg)
    return command
