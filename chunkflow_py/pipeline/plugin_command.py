"""The command ``plugin``, which calls an operator or the function ``execute`` of a file.

| ``--file``                       | options                                                  |
|----------------------------------|----------------------------------------------------------|
| an operator of this package      | options of the operator; the plugin has the same hooks   |
| a file with a function `command` | options of the operator that the file defines            |
| a file with a function `execute` | parameters of the function; see `plugin_signature`       |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.older_names import (
    COMMANDS,
    INSTEAD,
    PLUGIN_ARGUMENTS,
    PLUGIN_FOLDERS,
    PLUGIN_INPUTS,
)
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator, OperatorCommand, Source
from chunkflow_py.pipeline.option_arguments import divide, options_by_name, split_argument
from chunkflow_py.pipeline.params import ItemName, ItemNames
from chunkflow_py.pipeline.plugin import (
    find_plugin,
    load_file,
    parse_arguments,
    plugin_files,
    split_options,
    unknown_plugin,
)
from chunkflow_py.pipeline.plugin_signature import (
    PREFIX,
    Signature,
    is_operator_file,
    read_signature,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = "None"  # input name that stands for no item
_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


@dataclass
class Called:
    """The function or operator that a plugin's name refers to, and its arguments.

    Attributes:
        name: name as typed.
        path: path of the file, or ``None`` for an operator of this package.
        operator: command of the operator, or ``None`` for a function ``execute``.
        arguments: command-line arguments for the operator.
        signature: signature of ``execute``, if it can be read.
        keywords: keyword arguments for ``execute``, from the options.
    """

    name: str
    path: Path | None = None
    operator: OperatorCommand | None = None
    arguments: list[str] = field(default_factory=list)
    signature: Signature | None = None
    keywords: dict[str, Any] = field(default_factory=dict)


def find(name: str) -> Called:
    """Find the file or the operator that *name* refers to.

    Raises:
        OptionError: there is no such file or operator, or the file cannot be loaded.
    """
    folder = Path(__file__).parents[1] / "ops"
    path = find_plugin(name)
    if path is None:
        command = _command_name(name)
        if command in INSTEAD:
            msg = f"plugin {name} is not part of this program; {INSTEAD[command]}"
            raise OptionError(msg)
        module = command.replace("-", "_")
        if not module.isidentifier() or not (folder / f"{module}.py").is_file():
            raise OptionError(unknown_plugin(name, folder))
        return Called(name, None, import_module(f"chunkflow_py.ops.{module}").command)
    if is_operator_file(path):
        operator = getattr(load_file(path), "command", None)
        if not isinstance(operator, OperatorCommand):
            msg = (
                f"the function command in {path} does not make an operator; decorate the function "
                "with @transform, @operator or @source"
            )
            raise OptionError(msg)
        return Called(name, path, operator)
    return Called(name, path, signature=read_signature(path))


def _command_name(name: str) -> str:
    # Names of chunkflow 1.x, such as chunkflow/plugins/median_filter, also refer to operators.
    folder, _, last = name.removesuffix(".py").rpartition("/")
    word = last.replace("_", "-")
    return COMMANDS.get(word, word) if folder in ("", *PLUGIN_FOLDERS) else ""


class PluginCommand(OperatorCommand):
    """The command ``plugin``, which also has the options of the plugin given by ``--file``.

    While a command line is parsed, ``ctx.obj`` is the result of `find`, or ``None`` if ``--file``
    is not given.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of ``plugin`` and, if known, of the plugin's ``execute``."""
        called = ctx.obj if isinstance(ctx.obj, Called) else None
        own = super().get_params(ctx)
        known = options_by_name(own)
        more = called.signature.options if called and called.signature else ()
        return [*own, *(option for option in more if option.opts[0] not in known)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the plugin given by ``--file``; parse its options and the options of ``plugin``."""
        ctx.obj = None
        group = ctx.parent.command if ctx.parent else None
        names = group.list_commands(ctx) if isinstance(group, click.Group) else []
        file = _file(split_options(self.get_params(ctx), args, names)[0])
        if file is None or ctx.resilient_parsing:
            return super().parse_args(ctx, split_options(self.get_params(ctx), args, names)[0])
        called = ctx.obj = find(file)
        if called.operator:
            own = options_by_name(self.get_params(ctx))
            theirs = options_by_name(called.operator.params)
            mine, called.arguments, rest = divide(args, own, theirs, ctx)
            return super().parse_args(ctx, [*mine, *rest])
        if called.signature is None or called.signature.takes_more:
            args, called.keywords = split_options(self.get_params(ctx), args, names)
        rest = super().parse_args(ctx, args)
        for name in [name for name in ctx.params if name.startswith(PREFIX)]:
            if ctx.get_parameter_source(name) is _COMMAND_LINE:
                called.keywords[name.removeprefix(PREFIX)] = ctx.params[name]
            del ctx.params[name]
        return rest

    def invoke(self, ctx: click.Context) -> Operator | Source:
        """Return the plugin's operator, or an operator that calls the plugin's ``execute``."""
        called: Called = ctx.obj
        if called.operator is None:
            operator = super().invoke(ctx)
            operator.options["arguments"] = called.keywords
            return operator
        argv = _operator_argv(called, ctx.params)
        name = _command_name(called.name) or Path(called.name).stem.replace("_", "-")
        if called.path is not None:
            name = called.path.stem.replace("_", "-")
        inner = called.operator.make_context(name, argv, parent=ctx.parent)
        with inner:
            operator = called.operator.invoke(inner)
        operator.options["file"] = called.name
        if called.path is not None and isinstance(operator, Operator):
            operator.files = plugin_files(called.name, called.path)
            operator.code = (f"the plugin {called.name}",)
        return operator

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the plugin given by ``--file``, or else of the command ``plugin``."""
        called: Called | None = ctx.obj
        if called and called.operator:
            info = f"plugin --file {called.name}"
            inner = click.Context(called.operator, ctx.parent, info)
            called.operator.format_help(inner, formatter)
        elif called and called.signature:
            self._format_signature(ctx, formatter, called.name, called.signature)
        else:
            super().format_help(ctx, formatter)

    def _format_signature(
        self, ctx: click.Context, formatter: click.HelpFormatter, name: str, signature: Signature
    ) -> None:
        formatter.write_usage(ctx.command_path, f"--file {name} [OPTIONS]")
        formatter.write_paragraph()
        with formatter.indentation():
            # after \b, click does not wrap lines
            formatter.write_text("\b\n" + signature.doc.replace("\n\n", "\n\n\b\n"))
            if signature.inputs:
                formatter.write_paragraph()
                names = ", ".join(signature.inputs)
                formatter.write_text(
                    f"The chunks of --input-names are passed, in this order, as: {names}."
                )
        params = self.get_params(ctx)
        theirs = [p for p in params if p in signature.options]
        for title, group in (
            (f"Arguments of {name}", theirs),
            ("Options", [p for p in params if p not in theirs]),
        ):
            rows = [row for param in group if (row := param.get_help_record(ctx))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _file(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        name, value = split_argument(argument)
        if name in ("--file", "-f"):
            return value if value is not None else next(iter(arguments[index + 1 :]), None)
    return None


def _operator_argv(called: Called, own: dict[str, Any]) -> list[str]:
    params = [p for p in called.operator.params if isinstance(p, click.Option)]  # type: ignore[union-attr]
    params.sort(key=lambda option: not str(option.name).startswith("input"))  # the first input
    argv = [] if own["label"] is None else ["--name", own["label"]]
    command = _command_name(called.name) if called.path is None else ""
    if order := PLUGIN_INPUTS.get(command):
        given = dict(zip(order, own["input_names"] or (), strict=False))
        read = (p for p in params if isinstance(p.type, ItemName) and p.type.direction == "in")
        own = own | {"input_names": [given.get(str(p.name), NOTHING) for p in read]}
    for key, way in (("input_names", "in"), ("output_names", "out")):
        names = list(own[key] or ())
        for param in params:
            if not isinstance(param.type, (ItemName, ItemNames)) or param.type.direction != way:
                continue
            count = 1 if isinstance(param.type, ItemName) else len(names)
            taken, names = names[:count], names[count:]
            if taken and taken != [NOTHING]:
                argv += [param.opts[0], ",".join(taken)]
    options = options_by_name(params)
    arguments = {} if own["args"] is None else parse_arguments(own["args"])
    older = PLUGIN_ARGUMENTS.get(command, {})
    for name, value in ((older.get(name, name), value) for name, value in arguments.items()):
        if not name:
            continue
        option = options.get(f"--{name.replace('_', '-')}")
        if option is None:
            known = ", ".join(p.opts[0] for p in params)
            msg = f"plugin {called.name} has no argument {name!r}; its options are {known}"
            if name == "args":  # keyword of a text without names
                arguments_known = known.replace("--", "").replace("-", "_")
                msg = (
                    f"--args {value} of plugin {called.name} gives no name; write NAME=VALUE, "
                    f"where NAME is one of {arguments_known}"
                )
            raise OptionError(msg)
        spellings = (*option.opts, *option.secondary_opts)
        if any(split_argument(each)[0] in spellings for each in called.arguments):
            msg = f"argument {name!r} is given both by --args and as an option; leave one out"
            raise OptionError(msg)
        argv += _option_argv(option, value)
    return [*argv, *called.arguments]


def _option_argv(option: click.Option, value: Any) -> list[str]:
    if value is None:
        return []
    if option.is_flag:
        names = option.opts if value else option.secondary_opts
        return list(names[:1])
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    if option.nargs == 1:
        return [option.opts[0], ",".join(map(str, values))]
    return [option.opts[0], *map(str, values)]
