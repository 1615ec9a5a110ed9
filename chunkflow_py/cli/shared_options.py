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
    """Declare ``--run``, the address of the run directory of a submitted pipeline."""
    return click.option(
        "--run",
        metavar="URL",
        help="Address of the run directory.  [default: OUTPUT.run, beside the output]",
    )


def clear_output_option() -> Decorator:
    """Declare ``--clear-output``: delete output of other runs in the boxes of this run's tasks."""
    return click.option(
        "--clear-output",
        is_flag=True,
        help="Delete what other runs stored inside the boxes of this run's tasks.",
    )


def json_option(help: str = "Print one JSON object.") -> Decorator:
    """Declare the flag ``--json``, which the command receives as the parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def price_options(price_help: str) -> Decorator:
    """Declare the options for the price of a worker: --price, --instance, --spot, --price-file.

    Args:
        price_help: help of the option ``--price``.
    """
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
    """Declare ``--price-file``, a JSON file with the prices of machine types."""
    return click.option(
        "--price-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="JSON file with prices, instead of the built-in price table.",
    )


def check_spot(instance: str | None, *, spot: bool) -> None:
    """Refuse --spot if no machine type is given.

    Raises:
        OptionError: *spot* is set, but *instance* is ``None``.
    """
    if spot and instance is None:
        msg = (
            "--spot needs a machine type; add --instance, such as g5.xlarge, or give --price "
            "instead of --spot"
        )
        raise OptionError(msg)


def parallel_option(*short: str) -> Decorator:
    """Declare ``--parallel``, for a subcommand that reads and writes volumes.

    Args:
        short: short names of the option.
    """
    return click.option(
        "--parallel",
        *short,
        type=click.IntRange(min=1),
        help="Number of blocks to encode or decode at the same time.  [default: one per core]",
    )


def processes_option() -> Decorator:
    """Declare ``--processes``, for a subcommand whose tasks several processes may run."""
    return click.option(
        "--processes",
        "-n",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of processes that run tasks at the same time.",
    )


def check_processes(processes: int, target: str) -> None:
    """Refuse several processes for an HDF5 file, because only one process can write the file.

    Raises:
        OptionError: *target* is an HDF5 file, and *processes* is greater than 1.
    """
    from chunkflow_py.volume.location import Location

    if processes > 1 and Location.parse(target).format == "h5":
        msg = (
            f"{target} is an HDF5 file, which only one process can write at a time; leave "
            "--processes out, or choose another format, such as zarr"
        )
        raise OptionError(msg)


def task_size_option(help: str) -> Decorator:
    """Declare ``--task-size``, the size of the boxes of a subcommand's tasks."""
    return zyx_option("--task-size", minimum=1, help=help)
