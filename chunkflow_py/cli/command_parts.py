"""The commands of a command line, each with the arguments that were typed for it.

While click parses a command line, `note_tail` records the arguments from each command to the end;
`parts_of` derives from these tails which arguments belong to which command.
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
class Part:
    """One command of a command line.

    Attributes:
        stage: what the command returned.
        argv: its arguments as they were typed, the command's name first.
    """

    stage: Operator | Source | Subcommand
    argv: tuple[str, ...]


def note_tail(ctx: click.Context, argv: Sequence[str]) -> None:
    """Remember the command line from one of its commands to the end."""
    ctx.meta.setdefault(_TAILS, []).append(tuple(argv))


def last_tail(ctx: click.Context) -> tuple[str, ...]:
    """Return the command line from its last command to the end."""
    tails: list[tuple[str, ...]] = ctx.meta.get(_TAILS, [])
    return tails[-1] if tails else ()


def parts_of(ctx: click.Context, stages: Sequence[Operator | Source | Subcommand]) -> list[Part]:
    """Return the commands of the command line that *ctx* has read, with their arguments."""
    tails: list[tuple[str, ...]] = ctx.meta[_TAILS]
    ends = [*map(len, tails[1:]), 0]
    argv = [tail[: len(tail) - end] for tail, end in zip(tails, ends, strict=True)]
    return [Part(*each) for each in zip(stages, argv, strict=True)]


def check_source_first(stages: Sequence[Operator | Source | Subcommand]) -> None:
    """Refuse a source that is not the first command of a pipeline.

    Raises:
        OptionError: there is one.
    """
    for stage in stages[1:]:
        if isinstance(stage, Source):
            msg = (
                f"{stage.name} makes the tasks of a pipeline, so it must come first; after "
                f"{stages[0].name} it would discard the earlier results"
            )
            raise OptionError(msg)


def operators_of(stages: Sequence[Operator | Source | Subcommand]) -> Iterator[Operator]:
    """Yield the operators of a pipeline, including one that its source applies to each task."""
    for stage in stages:
        if isinstance(stage, Operator):
            yield stage
        elif isinstance(stage, Source) and stage.work is not None:
            yield stage.work
