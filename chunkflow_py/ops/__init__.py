"""Operators, one per file; the file name is the command name.

In Python, call an operator by its name, with the options of the command as arguments:

    >>> from chunkflow_py import ops
    >>> ops.threshold(threshold=0.5)  # as `chunkflow threshold --threshold 0.5`

To apply the function of an operator to a chunk, import the function from the operator's module:
``from chunkflow_py.ops.threshold import threshold``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chunkflow_py.pipeline.operator import Operator, Source


class OperatorModule(ModuleType):
    """Module of an operator; calling the module with options as arguments returns the operator."""

    def __call__(self, **options: Any) -> Operator | Source:
        """Return the operator; *options* are named like the options of the command."""
        from chunkflow_py.pipeline.keywords import called

        return called(self.command, options)


class _OperatorPackage(ModuleType):
    # Python sets the module of an operator as an attribute of this package when it imports the
    # module. That is where the module becomes callable.

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and hasattr(value, "command"):
            value.__class__ = OperatorModule
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> ModuleType:
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            msg = f"there is no operator {name}; run chunkflow --help for the list of operators"
            raise AttributeError(msg)
        return import_module(f"{__name__}.{name}")


sys.modules[__name__].__class__ = _OperatorPackage
