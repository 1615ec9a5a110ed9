"""Say how far a run is.

Tasks that ended are counted from the run's records; what waits or is being worked on is what the
queue says, which for SQS is about right.

Example: chunkflow status s3://bucket/affinity.run --json
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.verbs import verb

if TYPE_CHECKING:
    from collections.abc import Callable


@verb
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one object of JSON.")
@click.option(
    "--failed",
    "most",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many failed tasks to list with their reasons.",
)
@click.option("--failures", is_flag=True,
              help="List also the attempts on these tasks, and on those that will be tried again: "
                   "class, worker, reason and traceback; --json has them always.")  # fmt: skip
def command(run: str, as_json: bool, most: int, failures: bool) -> Callable[[], None]:
    """Take the options; the run is opened when the verb acts."""

    def act() -> None:
        from chunkflow_py.run.home import RunHome
        from chunkflow_py.run.status import status_of

        status = status_of(RunHome.parse(run), most, attempts=failures or as_json)
        if as_json:
            click.echo(json.dumps(status.to_json()))
        else:
            click.echo("\n".join(status.words()))

    return act
