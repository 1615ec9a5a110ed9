"""Options that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import Decorator, zyx_option

if TYPE_CHECKING:
    from collections.abc import Callable


def run_option() -> Decorator:
    """Declare ``--run``, the run directory of a pipeline that is submitted."""
    return click.option(
        "--run",
        metavar="URL",
        help="Address of the run directory.  [default: beside the output, OUTPUT.run]",
    )


def clear_output_option() -> Decorator:
    """Declare ``--clear-output``, which deletes output of other runs."""
    return click.option(
        "--clear-output",
        is_flag=True,
        help="Delete the output of other runs inside the boxes of this run's tasks.",
    )


def json_option(help: str = "Print one JSON object.") -> Decorator:
    """Declare the flag ``--json``, given to the command as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def price_options(price_help: str) -> Decorator:
    """Declare the options for the price of a worker; `check_spot` checks them."""
    options = (
        click.option("--price", type=click.FloatRange(min=0), metavar="DOLLARS", help=price_help),
        click.option(
            "--instance",
            metavar="TYPE",
            help="Machine type of a worker, such as g5.xlarge, to look up its price.",
        ),
        click.option("--spot", is_flag=True, help="Use the spot price of --instance."),
        price_file_option(),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def price_file_option() -> Decorator:
    """Declare ``--price-file``, a table of prices of machine types."""
    return click.option(
        "--price-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Table of prices instead of the built-in one.",
    )


def check_spot(instance: str | None, *, spot: bool) -> None:
    """Refuse --spot without a machine type.

    Raises:
        OptionError: *spot* is set, but *instance* is ``None``.
    """
    if spot and instance is None:
        msg = "--spot needs a machine type; add --instance, such as g5.xlarge, or give --price"
        raise OptionError(msg)


def parallel_option(*short: str) -> Decorator:
    """Declare ``--parallel`` of a subcommand that reads and writes volumes."""
    return click.option(
        "--parallel",
        *short,
        type=click.IntRange(min=1),
        help="Blocks to encode or decode at the same time.  [default: one per core]",
    )


def task_size_option(help: str) -> Decorator:
    """Declare ``--task-size``, the extent of the tasks of a subcommand."""
    return zyx_option("--task-size", minimum=1, help=help)
