"""Redo only missing or damaged tasks of a run.

Checks as verify does, restores metadata of outputs, removes objects where a task stores nothing,
and sends tasks again to the workers that run or are started afterwards.

Example: chunkflow repair s3://bucket/affinity.run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import refuse_dry_run, subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
def command(run: str) -> Callable[[], None]:
    """Take the address; the run is opened when the subcommand acts."""
    refuse_dry_run()

    def act() -> None:
        from chunkflow_py.cli.run_pipelines import worker_line
        from chunkflow_py.run.repair import repair_run
        from chunkflow_py.run.run_directory import RunDirectory

        done = repair_run(home := RunDirectory.parse(run), worker_line)
        for address in done.restored:
            echo(f"restored {address}")
        if removed := len(done.removed):
            what = "object" if removed == 1 else "objects"
            echo(f"removed {removed} {what} that the tasks would not overwrite")
        count = done.sent
        where = home.spec.queue or "whoever runs the same chunkflow run --on dask://… again"
        echo(f"sent {count} {'task' if count == 1 else 'tasks'} again to {where}")
        for name, tasks in done.later.items():
            what = "task has" if tasks == 1 else "tasks have"
            echo(f"stage {name}: {tasks} {what} read that, and will be done again after it")

    return act
