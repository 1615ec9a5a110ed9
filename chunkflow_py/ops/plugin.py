"""Call a Python file of your own on the items of a task.

Example: chunkflow create-chunk plugin -f my_filter.py -i chunk -o chunk -a "size=(3,1,1)"

The file has a function execute(*items, **arguments); it is looked for in the working folder and in
$CHUNKFLOW_PLUGIN_DIR. Its arguments are options, `--size 3 1 1`, or all in --args;
`plugin -f my_filter.py --help` lists them. Beside items of the line, -i takes bbox, log and None.
A file with an operator (see `chunkflow new-operator --help`) and the name of an operator work, too:
`plugin -f agglomerate --threshold 0.7`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemNames
from chunkflow_py.pipeline.plugin import (
    as_items,
    check_call,
    load_plugin,
    parse_arguments,
    plugin_files,
)
from chunkflow_py.pipeline.plugin_command import NOTHING, PluginCommand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chunkflow_py.core.task import Task

SECTION = "items"


def _log(task: Task) -> dict[str, Any]:
    """Return what is known of a task's work so far, by the names of 1.x."""
    from chunkflow_py.volume.output import compute_device

    return {
        "timer": dict(task.seconds),
        "bbox": str(task),
        "compute_device": compute_device() or "unknown",
    }


# Names of what every task has, unless the line has made items of these names.
_OF_TASKS: dict[str, Callable[[Task], Any]] = {
    NOTHING: lambda task: None,  # noqa: ARG005
    "bbox": lambda task: task.bbox,
    "log": _log,
}


@dataclass
class Plugin(OperatorBase):
    """Calls the function ``execute`` of a file for every task.

    Attributes:
        name: what the plugin is called in messages.
        path: its file.
        inputs: names of the items it is given; ``None`` gives it None, ``bbox`` the task's box and
            ``log`` the seconds spent so far.
        outputs: names of the items it returns.
        keywords: what else it is given.
        function: what is called; loaded from *path* when the line starts.
        is_older: whether it is written for chunkflow 1.x: it imports chunkflow, and is given and
            returns what `chunkflow_py.pipeline.compat` has.
    """

    name: str
    path: Path
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    is_older: bool = False

    @property
    @hook
    def needed_files(self) -> dict[str, str]:
        """The file that another machine needs, as it was typed; see `plugin_files`."""
        return plugin_files(self.name, self.path)

    @property
    @hook
    def code(self) -> tuple[str, ...]:
        """What it runs that is not part of this package, in words."""
        return (f"the plugin {self.name}",)

    def __enter__(self) -> Plugin:
        """Load the file."""
        if self.function is None:
            from chunkflow_py.pipeline.compat.imports import is_imported_by

            self.function = load_plugin(self.path)
            self.is_older = is_imported_by(self.path)
            check_call(self.name, self.function, len(self.inputs), self.keywords)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def __call__(self, task: Task) -> Task:
        """Call the function and keep what it returns."""
        from chunkflow_py.core.chunk import Chunk

        if self.function is None:
            self.__enter__()
        values = [
            _OF_TASKS[name](task) if name in _OF_TASKS and name not in task.items else task[name]
            for name in self.inputs
        ]
        like = next((value for value in values if isinstance(value, Chunk)), None)
        result = self._call_older(task, values) if self.is_older else self._call(values)
        task.items.update(as_items(self.name, result, self.outputs, like))
        return task

    def _call(self, values: list[Any]) -> Any:
        return self.function(*values, **self.keywords) if self.function else None

    def _call_older(self, task: Task, values: list[Any]) -> Any:
        """Call it with items as chunkflow 1.x has them; what it changes of them is changed."""
        from chunkflow_py.pipeline.compat.boundary import from_plugin, is_changed, to_plugin
        from chunkflow_py.pipeline.compat.imports import importable

        given = [to_plugin(value) for value in values]
        with importable():
            result = self._call(given)
        for name, before, after in zip(self.inputs, values, given, strict=True):
            if name in task.items and is_changed(after, before):
                task.items[name] = from_plugin(after, [before])
        return from_plugin(result, values)


@operator("compute", cls=PluginCommand)
@click.option("--input-names", "-i", type=ItemNames("in"), help="Items to give to it.")
@click.option("--output-names", "-o", type=ItemNames("out"), help="Names of what it returns.")
@click.option("--file", "-f", required=True, help="Python file, or the name of an operator.")
@click.option("--args", "-a", help="Arguments: name=value;name=value, or JSON, or any text.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    input_names: tuple[str, ...] | None,
    output_names: tuple[str, ...] | None,
    file: str,
    args: str | None,
) -> Plugin:
    """Read the arguments; the file runs when the line starts."""
    given: dict[str, Any] = ctx.obj.keywords
    keywords = {} if args is None else parse_arguments(args)
    if twice := sorted(keywords.keys() & given.keys()):
        msg = f"argument {twice[0]!r} is given by --args and as an option; leave one out"
        raise OptionError(msg)
    inputs, outputs = input_names or (), output_names or ()
    # So that the line knows what is read and made.
    ctx.params["input_names"] = tuple(name for name in inputs if name not in _OF_TASKS)
    ctx.params["output_names"] = outputs
    return Plugin(file, ctx.obj.path, inputs, outputs, keywords | given)
