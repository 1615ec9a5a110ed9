"""Check all that a run stored against its records.

Lists what is missing, damaged or not done; the exit code is 1 if there is any. Everything that was
stored is read again.

Example: chunkflow verify s3://bucket/affinity.run
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one object of JSON a finding.")
def command(run: str, as_json: bool) -> Callable[[], None]:
    """Take the options; the run is opened when the subcommand acts."""

    def act() -> None:
        from chunkflow_py.run.repair import damages_of
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.store_address import public, public_json

        found = 0
        again: dict[str, None] = {}  # what does something about it, in the order of the findings
        for stage, damage in damages_of(home := RunDirectory.parse(run)):
            found += 1
            again[f"chunkflow {damage.remedy} {shlex.quote(home.url)}"] = None
            if as_json:
                echo(json.dumps(public_json(damage.to_json(stage))))
            else:
                echo(public(f"{stage} {damage}"))
        if home.spec.is_older:
            echo(
                f"{home.shown}: metadata, and whether records name all that their tasks stored, "
                f"are not checked: recorded by an older version ({home.spec.version})",
                err=as_json,
            )
        elif found:
            echo(f"{found} findings; to do them again: {', '.join(again)}", err=True)
        else:
            tasks = sum(stage.tasks for stage in home.spec.steps)
            echo(
                f"{home.shown}: verified: all {tasks} tasks are recorded, and all recorded objects "
                "are present and match their checksums",
                err=as_json,
            )
        click.get_current_context().exit(1 if found or home.spec.is_older else 0)

    return act
