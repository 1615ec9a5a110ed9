"""What the site shows of the code: every command with its options, and the API in Python.

Commands are read from the command line itself, as `chunkflow COMMAND --help` shows them; types and
functions are found here by their names, and Sphinx reads their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

import chunkflow_py
from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

# Operators whose function lies a layer down, where other operators share it.
ELSEWHERE = {
    "create-info": "volume:create_volume",
    "create-volume": "volume:create_volume",
    "downsample-upload": "volume.pyramid:PyramidOutput",
    "fetch-task-from-sqs": "queue.queue_protocol:open_queue",
    "generate-tasks": "pipeline.task_source:TaskGenerator",
    "inference": "inference.inferencer:Inferencer",
    "load-n5": "volume:open_volume",
    "load-precomputed": "volume:open_volume",
    "load-tensorstore": "volume.tensorstore_volume:loader_of",
    "load-volume": "volume:open_volume",
    "load-zarr": "volume:open_volume",
    "resample": "pipeline.resampler:Resampler",
    "save-points": "core.points:Points",
    "save-precomputed": "volume.saver:VolumeSaver",
    "save-synapses": "core.synapses:Synapses",
    "save-volume": "volume.saver:VolumeSaver",
    "save-zarr": "volume.saver:VolumeSaver",
    "setup-env": "pipeline.sizing:Environment",
}

# What an operator is made of, for those who write one.
EXTENDING = {
    "chunkflow_py.pipeline.operator": [
        "transform",
        "operator",
        "source",
        "Operator",
        "Source",
        "Skip",
    ],
    "chunkflow_py.dask": ["inference"],
}


# --- commands ------------------------------------------------------------------------------------


def commands() -> str:
    """Return a section for each command, as Markdown, in the order of `chunkflow --help`."""
    top = click.Context(cli, info_name="chunkflow")
    lines = ["", "## Before the first command", "", *_options(cli, top)]
    for kind, title in catalog.SECTIONS.items():
        found = [name for name in catalog.commands() if catalog.describe(name).kind == kind]
        lines += ["", f"## {title}: {len(found)} commands", ""]
        for name in found:
            lines += _command(name, top)
    return "\n".join(lines) + "\n"


def _command(name: str, top: click.Context) -> Iterator[str]:
    command = catalog.load(name)
    context = click.Context(command, info_name=name, parent=top)
    yield f"### {name}"
    yield ""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = paragraph.removeprefix("\b\n")
        if text.startswith("Example: "):
            example = text.removeprefix("Example: ")
            yield "```sh\n" + re.sub(r" *\\?\n *", " \\\\\n    ", example) + "\n```"
        elif paragraph.startswith("\b") or text.startswith("    "):  # laid out by its lines
            yield f"```text\n{text}\n```"
        else:
            yield _words(text)
        yield ""
    yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a list of all options that `--help` shows, in its words."""
    records = [each.get_help_record(context) for each in command.get_params(context)]
    for names, text in filter(None, records):
        if "--help" in names:
            continue
        yield f"`{names}`"
        yield f": {_words(text) or 'See above.'}"
        yield ""


def _words(text: str) -> str:
    """Return a text of the command line as Markdown that shows the same characters."""
    parts = re.split(r"(``[^`]*``|`[^`]*`)", text)
    plain = [re.sub(r"([\\*_<>\[\]{}#])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", r"`\1`", part) for part in plain]
    return "".join(parts)


# --- Python --------------------------------------------------------------------------------------


def python() -> str:
    """Return where the docstrings of types and operators go, as Markdown."""
    lines = ["", "## Main types", ""]
    shown: set[tuple[str, str]] = set()
    for name, module in sorted(chunkflow_py._HOMES.items()):
        lines += _documented(module, name)
        shown.add((module, name))
    lines += ["## For operators of your own, and for dask", ""]
    for module, names in EXTENDING.items():
        for name in names:
            lines += _documented(module, name)
    for kind, title in catalog.SECTIONS.items():
        found = [name for name in catalog.names() if catalog.describe(name).kind == kind]
        lines += [f"## {title}: in Python", ""] if found else []
        for name in found:
            home = home_of(name)
            lines += [f"### {name}: `{home[1]}`", ""]
            lines += [f"`{'.'.join(home)}`, above.", ""] if home in shown else _documented(*home)
            shown.add(home)
    return "\n".join(lines) + "\n"


def _documented(module: str, name: str) -> Iterator[str]:
    """Yield the directive that shows a function or class with its docstring."""
    if inspect.isclass(getattr(import_module(module), name)):
        kind, members = "class", "   :members:"
    else:
        kind, members = "function", ""
    yield f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n{members}\n```\n"


def home_of(name: str) -> tuple[str, str]:
    """Return module and name of the function or class that is operator *name* in Python.

    Raises:
        LookupError: its file has none, and `ELSEWHERE` names none.
    """
    module = f"chunkflow_py.ops.{name.replace('-', '_')}"
    wanted = {name.replace("-", "_"), "".join(part.capitalize() for part in name.split("-"))}
    nodes = _public(module)
    if nodes and name in ELSEWHERE:
        msg = f"{name} has {nodes[0].name} of its own; take it out of ELSEWHERE"
        raise LookupError(msg)
    if name in ELSEWHERE:
        module, _, word = f"chunkflow_py.{ELSEWHERE[name]}".partition(":")
        nodes = [node for node in _public(module) if node.name == word]
    if not nodes:
        msg = f"{name} has no public function or class beside command; add one, or to ELSEWHERE"
        raise LookupError(msg)
    return module, min(nodes, key=lambda node: node.name not in wanted).name


def _public(module: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return the public functions and classes of a module, but for ``command``, in its order."""
    path = Path(catalog.OPS).parent.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [node for node in found if node.name[0] != "_" and node.name != "command"]
