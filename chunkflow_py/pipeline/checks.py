"""What is wrong with a line whatever its tasks: names of items, and places that are written to."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import same_size_nm
from chunkflow_py.core.interrupts import Interrupted, marked_interrupts
from chunkflow_py.errors import ChunkError, ChunkflowError, OperatorError, OptionError
from chunkflow_py.pipeline.hooks import RemovesItems, TakesAnySize, places_read, places_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.volume.array_identity import ArrayAddress


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


def check_sizes(stage: Operator, sizes: Mapping[str, Sequence[float] | None]) -> None:
    """Refuse inputs of one operator whose voxels are not of one size.

    Args:
        stage: the operator.
        sizes: of its inputs by their names, nanometres, zyx; ``None`` where it is not known.

    Raises:
        ChunkError: names two inputs and their sizes.
    """
    known = [(name, size) for name, size in sizes.items() if size is not None]
    if isinstance(stage.body, TakesAnySize) and stage.body.any_voxel_size:
        return
    for name, size in known[1:]:
        first, other = known[0]
        if not same_size_nm(size, other):
            msg = (
                f"{stage.name} takes {first!r} with voxels of {tuple(other)} nm and {name!r} with "
                f"voxels of {tuple(size)} nm (zyx); load both at one resolution (--mip), or "
                "correct the one that is wrong by --voxel-size of its loader"
            )
            raise ChunkError(msg)


def check_places(operators: Sequence[Operator], *, in_place: bool = False) -> None:
    """Refuse operators that write where another one writes or reads.

    Args:
        operators: of the line.
        in_place: a loader may read what a saver replaces, if it reads no more than a task's box.

    Raises:
        OptionError: names both, and the place.
    """
    from chunkflow_py.volume.array_identity import ArrayAddress

    writers: list[tuple[str, ArrayAddress]] = []
    for stage in operators:
        for place in map(ArrayAddress.parse, places_written(stage.body)):
            for name, other in writers:
                if place.is_same(other):
                    msg = (
                        f"{stage.name} writes to {_both(place, other)}, where {name} writes "
                        "already and would be overwritten; give one of them another name"
                    )
                    raise OptionError(msg)
            writers.append((stage.name, place))
    for stage in operators:
        for origin in map(ArrayAddress.parse, places_read(stage.body) if writers else ()):
            for name, place in writers:
                if place.is_same(origin) and not (in_place and _reads_its_box(stage)):
                    remedy = (
                        "with --in-place read no margin (--expand-margin-size 0 0 0), or write to "
                        "another volume or mip"
                        if in_place
                        else "write to another volume or mip, or, in a line that is no run, put "
                        "--in-place before the first command"
                    )
                    msg = (
                        f"{name} writes to {_both(place, origin)}, which {stage.name} reads: tasks "
                        f"would read what others have written already; {remedy}"
                    )
                    raise OptionError(msg)


def _reads_its_box(stage: Operator) -> bool:
    """Return whether an operator is a loader that reads a task's box and nothing around it."""
    cutout = getattr(stage.body, "cutout", None)
    return cutout is not None and cutout.margin == (0, 0, 0)


def _both(place: ArrayAddress, other: ArrayAddress) -> str:
    """Return a place for a message, with another address of it."""
    from chunkflow_py.store.store_address import without_secrets

    shown = without_secrets(place.text)
    same = place.text == other.text
    return shown if same else f"{shown} (that is {without_secrets(other.text)})"
