r"""Write an HTML report of a run: times, cost, errors.

The report contains the spec of the run with its hashes, the time of each operator, throughput,
workers, cost per teravoxel, failures with tracebacks, slices of input and output, and measurements
of seams between tasks. The report is a single file that has no scripts and loads no other files, so
it can be archived with the data. The run is not changed. With --verify, the exit code is 1 if a
stored object is missing or damaged, or a task is not done.

Example: chunkflow report s3://bucket/affinity.run --output affinity.html --instance g5.xlarge \
  --spot
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import check_spot, price_options
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.params import zyx_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chunkflow_py.core.geometry import Zyx


# fmt: off
@subcommand
@click.argument("run")
@click.option("--output", "-o", default="report.html", show_default=True,
              type=click.Path(dir_okay=False),
              help="HTML file to write; an existing file is replaced.")
@price_options("Price of a worker in dollars per hour.  [default: the price of --instance]")
@zyx_option("--at", help="Point through which the slices are cut, zyx, in voxels at the resolution "
                         "of the tasks.  [default: the middle of all tasks]")
@click.option("--faces", type=click.IntRange(min=0, max=10_000), default=32, show_default=True,
              help="Largest number of task boundaries along each axis at which seams are "
                   "measured; 0: measure none.")
@click.option("--failed", type=click.IntRange(min=0), default=20, show_default=True,
              help="Number of failed tasks to list with their tracebacks.")
@click.option("--verify", is_flag=True,
              help="Check all stored output against its records, as chunkflow verify does.")
def command(
    run: str, output: str, price: float | None, instance: str | None, spot: bool,
    price_file: Path | None, at: Zyx | None, faces: int, failed: int, verify: bool,
) -> Callable[[], None]:
    """Check the options, and return the function that writes the report."""
    # fmt: on
    check_spot(instance, spot=spot)

    def act() -> None:

        from chunkflow_py.monitor.report.report_page import page_of
        from chunkflow_py.monitor.report.run_report import ReportOptions, report_of
        from chunkflow_py.planning.prices import load_prices
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.local_files import write_whole

        prices, hour = load_prices(price_file), price
        if instance is not None and hour is None:
            machine = prices.instance(instance)
            hour = machine.spot_hour if spot else machine.hour
        options = ReportOptions(at, faces, failed, verify, hour, prices)
        report = report_of(RunDirectory.parse(run), options)
        write_whole(output, page_of(report).encode())
        echo(output)
        click.get_current_context().exit(1 if report.damages else 0)

    return act
