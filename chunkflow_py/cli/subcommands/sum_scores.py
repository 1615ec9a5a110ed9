"""Score a volume from stored overlaps of its tasks.

evaluate-segmentation --table-path stores the overlaps of the two segmentations in each task. The
sum of these overlaps gives the scores of the whole volume, exactly as if the volume had been
compared in one piece.

Example: chunkflow sum-scores s3://bucket/tables --json
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.ops.options.scoring_options import scoring_options
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("url")
@scoring_options
@json_option()
def command(url: str, as_json: bool, **options: Any) -> Callable[[], None]:
    """Return the function that sums the overlaps of all tasks and prints the scores."""

    def act() -> None:
        from chunkflow_py.segmentation.evaluate import score, score_table
        from chunkflow_py.segmentation.labels.contingency import read_tables
        from chunkflow_py.store.task_counts import describe_counts

        table, about = read_tables(url)
        scores = score(table, **options).as_dict()
        if as_json:
            echo(json.dumps(about | scores))
            return
        echo(score_table(scores, describe_counts(about)))

    return act
