"""Let workers take tasks of a paused run again.

Workers with --no-until-complete, and workers that serve several runs (work s3://bucket/runs/), take
tasks again within 30 seconds. All other workers have exited because of the pause, and must be
started again.

Example: chunkflow resume s3://bucket/affinity.run
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
    """Return the function that resumes the run."""
    refuse_dry_run()

    def act() -> None:
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.scheduling import change_scheduling

        run_directory = RunDirectory.parse(run)
        _ = run_directory.spec  # there must be a run
        change_scheduling(run_directory.store, paused=False)
        echo(f"{run_directory.shown} is no longer paused")

    return act
