"""What is wrong with a line whatever its tasks: names of items, and places that are written to."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, OperatorError, OptionError
from chunkflow_py.hooks import ReadsFrom, RemovesItems, WritesTo, WritesToSeveral
from chunkflow_py.interrupts import Interrupted, marked_interrupts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chunkflow_py.stages import Operator, Source


@contextmanager
def noting(problems: list[ChunkflowError] | None) -> Iterator[None]:
    """Keep what is wrong inside in *problems* and go on after it; raise it if there is no list."""
    try:
        yield
    except ChunkflowError as error:
        if problems is None:
            raise
        problems.append(error)


@contextmanager
def naming(stage: Operator | Source) -> Iterator[None]:
    """Name the operator that a foreign exception came from; our own errors name what is wrong.

    SystemExit and its kin become errors as well; only what interrupts the process goes through.
    """
    try:
        with marked_interrupts():
            yield
    except (ChunkflowError, Interrupted):
        raise
    except BaseException as error:
        raise OperatorError(stage.name, None, error) from error


def check_names(operators: Iterable[Operator]) -> None:
    """Refuse an operator that reads an item which nothing before it makes.

    Raises:
        OptionError: names the item, and what there is.
    """
    made: set[str] = set()
    for stage in operators:
        for name in stage.inputs:
            if name not in made:
                known = ", ".join(sorted(made)) or "none"
                msg = (
                    f"{stage.name} reads {name!r}, which no operator before it makes "
                    f"(made so far: {known}); change --input-name or add a loader"
                )
                raise OptionError(msg)
        made.update(stage.outputs)
        if isinstance(stage.body, RemovesItems):
            made.difference_update(stage.body.removes)


def check_places(operators: Sequence[Operator]) -> None:
    """Refuse operators that write where another one writes or reads.

    Raises:
        OptionError: names both, and the place.
    """
    writers: dict[str, str] = {}
    for stage in operators:
        body = stage.body
        several = body.destinations if isinstance(body, WritesToSeveral) else ()
        for place in several or ((body.destination,) if isinstance(body, WritesTo) else ()):
            if place in writers:
                msg = (
                    f"{stage.name} writes to {place}, where {writers[place]} writes already "
                    "and would be overwritten; give one of them another name"
                )
                raise OptionError(msg)
            writers[place] = stage.name
    for stage in operators:
        origin = stage.body.origin if isinstance(stage.body, ReadsFrom) else None
        if origin in writers:
            msg = (
                f"{writers[origin]} writes to {origin}, which {stage.name} reads: tasks would "
                "read what others have written already; write to another volume or mip"
            )
            raise OptionError(msg)
