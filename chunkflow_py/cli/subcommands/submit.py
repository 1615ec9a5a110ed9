"""Check a pipeline, make a run of it, send its tasks.

The line begins with generate-tasks, as when it is tried on a laptop. What it writes to is created;
pipeline, network and queue are kept at --run, so that its address is all that workers need. The
same line again goes on where a broken submission stopped.

Example: chunkflow submit --run s3://bucket/affinity.run --queue sqs://affinity

The line follows these options: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import pipeline_subcommand, refuse_dry_run
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import Part


# fmt: off
@pipeline_subcommand
@click.option("--run", metavar="URL",
              help="Where the run is kept.  [default: beside the output, OUTPUT.run]")
@click.option("--queue", "-q", metavar="URL",
              help="Queue of the tasks: sqs://NAME, file:///shared/folder, sqlite:///file.  "
                   "[default: sqlite in the run, where that is a folder]")
@click.option("--create-queue/--no-create-queue", default=True, show_default=True,
              help="Make the queue, and that of its dead letters, unless they are there.")
@click.option("--shared-queue", is_flag=True,
              help="Take a queue that holds tasks of another run, though workers of both wait.")
@click.option("--stage", help="Name of the first stage.  [default: that of its main operator]")
@click.option("--fork", metavar="URL",
              help="Take over the stages of this run whose output would be the same.")
@click.option("--device-class", type=click.Choice(["same", "any"]), default="same",
              show_default=True,
              help="same: all workers give the same bytes, others are refused; any: a mixed fleet, "
                   "within a tolerance.")
@click.option("--clear-output", is_flag=True,
              help="Delete what other runs have stored inside the boxes of this run's tasks.")
@click.option("--rehearse/--no-rehearse", default=True, show_default=True,
              help="Load the network here, to estimate the memory of a worker.")
def command(
    run: str | None, queue: str | None, create_queue: bool, shared_queue: bool, stage: str | None,
    fork: str | None, device_class: str, clear_output: bool, rehearse: bool,
) -> Callable[[Sequence[Part]], None]:
    """Take the options; the run is made when the pipeline has been read."""
    # fmt: on
    refuse_dry_run()

    def act(parts: Sequence[Part]) -> None:
        from chunkflow_py.cli.run_pipelines import stage_lines
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.submit import default_queue, default_run, submit

        mip = click.get_current_context().find_root().params["mip"]
        lines = stage_lines(parts, stage, mip=mip, device_class=device_class)
        home = RunDirectory.parse(run or default_run(lines[-1].operators))
        submission = submit(
            home,
            lines,
            queue or default_queue(home.url),
            create_queue=create_queue,
            shared_queue=shared_queue,
            fork=None if fork is None else RunDirectory.parse(fork),
            rehearse=rehearse,
            clear_output=clear_output,
        )
        for line in submission.summary():
            echo(line)

    return act
