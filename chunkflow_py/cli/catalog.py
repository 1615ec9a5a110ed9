"""Find operators and subcommands by their file names, without importing the files.

Each file of `chunkflow_py/ops` defines an operator, and each file of `chunkflow_py/cli/subcommands`
defines a subcommand. The file name is the command name, the first line of the module docstring is
the summary, and the decorator of the function ``command`` determines the section of the help. Other
packages may add operators (`chunkflow_py.cli.installed_operators`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from chunkflow_py.cli import installed_operators

if TYPE_CHECKING:
    from pathlib import Path

    import click

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  (pathlib takes longer than the rest of --help)
OPS = os.path.join(_PACKAGE, "ops")  # noqa: PTH118
SUBCOMMANDS = os.path.join(_PACKAGE, "cli", "subcommands")  # noqa: PTH118

# Sections of `chunkflow --help`, most used first. The decorator of a command determines its
# section, unless its module has a constant SECTION.
SECTIONS = {
    "source": "Make tasks (first in a pipeline)",
    "read": "Load",
    "compute": "Process images and maps",
    "segment": "Segment and measure",
    "write": "Save",
    "subcommand": "Run, watch and check whole volumes",
    "view": "View",
    "objects": "Points, synapses, meshes and skeletons",
    "steer": "Skip, mark and move tasks",
    "items": "Chunks of a task, and plugins",
}
# Most used commands, listed first in their sections.
FIRST = (
    *("generate-tasks", "load-zarr", "load-precomputed", "load-h5", "load-tif", "inference"),
    *("threshold", "gaussian-filter", "agglomerate", "connected-components", "save-zarr"),
    *("save-precomputed", "save-h5", "save-tif", "plan", "submit", "work", "run", "status"),
    *("verify", "convert", "stitch-labels", "preview", "neuroglancer", "napari"),
)

_DECORATORS = {
    "source": "source",
    "transform": "compute",
    "subcommand": "subcommand",
    "pipeline_subcommand": "subcommand",
}
_SUMMARY = re.compile(r'[rR]?"""(.+?)(?:\n|""")')
_SECTION = re.compile(r'^SECTION = "(\w+)"', re.MULTILINE)
# @transform, or @operator("read", ...), above other decorators and the function
_COMMAND = re.compile(
    r"""^@(\w+)(?:\(\s*["'](\w+)["'][^\n]*\))?\n(?:[@ )].*\n)*def command\(""", re.MULTILINE
)


@dataclass(frozen=True)
class CommandEntry:
    """One command in the list of `chunkflow --help`.

    Attributes:
        name: name of the command.
        kind: section of the command, a key of `SECTIONS`.
        summary: first line of the docstring of the command's module.
    """

    name: str
    kind: str
    summary: str


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Return the names of this package's operators in alphabetical order, without opening files."""
    return _names(OPS)


@lru_cache(maxsize=1)
def subcommands() -> tuple[str, ...]:
    """Return the names of the subcommands in alphabetical order, without opening files."""
    return _names(SUBCOMMANDS)


def commands() -> tuple[str, ...]:
    """Return the names of the operators and subcommands of this package."""
    return (*names(), *subcommands())


def more() -> tuple[str, ...]:
    """Return the names of the operators that other packages add to this package."""
    return tuple(sorted(installed_operators.installed().keys() - set(commands())))


def is_known(name: str) -> bool:
    """Return whether this package or another package has a command of this name."""
    return name in commands() or name in more()


def _names(folder: str) -> tuple[str, ...]:
    files = (file for file in os.listdir(folder) if file.endswith(".py"))  # noqa: PTH208
    return tuple(sorted(file[:-3].replace("_", "-") for file in files if file[0] != "_"))


def path_of(name: str) -> str:
    """Return the path of the file that defines *name*, a command of this package."""
    folder = SUBCOMMANDS if name in subcommands() else OPS
    return os.path.join(folder, f"{name.replace('-', '_')}.py")  # noqa: PTH118


def by_section() -> dict[str, list[CommandEntry]]:
    """Return a dict from section title to the commands of the section, as `--help` lists them."""
    sections: dict[str, list[CommandEntry]] = {kind: [] for kind in SECTIONS}
    for name in (*commands(), *more()):
        entry = describe(name)
        sections[entry.kind].append(entry)
    order = {name: number for number, name in enumerate(FIRST)}
    return {
        title: sorted(sections[kind], key=lambda entry: (order.get(entry.name, 99), entry.name))
        for kind, title in SECTIONS.items()
        if sections[kind]
    }


@cache
def describe(name: str) -> CommandEntry:
    """Return the `CommandEntry` of the command *name*, without importing the command.

    Raises:
        ValueError: the file of the command has no decorated function ``command``.
    """
    if name in commands():
        return _describe(name, path_of(name))
    path = installed_operators.path_of(name)
    try:
        if path is not None:
            return _describe(name, path)
    except ValueError:  # reported when the command is used
        pass
    package = installed_operators.installed()[name].split(".")[0]
    return CommandEntry(name, "items", f"Operator of the package {package}.")


def _describe(name: str, path: str | Path) -> CommandEntry:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    summary, section = _SUMMARY.match(text), _SECTION.search(text)
    decorated = list(_COMMAND.finditer(text))
    command = decorated[-1] if decorated else None  # new-operator also contains a template of one
    if command is None or (kind := command[2] or _DECORATORS.get(command[1])) is None:
        msg = (
            f"{path} has no function called 'command' that is decorated with @transform, "
            "@operator, @source or @subcommand"
        )
        raise ValueError(msg)
    return CommandEntry(name, section[1] if section else kind, summary[1] if summary else "")


def load(name: str) -> click.Command:
    """Import an operator or subcommand, and return its click command."""
    if name not in commands():
        return installed_operators.load(name)
    package = "cli.subcommands" if name in subcommands() else "ops"
    module = import_module(f"chunkflow_py.{package}.{name.replace('-', '_')}")
    return cast("click.Command", module.command)
