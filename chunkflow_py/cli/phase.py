"""Run a pipeline for a subcommand such as convert: show progress, and list the failed tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.pipeline.pipeline import Pipeline

_MOST_SHOWN = 20  # failures to print


def run_phase(make: Callable[..., Pipeline], description: str) -> None:
    """Run a pipeline on all its tasks, even if some of the tasks fail.

    Args:
        make: function with the parameters ``ahead``, ``listener`` and ``dry_run`` that returns the
            pipeline.
        description: what the pipeline does, for messages, such as ``converting em``.

    Raises:
        ChunkflowError: tasks failed; the errors of the first 20 are printed on stderr.
    """
    from chunkflow_py.cli.progress_report import PipelineReport
    from chunkflow_py.run.whole_volume import run_all

    options: dict[str, Any] = click.get_current_context().find_root().params
    verbose, progress = options["verbose"], options["progress"]
    report = PipelineReport(
        show_progress=False if progress is None and not verbose else progress, show_table=verbose
    )
    pipeline = make(ahead=options["ahead"], listener=report, dry_run=options["dry_run"])
    failed = 0
    for task in run_all(pipeline):
        failed += 1
        if failed <= _MOST_SHOWN:
            echo(f"Error: {task.outcome}", err=True)
        elif failed == _MOST_SHOWN + 1:
            echo(f"Error: more tasks failed; only the first {_MOST_SHOWN} are listed", err=True)
    if failed:
        msg = (
            f"{description}: {failed} of {report.total} tasks failed, and the others are done; fix "
            "the cause and run the same command again"
        )
        raise ChunkflowError(msg)
