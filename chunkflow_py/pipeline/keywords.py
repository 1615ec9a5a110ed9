"""Call commands from Python: keyword arguments are checked like options of a command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from chunkflow_py.pipeline.operator import Operator, OperatorCommand, Source

_HIDDEN = {"help"}


def called(command: OperatorCommand, options: Mapping[str, Any]) -> Operator | Source:
    """Call a command with options given by keyword.

    Args:
        command: command of an operator or a source.
        options: values by parameter name, or by option name with ``_`` instead of ``-``. ``None``
            omits an option. The value of a flag is a bool. Several values of one option are given
            as a tuple or a list.

    Returns:
        The operator or source; its ``argv`` is the equivalent command line.

    Raises:
        OptionError: an option is unknown, or its value is wrong.
    """
    name = str(command.name)
    argv = [name, *arguments(command, options)]
    # The global options of the command line: --mip and --dry-run have their defaults.
    top = click.Context(click.Group("chunkflow"), info_name="chunkflow")
    top.params = {"mip": 0, "dry_run": False}
    try:
        with top, command.make_context(name, argv[1:], parent=top) as context:
            operator: Operator | Source = command.invoke(context)
    except click.ClickException as error:
        msg = f"{name}: {error.format_message()}"
        raise OptionError(msg) from error
    operator.argv = tuple(argv)
    return operator


def arguments(command: click.Command, options: Mapping[str, Any]) -> list[str]:
    """Convert keyword arguments to arguments of a command line.

    Raises:
        OptionError: an option is unknown; the message suggests the most similar option.
    """
    known = _parameters(command)
    argv: list[str] = []
    for keyword, value in options.items():
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"options: {', '.join(sorted(known))}"
            msg = f"{command.name} has no option {keyword}; {hint}"
            raise OptionError(msg)
        if value is not None:
            argv += _typed(known[keyword], value)
    return argv


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    known: dict[str, click.Parameter] = {}
    for parameter in command.params:
        for spelling in parameter.opts:
            if spelling.startswith("--"):
                known[spelling[2:].replace("-", "_")] = parameter
    by_name = {p.name: p for p in command.params if p.name and p.name not in _HIDDEN}
    return known | by_name


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    """Return the arguments of one option: its first long name and its values."""
    name = _long_name(parameter.opts)
    if getattr(parameter, "is_flag", False):
        if value:
            return [name]
        return [_long_name(parameter.secondary_opts)] if parameter.secondary_opts else []
    if parameter.multiple:
        return [word for each in value for word in (name, _text(each))]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | PathLike):
        values = [_text(each) for each in value]
        # an option with one argument takes several values between commas, as in --channels 0,2
        return [name, *values] if parameter.nargs != 1 else [f"{name}={','.join(values)}"]
    return [name, _text(value)] if parameter.nargs != 1 else [f"{name}={_text(value)}"]


def _long_name(spellings: list[str]) -> str:
    return next((each for each in spellings if each.startswith("--")), spellings[0])


def _text(value: Any) -> str:
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, float):
        return repr(value)
    return str(value)
