"""Find and load plugins (Python files with a function ``execute``); convert their results.

A plugin given by name is searched for in the working folder, then in the folders of
``$CHUNKFLOW_PLUGIN_DIR``; a plugin may also be given by its path.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import PLUGIN_MODULE, ChunkError, OptionError
from chunkflow_py.pipeline.compat.imports import ROOT, importable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import ModuleType

    import click

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Zyx

FOLDERS = "CHUNKFLOW_PLUGIN_DIR"
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def find_plugin(name: str) -> Path | None:
    """Return the file of plugin *name* (a path, or a name with or without ``.py``), or ``None``."""
    file = Path(name if name.endswith(".py") else f"{name}.py").expanduser()
    extra = [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    for folder in (Path(), *extra):
        for candidate in (file, file.with_name(file.name.replace("-", "_"))):
            if (folder / candidate).is_file():
                return (folder / candidate).resolve()
    return None


def unknown_plugin(name: str, folder: Path) -> str:
    """Return the error message for a plugin that does not exist.

    Args:
        name: name as typed.
        folder: folder with the operators of this package; the message suggests a similar name.
    """
    operators = [entry.stem.replace("_", "-") for entry in folder.glob("[!_]*.py")]
    near = get_close_matches(name, operators, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"plugin {name!r} is neither a file in {Path.cwd()} or ${FOLDERS} nor an operator of "
        f"chunkflow{hint}"
    )


def plugin_files(name: str, path: Path) -> dict[str, str]:
    """Return the file that a run has to store for its workers, as ``{name: "code"}``.

    Raises:
        OptionError: *name* is the name of a plugin, not the path of its file.
    """
    if not Path(name).expanduser().is_file():
        msg = (
            f"plugin {name} is given by its name, but a run needs its path, to store the file for "
            f"the workers; give the path {path} instead"
        )
        raise OptionError(msg)
    return {name: "code"}


def load_file(path: Path) -> ModuleType:
    """Run the file and return its module.

    Raises:
        OptionError: the code of the file raises an exception.
    """
    name = f"{PLUGIN_MODULE}{path.stem.replace('-', '_')}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"plugin {path} is not a Python file"
        raise OptionError(msg)
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look for the module there
    try:
        with importable():
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        msg = f"plugin {path} cannot be loaded: {type(error).__name__}: {error}"
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == ROOT:
            msg += "; docs/from-chunkflow.md lists replacements in its section 'From Python'"
        raise OptionError(msg) from error
    return module


def load_plugin(path: Path) -> Callable[..., Any]:
    """Run the file and return its function ``execute``.

    Raises:
        OptionError: the code of the file raises an exception, or does not define the function.
    """
    execute = getattr(load_file(path), "execute", None)
    if not callable(execute):
        msg = f"plugin {path} has no function execute; define execute(*inputs, **arguments) in it"
        raise OptionError(msg)
    function: Callable[..., Any] = execute
    return function


def check_call(
    name: str, function: Callable[..., Any], inputs: int, keywords: Mapping[str, Any]
) -> None:
    """Refuse arguments that *function* does not accept.

    Args:
        name: name of the plugin.
        function: function to call.
        inputs: number of positional arguments.
        keywords: keyword arguments.

    Raises:
        OptionError: *function* does not accept the arguments; the message gives its signature.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # a compiled function may have no signature
        return
    try:
        signature.bind(*[None] * inputs, **keywords)
    except TypeError as error:
        msg = (
            f"plugin {name} cannot be called with {inputs} inputs (--input-names) and the "
            f"arguments {sorted(keywords)}: {error}; its function has the signature {signature}"
        )
        raise OptionError(msg) from error


