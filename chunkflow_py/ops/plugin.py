"""Call execute() of a Python file with items of the task.

Example: chunkflow create-chunk plugin -f my_filter.py -i chunk -o chunk --args "size=(3,1,1)"

The file is looked for in the working folder and in $CHUNKFLOW_PLUGIN_DIR; the name of an operator
calls that operator on `chunk`. Options that are not listed here go to the plugin:
`plugin -f agglomerate --threshold 0.7`. A value that is the name of a command is written
`--option=value`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.params import ItemNames
from chunkflow_py.plugin import (
    as_items,
    check_call,
    find_plugin,
    load_plugin,
    parse_arguments,
    plugin_files,
    split_options,
    unknown_plugin,
)
from chunkflow_py.segmentation import score_code
from chunkflow_py.stages import StageCommand, operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.task import Task

SECTION = "items"

NOTHING = "None"  # an input name that stands for no item


@dataclass
class Plugin:
    """Calls one function for every task.

    Attributes:
        name: what the plugin is called in messages.
        path: its file, or ``None`` with a *function*.
        inputs: names of the items it is given; ``None`` gives it None.
        outputs: names of the items it returns.
        keywords: what else it is given.
        function: what is called; loaded from *path* when the line starts.
    """

    name: str
    path: Path | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    @property
    def needed_files(self) -> dict[str, str]:
        """The file that another machine needs, as it was typed; see `plugin_files`."""
        return {} if self.path is None else plugin_files(self.name, self.path)

    @property
    def code(self) -> tuple[str, ...]:
        """What it runs that is not part of this package, in words."""
        return score_code(self.keywords) if self.path is None else (f"the plugin {self.name}",)

    def __enter__(self) -> Plugin:
        """Load the file."""
        if self.function is None and self.path is not None:
            self.function = load_plugin(self.path)
            check_call(self.name, self.function, len(self.inputs), self.keywords)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def __call__(self, task: Task) -> Task:
        """Call the function and keep what it returns."""
        from chunkflow_py.chunk import Chunk

        if self.function is None:
            self.__enter__()
        values = [None if name == NOTHING else task[name] for name in self.inputs]
        like = next((value for value in values if isinstance(value, Chunk)), None)
        result = self.function(*values, **self.keywords) if self.function else None
        task.items.update(as_items(self.name, result, self.outputs, like))
        return task


class PluginCommand(StageCommand):
    """A command that hands the options it does not know to the plugin, as the context's obj."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take out the plugin's options, then parse as any command."""
        group = ctx.parent.command if ctx.parent else None
        commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
        line, ctx.obj = split_options(self.get_params(ctx), args, commands)
        return super().parse_args(ctx, line)


def _built_in(name: str) -> Callable[..., Any] | None:
    module = name.replace("-", "_")
    if not module.isidentifier() or not (Path(__file__).parent / f"{module}.py").is_file():
        return None
    function: Callable[..., Any] | None = getattr(
        import_module(f"chunkflow_py.ops.{module}"), module, None
    )
    return function


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
    """Find the plugin and read its arguments; its file runs when the line starts."""
    keywords = {} if args is None else parse_arguments(args)
    if twice := sorted(keywords.keys() & (ctx.obj or {}).keys()):
        msg = f"argument {twice[0]!r} is given by --args and as an option; leave one out"
        raise OptionError(msg)
    keywords |= ctx.obj or {}
    path = find_plugin(file)
    function = None if path else _built_in(file)
    if path is None and function is None:
        raise OptionError(unknown_plugin(file, Path(__file__).parent))
    inputs, outputs = input_names or (), output_names or ()
    if function is not None:
        inputs, outputs = input_names or ("chunk",), output_names or ("chunk",)
        check_call(file, function, len(inputs), keywords)
    # So that the line knows what is read and made.
    ctx.params["input_names"] = tuple(name for name in inputs if name != NOTHING)
    ctx.params["output_names"] = outputs
    return Plugin(file, path, inputs, outputs, keywords, function)
