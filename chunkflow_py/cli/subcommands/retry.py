"""Send failed tasks of a run again.

A failed task is a task whose last allowed attempt failed. For each failed task, retry sets the
number of failed attempts to 0, so that workers try the task as often as a new task.

Example: chunkflow retry s3://bucket/affinity.run --failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import refuse_dry_run, subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
@click.option("--failed", is_flag=True, help="Retry all failed tasks. This option is required.")
def command(run: str, failed: bool) -> Callable[[], None]:
    """Require --failed, and return the function that sends the failed tasks again."""
    refuse_dry_run()
    if not failed:
        msg = (
            "add --failed to retry the failed tasks; to redo tasks whose output is missing or "
            "damaged, run chunkflow repair"
        )
        raise OptionError(msg)

    def act() -> None:
        from chunkflow_py.cli.run_pipelines import sent_again
        from chunkflow_py.run.repair import retry_run
        from chunkflow_py.run.run_directory import RunDirectory

        count = retry_run(run_directory := RunDirectory.parse(run))
        echo(sent_again(count, run_directory))

    return act
