"""Assign the arguments of a command line to options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def options_by_name(params: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """Map each option name to its option, for the options among *params*."""
    return {
        name: param
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def split_argument(argument: str) -> tuple[str, str | None]:
    """Split ``--mip=2`` into ``--mip`` and ``2``; the value is ``None`` without ``=``.

    ``-m2`` is split into ``-m`` and ``2``.
    """
    if argument.startswith("--"):
        name, joined, value = argument.partition("=")
        return name, value if joined else None
    return argument[:2], argument[2:] or None


def count_arguments(option: click.Option, first: str) -> int:
    """Return the number of command-line arguments that an option occupies, including its name.

    Args:
        option: the option.
        first: argument with the name of the option. If written as ``--mip=2``, the argument also
            contains the value.
    """
    if option.is_flag or option.count:
        return 1
    return option.nargs + (split_argument(first)[1] is None)


def divide(
    arguments: Sequence[str],
    own: Mapping[str, click.Option],
    others: Mapping[str, click.Option],
    ctx: click.Context,
) -> tuple[list[str], list[str], list[str]]:
    """Divide a command line into options in *own*, options in *others*, and further arguments.

    The first two lists contain the options as typed: names and values. The third list starts at the
    first argument that is neither an option nor the value of an option.

    Args:
        arguments: arguments of the command line.
        own: options that go into the first list, by name.
        others: options that go into the second list, by name.
        ctx: context of the command, for messages.

    Raises:
        click.NoSuchOption: an option is not in *own* or *others*.
    """
    divided: tuple[list[str], list[str]] = [], []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name = split_argument(rest[0])[0]
        option = own.get(name) or others.get(name)
        if option is None:
            raise click.NoSuchOption(name, possibilities=[*own, *others], ctx=ctx)
        count = count_arguments(option, rest[0])
        divided[name not in own].extend(rest[:count])
        del rest[:count]
    return *divided, rest
