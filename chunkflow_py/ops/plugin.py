r"""Run your own Python function on the items of a task.

Example: chunkflow create-chunk \
  plugin --file my_filter.py --input-names chunk --output-names chunk --args "size=(3,1,1)"

The file defines a function execute(*items, **arguments). chunkflow searches the working directory
and $CHUNKFLOW_PLUGIN_DIR for the file. Give the arguments as options, such as `--size 3 1 1`, or
all together in --args; `plugin --file my_filter.py --help` lists the arguments.

Besides names of items, --input-names accepts bbox (the task's box), log (the times, box and device
of the task) and None (Python's None). --file may also be a file with an operator (see `chunkflow
new-operator --help`), or the name of an operator: `plugin --file agglomerate --threshold 0.7`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
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
    # The keys are those of the log in chunkflow 1.x.
    from chunkflow_py.volume.output import compute_device

    return {
        "timer": dict(task.seconds),
        "bbox": str(task),
        "compute_device": compute_device() or "unknown",
    }


# Inputs that every task provides, unless an operator has made an item of that name.
_OF_TASKS: dict[str, Callable[[Task], Any]] = {
    NOTHING: lambda task: None,  # noqa: ARG005
    "bbox": lambda task: task.bbox,
    "log": _log,
}


@dataclass
class Plugin(OperatorBase):
    """Calls the function ``execute`` of a Python file for every task.

    Attributes:
        name: name of the plugin in messages.
        path: path of the Python file.
        inputs: names of the items to pass to the function. The name ``None`` passes None, ``bbox``
            passes the task's box, and ``log`` passes the times, box and device of the task.
        outputs: names for the items that the function returns.
        keywords: keyword arguments to pass to the function.
        function: the function ``execute``, which is loaded from *path* when the pipeline starts.
        is_older: whether the plugin is written for chunkflow 1.x. Such a plugin imports chunkflow,
            and receives and returns the types of `chunkflow_py.pipeline.compat`.
    """

    name: str
    path: Path
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    is_older: bool = False
    any_voxel_size: ClassVar[bool] = hook_value(True)

    @property
    @hook
    def needed_files(self) -> dict[str, str]:
        """The Python file, which workers need: a dict from its path to ``code``."""
        return plugin_files(self.name, self.path)

    @property
    @hook
    def code(self) -> tuple[str, ...]:
        """Description of the plugin, whose code is not part of chunkflow_py."""
        return (f"the plugin {self.name}",)

    def __enter__(self) -> Plugin:
        """Load the function, and check that it accepts the inputs and the arguments."""
        if self.function is None:
            from chunkflow_py.pipeline.compat.imports import is_imported_by

            self.function = load_plugin(self.path)
            self.is_older = is_imported_by(self.path)
            check_call(self.name, self.function, len(self.inputs), self.keywords)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resources are held."""

    def __call__(self, task: Task) -> Task:
        """Call the function, and add the returned items to the task."""
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
        # A plugin for chunkflow 1.x may change its inputs in place; the task gets these changes.
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
@click.option(
    "--input-names", "-i", type=ItemNames("in"), help="Names of the items to pass to the function."
)
@click.option(
    "--output-names",
    "-o",
    type=ItemNames("out"),
    help="Names for the items that the function returns.",
)
@click.option("--file", "-f", required=True, help="Python file, or the name of an operator.")
@click.option("--args", "-a", help="Arguments: name=value;name=value, JSON, or any text.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    input_names: tuple[str, ...] | None,
    output_names: tuple[str, ...] | None,
    file: str,
    args: str | None,
) -> Plugin:
    """Parse the arguments, and return the operator, which loads the file when it starts."""
    given: dict[str, Any] = ctx.obj.keywords
    keywords = {} if args is None else parse_arguments(args)
    if twice := sorted(keywords.keys() & given.keys()):
        msg = (
            f"argument {twice[0]!r} is given both in --args and as an option; give the argument "
            "only once"
        )
        raise OptionError(msg)
    inputs, outputs = input_names or (), output_names or ()
    # The pipeline checks which items are read and made.
    ctx.params["input_names"] = tuple(name for name in inputs if name not in _OF_TASKS)
    ctx.params["output_names"] = outputs
    return Plugin(file, ctx.obj.path, inputs, outputs, keywords | given)
