"""Combine the stored intensity statistics of tasks.

compute-statistics stores the statistics of each task. sum-statistics prints a table of the whole
volume, with a line for each channel. With --output, it also writes the file that
`inference --normalize zscore|percentile --normalize-statistics FILE` reads.

Example: chunkflow sum-statistics raw-statistics --output statistics.json
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


@subcommand
@click.argument("url")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="JSON file to write the statistics to, in addition to printing them.",
)
@json_option()
@click.option("--percentiles", "-p", metavar="P,P,…",
              help="Percentiles to compute for --output and --json, each from 0 to 100.  "
                   "[default: 0,0.1,1,2,5,50,95,98,99,99.8,99.9,100]")  # fmt: skip
@click.option("--time", type=click.IntRange(min=0),
              help="Combine only the statistics of this time point.  [default: all]")  # fmt: skip
@click.option("--foreground", is_flag=True,
              help="Use only the smallest box that contains all voxels other than 0. The box is "
                   "recorded in the file. Networks of nnU-Net process only this "
                   "box.")  # fmt: skip
def command(
    url: str,
    output: str | None,
    as_json: bool,
    percentiles: str | None,
    time: int | None,
    foreground: bool,
) -> Callable[[], None]:
    """Check the percentiles, and return the function that combines and prints the statistics."""
    chosen = None if percentiles is None else _percentiles(percentiles)

    def act() -> None:
        from chunkflow_py.core.histogram import PERCENTILES
        from chunkflow_py.filters.volume_statistics import (
            VolumeStatistics,
            statistics_document,
            table,
        )
        from chunkflow_py.store.local_files import write_whole
        from chunkflow_py.store.task_counts import describe_counts

        statistics = VolumeStatistics(url, time)
        histogram, about = statistics.whole()
        box = None
        if foreground:
            histogram, box = statistics.foreground(histogram, about)
        known = about.pop("foreground")
        del about["masked"]
        document = statistics_document(histogram, chosen or PERCENTILES, box)
        if output is not None:
            if (about["coverage"] or 1) < 1:
                logger.warning(
                    "the statistics in %s are incomplete: they cover only %s",
                    output,
                    describe_counts(about),
                )
            write_whole(output, (json.dumps(document, indent=2) + "\n").encode())
        if as_json:
            more = {"not_finite": histogram.not_finite, **about}
            echo(json.dumps(document | {"counted": more}))
            return
        echo(f"{describe_counts(about)}; {about['dtype']} voxels")
        echo(table(document["channels"]))
        if known is not None:
            part = "; the statistics are those of this box" if foreground else ""
            echo(f"all voxels other than 0 lie in {known} (z, y and x){part}")
        if histogram.not_finite:
            echo(f"{histogram.not_finite} voxels are NaN or infinite and are not in the statistics")

    return act


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        percentiles = tuple(float(part) for part in text.split(","))
    except ValueError:
        percentiles = ()
    if not percentiles or not all(0 <= value <= 100 for value in percentiles):
        msg = (
            f"--percentiles {text!r} is not a list of numbers from 0 to 100 with commas between "
            "them; write, for example, 1,50,99"
        )
        raise OptionError(msg)
    return percentiles
