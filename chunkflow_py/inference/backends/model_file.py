"""Run the Python file of a user's model as a module of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from types import ModuleType


def run_model_file(path: str) -> ModuleType:
    """Execute *path* and return it as a module under a private name.

    The file is ordinary Python code and may do whatever the user who starts it may do: a model
    file has to be trusted like a program. It is run anew at each call, so that two networks made
    from one file share no weights.

    Args:
        path: a ``.py`` file.

    Raises:
        ModelError: the file does not exist, is not valid Python, or raised an exception.
    """
    file = Path(path)
    if not file.is_file():
        msg = f"model file {path} does not exist; check --convnet-model"
        raise ModelError(msg)
    tag = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"_chunkflow_model_{file.stem}_{tag}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        msg = f"model file {path} is not a Python file (.py); check --convnet-model"
        raise ModelError(msg)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and TorchScript look their module up by name while the file is being run.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        msg = f"model file {path} is not valid Python: {error.msg} in line {error.lineno}"
        raise ModelError(msg) from error
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        msg = f"model file {path} cannot be run: {type(error).__name__}: {error}"
        raise ModelError(msg) from error
    return module
