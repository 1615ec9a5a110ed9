"""Stop workers from taking more tasks of a run.

Workers finish the tasks that they have begun. Workers notice the pause within 30 seconds; they exit
with code 75, unless they were started with --no-until-complete. Workers that serve several runs
(work s3://bucket/runs/) continue with the other runs.

Example: chunkflow pause s3://bucket/affinity.run
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
    """Return the function that pauses the run."""
    refuse_dry_run()

    def act() -> None:
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.scheduling import change_scheduling

        run_directory = RunDirectory.parse(run)
        _ = run_directory.spec  # there must be a run
        change_scheduling(run_directory.store, paused=True)
        echo(f"{run_directory.shown} is paused")

    return act