def literal(text: str) -> Any:
    """Return the value of *text* if it is a Python literal, else the text; no code is run."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _CONSTANTS.get(text.strip().lower(), text.strip())


def parse_arguments(text: str) -> dict[str, Any]:
    """Convert the text of the option --args to keyword arguments for a plugin.

    The text is written like ``size=(3,1,1);mode=reflect``, or is a JSON object. Any other text
    becomes the single keyword argument ``args``; the plugin has to parse the text.
    """
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except json.JSONDecodeError:
            return {"args": text}
    matches = [_KEYWORD.fullmatch(part) for part in text.split(";") if part.strip()]
    if not matches or None in matches:
        return {"args": text}
    return {match[1]: literal(match[2]) for match in matches if match}


def split_options(
    params: Sequence[click.Parameter], args: Sequence[str], commands: Collection[str]
) -> tuple[list[str], dict[str, Any]]:
    """Separate the options that are not among *params* from the other arguments.

    Each option that is not among *params* takes the next argument as its value, and any Python
    literals directly behind this argument as further values: ``--size 3 1 1`` has three values. The
    values end at the name of a command or at another option. An option without values has the value
    True.

    Args:
        params: parameters of the command.
        args: arguments after the command, including further commands.
        commands: names of the commands that may follow.

    Returns:
        The arguments without the unknown options, and the unknown options by name.
    """
    options = {name: p for p in params for name in (*p.opts, *p.secondary_opts)}
    rest, known, extra = list(args), list[str](), dict[str, Any]()

    def is_value(word: str) -> bool:
        return word not in commands and not (word.startswith("-") and literal(word) == word)

    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, joined, value = word.partition("=")
        option = options.get(name) or (None if word[:2] == "--" else options.get(word[:2]))
        if option is not None or word[:2] != "--":
            alone = bool(joined) or name not in options or getattr(option, "is_flag", False)
            count = 0 if alone or option is None else option.nargs
            known += [word, *rest[:count]]
            del rest[:count]
            continue
        values = [value] if joined else []
        while not joined and rest and is_value(rest[0]):
            if values and literal(rest[0]) == rest[0]:
                break
            values.append(rest.pop(0))
        found = tuple(literal(text) for text in values)
        extra[name[2:].replace("-", "_")] = found[0] if len(found) == 1 else found or True
    return [*known, *rest], extra


def as_items(name: str, result: Any, outputs: Sequence[str], like: Chunk | None) -> dict[str, Any]:
    """Return the results of a plugin by name; arrays become chunks.

    Args:
        name: name of the plugin.
        result: one item, or a list or tuple with one item for each name in *outputs*. If *outputs*
            has one name, the item may be ``None``, and ``skip-none`` can then skip the task.
        outputs: names of the items to make; if there is no name, the result is dropped.
        like: chunk whose centre becomes the centre of each array of shape (z, y, x) or
            (c, z, y, x). Along each axis, such an array must be as long as *like*, or shorter by
            an even number of voxels.

    Raises:
        ChunkError: the number of items differs from the number of names, or an array has a size
            that is not allowed.
    """
    if not outputs:
        return {}
    many = isinstance(result, (list, tuple))
    nothing = result is None and len(outputs) != 1
    results = list(result) if many else [] if nothing else [result]
    if len(results) != len(outputs):
        msg = (
            f"plugin {name} returned {len(results)} items, but --output-names has "
            f"{len(outputs)} names; give one name for each item"
        )
        raise ChunkError(msg)
    return {key: _placed(name, value, like) for key, value in zip(outputs, results, strict=True)}


def _placed(name: str, value: Any, like: Chunk | None) -> Any:
    import numpy as np

    if like is None or not isinstance(value, np.ndarray) or value.ndim not in (3, 4):
        return value
    missing = like.size - value.shape[-3:]
    if min(missing) < 0 or any(missing % 2):
        msg = (
            f"plugin {name} returned an array of extent {tuple(value.shape[-3:])} for chunk "
            f"{like.bbox} of extent {like.size} (zyx, voxels); return an array whose extent "
            "is equal or smaller by an even number of voxels along each axis, or return a Chunk "
            "with its voxel_offset"
        )
        raise ChunkError(msg)
    offset: Zyx = like.voxel_offset + missing // 2
    return like.with_array(value, offset, kind=like.kind if value.dtype == like.dtype else None)
