"""Which operators and verbs there are, read from the file system without importing any of them.

A file of `chunkflow_py/ops` is an operator and a file of `chunkflow_py/cli/verbs` is a verb: its
name is the command's name, the first line of its docstring is the help text, and the decorator of
its function ``command`` says what kind it is. Other packages may add operators
(`chunkflow_py.cli.installed`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from chunkflow_py.cli import installed

if TYPE_CHECKING:
    import click

OPS = Path(__file__).parent.parent / "ops"
VERBS = Path(__file__).parent / "verbs"

# Of `chunkflow --help`, in its order: what a first line needs, then what many tasks need. An
# operator belongs where its decorator says, unless its file has a constant SECTION.
SECTIONS = {
    "read": "Load",
    "compute": "Process images and maps",
    "segment": "Segment and measure",
    "objects": "Points, synapses, meshes and skeletons",
    "write": "Save",
    "view": "View",
    "source": "Make tasks (first in a line)",
    "steer": "Skip, mark and move tasks",
    "items": "Handle items, and extend",
    "verb": "Run and watch",
}

# by decorator
_KINDS = {"source": "source", "transform": "compute", "verb": "verb", "line_verb": "verb"}


@dataclass(frozen=True)
class Entry:
    """What the list of commands shows of one operator or verb; *kind* is a key of `SECTIONS`."""

    name: str
    kind: str
    summary: str


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Return the names of the operators in alphabetical order; opens no file."""
    return _names(OPS)


@lru_cache(maxsize=1)
def verbs() -> tuple[str, ...]:
    """Return the names of the verbs in alphabetical order; opens no file."""
    return _names(VERBS)


def commands() -> tuple[str, ...]:
    """Return the names of operators and verbs of this package."""
    return (*names(), *verbs())


def more() -> tuple[str, ...]:
    """Return the names of the operators of other packages; ours go before theirs."""
    return tuple(sorted(installed.installed().keys() - set(commands())))


def is_known(name: str) -> bool:
    """Tell whether there is such a command; looks for other packages only if it must."""
    return name in commands() or name in more()


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("[!_]*.py")))


def path_of(name: str) -> Path:
    """Return the file of command *name*."""
    return (VERBS if name in verbs() else OPS) / f"{name.replace('-', '_')}.py"


@cache
def describe(name: str) -> Entry:
    """Return kind and summary of command *name*; imports nothing.

    Raises:
        ValueError: the file has no function ``command`` under one of the decorators.
    """
    if name in commands():
        return _describe(name, path_of(name))
    path = installed.path_of(name)
    try:
        if path is not None:
            return _describe(name, path)
    except (ValueError, SyntaxError):  # what is wrong with it is said to who calls it
        pass
    return Entry(name, "items", f"Of the package {installed.installed()[name].split('.')[0]}.")


def _describe(name: str, path: Path) -> Entry:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    section = _constant(tree, "SECTION")
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name != "command":
            continue
        first = node.decorator_list[0] if node.decorator_list else None
        if isinstance(first, ast.Call) and first.args:
            return Entry(name, section or str(ast.literal_eval(first.args[0])), summary)
        if isinstance(first, ast.Name) and first.id in _KINDS:
            return Entry(name, section or _KINDS[first.id], summary)
    msg = f"{path} has no function command under @transform, @operator, @source or @verb"
    raise ValueError(msg)


def _constant(tree: ast.Module, name: str) -> str:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return str(ast.literal_eval(node.value))
    return ""


def load(name: str) -> click.Command:
    """Import the operator or verb and return its click command."""
    if name not in commands():
        return installed.load(name)
    package = "cli.verbs" if name in verbs() else "ops"
    module = import_module(f"chunkflow_py.{package}.{name.replace('-', '_')}")
    return cast("click.Command", module.command)
