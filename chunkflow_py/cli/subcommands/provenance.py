"""Show the version and machine behind each task.

Each worker stores a record when it begins: its version, container image, machine, zone and device.
provenance looks up the worker of each recorded task. Without --at and --json, tasks of workers with
the same versions, image, machine type, zone and device are counted together.

Example: chunkflow provenance s3://bucket/affinity.run --at 100 2048 2048
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.params import zyx_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Zyx


@subcommand
@click.argument("run")
@zyx_option("--at", help="Show only the tasks whose boxes contain this voxel, zyx.")
@json_option("Print each task as a JSON object on a line of its own.")
def command(run: str, at: Zyx | None, as_json: bool) -> Callable[[], None]:
    """Return the function that prints the version and machine of the worker of each task."""

    def act() -> None:
        from chunkflow_py.monitor.provenance import line_of, origins_of, summary_of
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.store_address import public_json

        run_directory = RunDirectory.parse(run)
        origins = origins_of(run_directory, at)
        if as_json:
            for origin in origins:
                echo(json.dumps(public_json(origin.to_json())))
            return
        echo(run_directory.shown)
        if (submission := run_directory.submission) is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(submission.when))
            echo(
                f"  submitted by {submission.user}@{submission.host} at {when} with chunkflow_py "
                f"{submission.version}: {submission.command}"
            )
        lines = list(summary_of(origins) if at is None else map(line_of, origins))
        where = "" if at is None else f" whose box contains {at} (zyx)"
        for line in lines or [f"  no task{where} is recorded"]:
            echo(line)

    return act
