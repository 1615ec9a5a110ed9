"""Redo only missing or damaged tasks of a run.

repair checks the run as verify does. It restores damaged metadata of the outputs. If the output of
a task is missing or damaged, repair sends the task to the queue again. Wrong objects that the
repeated tasks would not overwrite are removed. A running worker, or a worker that you start later,
executes the tasks.

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
    """Return the function that repairs the run."""
    refuse_dry_run()

    def act() -> None:
        from chunkflow_py.cli.run_pipelines import pipeline_of_step, sent_again
        from chunkflow_py.run.repair import repair_run
        from chunkflow_py.run.run_directory import RunDirectory

        done = repair_run(run_directory := RunDirectory.parse(run), pipeline_of_step)
        for address in done.restored:
            echo(f"restored metadata at {address}")
        if removed := len(done.removed):
            objects = "object" if removed == 1 else "objects"
            echo(f"removed {removed} {objects} that repeated tasks would not overwrite")
        echo(sent_again(done.sent, run_directory))
        for name, count in done.later.items():
            tasks = "task" if count == 1 else "tasks"
            echo(f"step {name}: {count} {tasks} will run again when earlier steps are repaired")

    return act
