"""Show or change the priority of a run.

Workers that serve several runs (work s3://bucket/runs/) take tasks of the run with the highest
priority first. Workers notice a change within 30 seconds. Without NUMBER, the command changes
nothing.

Example: chunkflow priority s3://bucket/runs/affinity.run 5
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
@click.argument("number", required=False, type=int, metavar="[NUMBER]")
def command(run: str, number: int | None) -> Callable[[], None]:
    """Return the function that prints the priority, after changing it to *number* if given."""
    if number is not None:
        refuse_dry_run()

    def act() -> None:
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.scheduling import change_scheduling, scheduling_of

        run_directory = RunDirectory.parse(run)
        _ = run_directory.spec  # there must be a run
        if number is not None:
            change_scheduling(run_directory.store, priority=number)
        now = scheduling_of(run_directory.store)
        suffix = ", paused" if now.paused else ""
        echo(f"{run_directory.shown}: priority {now.priority}{suffix}")

    return act
