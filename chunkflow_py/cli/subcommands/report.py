"""Write an HTML report of a run: times, cost, errors.

It holds the whole spec with its hashes, times by operator, throughput, workers, cost a teravoxel,
failures with tracebacks, slices of input and output, and whether seams show between tasks. The file
loads nothing and needs no scripts, so that it can be kept with the data. Nothing of the run is
changed. With --verify the exit code is 1 if anything is missing, damaged or not done.

Example: chunkflow report s3://bucket/affinity.run -o affinity.html --instance g5.xlarge --spot
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import zyx_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Zyx


# fmt: off
@subcommand
@click.argument("run")
@click.option("--output", "-o", default="report.html", show_default=True,
              type=click.Path(dir_okay=False), help="File to write; replaced if it is there.")
@click.option("--price", type=click.FloatRange(min=0), metavar="DOLLARS",
              help="Of a worker, an hour.  [default: that of the instance]")
@click.option("--instance", metavar="TYPE",
              help="Type of machine of a worker, such as g5.xlarge, whose price is known.")
@click.option("--spot", is_flag=True, help="The machines were spot instances.")
@click.option("--price-file", type=click.Path(exists=True, dir_okay=False),
              help="A table of prices instead of the one that is here.")
@zyx_option("--at", help="Point through which slices are shown, voxels of the tasks.  [default: "
                         "the middle of the tasks]")
@click.option("--faces", type=click.IntRange(min=0, max=10_000), default=32, show_default=True,
              help="Faces of tasks along each axis at which seams are looked for; 0: none.")
@click.option("--failed", type=click.IntRange(min=0), default=20, show_default=True,
              help="How many failed tasks to list with their tracebacks.")
@click.option("--verify", is_flag=True, help="Read again all that was stored, as verify does.")
def command(
    run: str, output: str, price: float | None, instance: str | None, spot: bool,
    price_file: str | None, at: Zyx | None, faces: int, failed: int, verify: bool,
) -> Callable[[], None]:
    """Check the options; the run is opened when the subcommand acts."""
    # fmt: on
    if spot and instance is None:
        msg = "--spot is about a type of machine; give --instance, such as g5.xlarge, or --price"
        raise OptionError(msg)

    def act() -> None:
        from pathlib import Path

        from chunkflow_py.monitor.report.report_page import page_of
        from chunkflow_py.monitor.report.run_report import ReportOptions, report_of
        from chunkflow_py.planning.prices import load_prices
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.local_files import write_whole

        prices, hour = load_prices(Path(price_file) if price_file else None), price
        if instance is not None and hour is None:
            machine = prices.instance(instance)
            hour = machine.spot_hour if spot else machine.hour
        options = ReportOptions(at, faces, failed, verify, hour, prices)
        report = report_of(RunDirectory.parse(run), options)
        write_whole(output, page_of(report).encode())
        echo(output)
        click.get_current_context().exit(1 if report.damages else 0)

    return act
