"""Checks of a pipeline before the first task: item names, voxel sizes and outputs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import same_size_nm
from chunkflow_py.core.interrupts import Interrupted, marked_interrupts
from chunkflow_py.errors import ChunkError, ChunkflowError, OperatorError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.volume.array_identity import ArrayAddress


@contextmanager
def noting(problems: list[ChunkflowError] | None) -> Iterator[None]:
    """Catch an error that the ``with`` block raises, and append the error to *problems*.

    Only errors of this package are caught. If *problems* is ``None``, no error is caught.
    """
    try:
        yield
    except ChunkflowError as error:
        if problems is None:
            raise
        problems.append(error)


@contextmanager
def naming(operator: Operator | Source) -> Iterator[None]:
    """Convert an exception of the ``with`` block to an `OperatorError` that names *operator*.

    Errors of this package and the exception that a stop signal raises are passed on unchanged. If
    a plugin or a library raises ``SystemExit`` or ``KeyboardInterrupt``, this exception is also
    converted, because an operator must not end the process.
    """
    try:
        with marked_interrupts():
            yield
    except (ChunkflowError, Interrupted):
        raise
    except BaseException as error:
        raise OperatorError(operator.name, None, error) from error


def check_names(operators: Iterable[Operator]) -> None:
    """Check that an earlier operator makes each item (chunk, points, …) that an operator reads.

    Raises:
        OptionError: an operator reads an item that no earlier operator makes. The message names
            this item and the items that earlier operators make.
    """
    made: set[str] = set()
    for operator in operators:
        for name in operator.inputs:
            if name not in made:
                known = ", ".join(sorted(made)) or "none"
                msg = (
                    f"{operator.name} reads {name!r}, which no operator before it makes "
                    f"(made so far: {known}); change --input-name or add a loader"
                )
                raise OptionError(msg)
        made.update(operator.outputs)
        made.difference_update(operator.hooks.removes)


def check_sizes(operator: Operator, sizes: Mapping[str, Sequence[float] | None]) -> None:
    """Refuse inputs of one operator that differ in voxel size.

    Args:
        operator: the operator.
        sizes: voxel size of each input by name, nanometres, zyx; ``None`` if unknown.

    Raises:
        ChunkError: the sizes differ; the message names two inputs and their sizes.
    """
    known = [(name, size) for name, size in sizes.items() if size is not None]
    if operator.hooks.any_voxel_size:
        return
    for name, size in known[1:]:
        first, other = known[0]
        if not same_size_nm(size, other):
            msg = (
                f"the inputs of {operator.name} differ in voxel size: {first!r} has {tuple(other)} "
                f"nm and {name!r} has {tuple(size)} nm (zyx); load both at one resolution (--mip), "
                "or give the correct --voxel-size to a loader"
            )
            raise ChunkError(msg)


def check_places(operators: Sequence[Operator], *, in_place: bool = False) -> None:
    """Check that no operator writes to an address that another operator reads or writes.

    Args:
        operators: operators of the pipeline.
        in_place: allow a saver to replace the voxels that a loader reads, if the loader reads
            the task's box without a margin.

    Raises:
        OptionError: two operators conflict; the message names the operators and the address.
    """
    from chunkflow_py.volume.array_identity import ArrayAddress

    writers: list[tuple[str, ArrayAddress]] = []
    for operator in operators:
        for place in map(ArrayAddress.parse, operator.hooks.destinations):
            for name, other in writers:
                if place.is_same(other):
                    msg = (
                        f"{name} and {operator.name} both write to {_both(place, other)}, so one "
                        "would overwrite the output of the other; change the target of "
                        f"{name} or of {operator.name}"
                    )
                    raise OptionError(msg)
            writers.append((operator.name, place))
    for operator in operators:
        for origin in map(ArrayAddress.parse, operator.hooks.origins if writers else ()):
            for name, place in writers:
                if place.is_same(origin) and not (in_place and _reads_its_box(operator)):
                    remedy = (
                        "with --in-place, read no margin (--expand-margin-size 0 0 0), or write to "
                        "another volume or mip"
                        if in_place
                        else "write to another volume or mip, or put --in-place before the first "
                        "command (not possible with submit or with tasks from a queue)"
                    )
                    msg = (
                        f"{name} writes to {_both(place, origin)}, which {operator.name} reads: "
                        f"tasks would read the output of earlier tasks; {remedy}"
                    )
                    raise OptionError(msg)


def _reads_its_box(operator: Operator) -> bool:
    """Return whether an operator is a loader that reads a task's box without a margin."""
    cutout = operator.hooks.cutout
    return cutout is not None and cutout.margin == (0, 0, 0)


def _both(place: ArrayAddress, other: ArrayAddress) -> str:
    from chunkflow_py.store.store_address import without_secrets

    shown = without_secrets(place.text)
    same = place.text == other.text
    return shown if same else f"{shown} (that is {without_secrets(other.text)})"
