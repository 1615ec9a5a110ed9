"""Check all that a run stored against its records.

verify reads all objects that the tasks stored, and compares the objects with the checksums in the
run's records. It lists missing objects, damaged objects and unfinished tasks. The exit code is 1 if
anything is listed, else 0.

Example: chunkflow verify s3://bucket/affinity.run
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
@json_option("Print each finding as a JSON object on a line of its own.")
def command(run: str, as_json: bool) -> Callable[[], None]:
    """Return the function that verifies the run and prints the findings."""

    def act() -> None:
        from chunkflow_py.run.repair import damages_of
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.store_address import public, public_json

        count = 0
        remedies: dict[str, None] = {}  # commands in the order of the findings, each once
        run_directory = RunDirectory.parse(run)
        for step, damage in damages_of(run_directory):
            count += 1
            remedies[f"chunkflow {damage.remedy} {shlex.quote(run_directory.url)}"] = None
            if as_json:
                echo(json.dumps(public_json(damage.to_json(step))))
            else:
                echo(public(f"{step} {damage}"))
        if run_directory.spec.is_older:
            echo(
                f"{run_directory.shown}: this run was recorded by an older version of "
                f"chunkflow_py ({run_directory.spec.version}), so verify could check neither the "
                "metadata of the outputs nor whether the records are complete",
                err=as_json,
            )
        elif count:
            findings = "finding" if count == 1 else "findings"
            echo(f"{count} {findings}; to redo these tasks: {', '.join(remedies)}", err=True)
        else:
            tasks = sum(step.tasks for step in run_directory.spec.steps)
            echo(
                f"{run_directory.shown}: verified: all {tasks} tasks are recorded, and all "
                "recorded objects are present and match their checksums",
                err=as_json,
            )
        click.get_current_context().exit(1 if count or run_directory.spec.is_older else 0)

    return act
