"""Add up and print what compute-statistics stored.

The table has a line for each channel. --output writes the statistics file that
`inference --normalize zscore|percentile --normalize-statistics FILE` takes.

Example: chunkflow sum-statistics raw-statistics --output statistics.json
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


@subcommand
@click.argument("url")
@click.option("--output", "-o", metavar="FILE", help="Write the statistics into this file, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one object of JSON.")
@click.option("--percentiles", "-p", metavar="P,P,…",
              help="Percentiles to tell, 0 to 100, in JSON.  "
                   "[default: 0,0.1,1,2,5,50,95,98,99,99.8,99.9,100]")  # fmt: skip
def command(
    url: str, output: str | None, as_json: bool, percentiles: str | None
) -> Callable[[], None]:
    """Check the percentiles; the counts are read when the subcommand acts."""
    wanted = None if percentiles is None else _percentiles(percentiles)

    def act() -> None:
        from chunkflow_py.core.histogram import PERCENTILES
        from chunkflow_py.filters.volume_statistics import (
            VolumeStatistics,
            statistics_document,
            table,
        )
        from chunkflow_py.store.local_files import write_whole
        from chunkflow_py.store.task_counts import describe_counts

        histogram, about = VolumeStatistics(url).whole()
        document = statistics_document(histogram, wanted or PERCENTILES)
        if output is not None:
            if (about["coverage"] or 1) < 1:
                logger.warning("%s holds statistics of %s", output, describe_counts(about))
            write_whole(output, (json.dumps(document, indent=2) + "\n").encode())
        if as_json:
            more = {"not_finite": histogram.not_finite, **about}
            echo(json.dumps(document | {"counted": more}))
            return
        echo(f"{describe_counts(about)}; {about['dtype']} voxels")
        echo(table(document["channels"]))
        if histogram.not_finite:
            echo(f"{histogram.not_finite} voxels are NaN or infinite and do not count")

    return act


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= value <= 100 for value in found):
        msg = f"--percentiles {text!r} is not a list of numbers from 0 to 100; write 1,50,99"
        raise OptionError(msg)
    return found
