"""Split a command line into commands, and keep the arguments of each command as typed.

While click parses a command line, `note_tail` records a tail for each command: the arguments from
this command to the end of the line. `parts_of` derives from the tails which arguments belong to
which command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import click

    from chunkflow_py.cli.subcommands import Subcommand

_TAILS = "chunkflow_py.tails"


@dataclass(frozen=True)
class CommandPart:
    """One command of a command line.

    Attributes:
        command: object that the click command returned.
        argv: name of the command, then its arguments as typed.
    """

    command: Operator | Source | Subcommand
    argv: tuple[str, ...]


def note_tail(ctx: click.Context, argv: Sequence[str]) -> None:
    """Record *argv*, the arguments from a command to the end of the command line."""
    ctx.meta.setdefault(_TAILS, []).append(tuple(argv))


def last_tail(ctx: click.Context) -> tuple[str, ...]:
    """Return the arguments from the most recently recorded command to the end of the line."""
    tails: list[tuple[str, ...]] = ctx.meta.get(_TAILS, [])
    return tails[-1] if tails else ()


def parts_of(
    ctx: click.Context, commands: Sequence[Operator | Source | Subcommand]
) -> list[CommandPart]:
    """Return a `CommandPart` for each of *commands*, with the arguments of the command as typed.

    Args:
        ctx: context of the command line.
        commands: operators, sources and subcommands that click returned for the command line.
    """
    tails: list[tuple[str, ...]] = ctx.meta[_TAILS]
    ends = [*map(len, tails[1:]), 0]
    argv = [tail[: len(tail) - end] for tail, end in zip(tails, ends, strict=True)]
    return [CommandPart(*each) for each in zip(commands, argv, strict=True)]


def check_source_first(commands: Sequence[Operator | Source | Subcommand]) -> None:
    """Refuse a source that is not the first command of a pipeline.

    Raises:
        OptionError: a source follows another command.
    """
    for command in commands[1:]:
        if isinstance(command, Source):
            msg = (
                f"{command.name} makes the tasks of a pipeline, and would discard the results of "
                f"{commands[0].name}, which comes before it; move {command.name} to the front"
            )
            raise OptionError(msg)


def operators_of(commands: Sequence[Operator | Source | Subcommand]) -> Iterator[Operator]:
    """Yield all operators of a pipeline.

    If a source has an operator of its own (`Source.work`), this operator is yielded, too.
    """
    for command in commands:
        if isinstance(command, Operator):
            yield command
        elif isinstance(command, Source) and command.work is not None:
            yield command.work
