"""Parse command lines, such as the pipelines stored in a run, without executing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.operator import Operator, Source


def read_line(argv: Sequence[str], *, mip: int = 0) -> list[Operator | Source]:
    """Return the source and the operators that a command line names, without running them.

    Args:
        argv: arguments of the pipeline, without global options.
        mip: value of the global option ``--mip``.

    Raises:
        OptionError: a command or an option of the command line is unknown or invalid.
    """
    from chunkflow_py.cli.main import OperatorGroup, cli

    reader = OperatorGroup("chunkflow", chain=True, params=cli.params)
    try:
        operators = reader.main(
            ["--mip", str(mip), *argv], prog_name="chunkflow", standalone_mode=False
        )
    except click.ClickException as error:
        raise OptionError(error.format_message()) from error
    return list(operators)
