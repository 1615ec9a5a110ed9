"""Send failed tasks of a run again.

Their failures are forgotten, so that each has all its attempts again.

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
@click.option("--failed", is_flag=True, help="Those that failed; there are no others to retry.")
def command(run: str, failed: bool) -> Callable[[], None]:
    """Take the options; the run is opened when the subcommand acts."""
    refuse_dry_run()
    if not failed:
        msg = "say --failed; chunkflow repair does again what is missing or damaged"
        raise OptionError(msg)

    def act() -> None:
        from chunkflow_py.run.repair import retry_run
        from chunkflow_py.run.run_directory import RunDirectory

        count = retry_run(home := RunDirectory.parse(run))
        where = home.spec.queue or "whoever runs the same chunkflow run --on dask://… again"
        echo(f"sent {count} {'task' if count == 1 else 'tasks'} again to {where}")

    return act
