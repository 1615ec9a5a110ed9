"""Run lines over whole volumes for a subcommand: progress, a list of what failed, the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.pipeline.pipeline import Pipeline

_SHOWN = 20  # failures that are told in full


def run_phase(make: Callable[..., Pipeline], what: str) -> None:
    """Run a line over all its tasks, whatever becomes of single ones.

    Args:
        make: takes ``ahead``, ``listener`` and ``dry_run`` and returns the line.
        what: is done, for the message, such as ``converting em``.

    Raises:
        ChunkflowError: tasks failed; they have been listed on stderr.
    """
    from chunkflow_py.cli.progress_report import PipelineReport
    from chunkflow_py.run.whole_volume import run_all

    options: dict[str, Any] = click.get_current_context().find_root().params
    verbose, progress = options["verbose"], options["progress"]
    report = PipelineReport(
        show_progress=False if progress is None and not verbose else progress, show_table=verbose
    )
    line = make(ahead=options["ahead"], listener=report, dry_run=options["dry_run"])
    failed = 0
    for task in run_all(line):
        failed += 1
        if failed <= _SHOWN:
            echo(f"Error: {task.outcome}", err=True)
        elif failed == _SHOWN + 1:
            echo("Error: further tasks failed, which are not listed", err=True)
    if failed:
        msg = (
            f"{what}: {failed} of {report.total} tasks failed, the others are done; fix the "
            "cause and run the same command again"
        )
        raise ChunkflowError(msg)
