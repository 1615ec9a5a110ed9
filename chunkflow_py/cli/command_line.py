"""Read a command line without running it: one that a run has stored, or one in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.operator import Operator, Source


def read_line(argv: Sequence[str], *, mip: int = 0) -> list[Operator | Source]:
    """Return the operators of a command line, without running them.

    Args:
        argv: of the pipeline, without global options.
        mip: the global option ``--mip``.

    Raises:
        OptionError: the line cannot be read.
    """
    from chunkflow_py.cli.main import OperatorGroup, cli

    reader = OperatorGroup("chunkflow", chain=True, params=cli.params)
    try:
        stages = reader.main(
            ["--mip", str(mip), *argv], prog_name="chunkflow", standalone_mode=False
        )
    except click.ClickException as error:
        raise OptionError(error.format_message()) from error
    return list(stages)
