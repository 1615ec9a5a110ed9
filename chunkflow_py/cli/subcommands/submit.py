"""Check a pipeline, make a run of it, send its tasks.

The pipeline begins with generate-tasks, as it would without submit. submit creates the output
volumes and stores the pipeline, the network and the address of the queue in the run directory
(--run). Workers need only the address of this directory. To continue an interrupted submission, run
the same command again.

Example: chunkflow submit --run s3://bucket/affinity.run --queue sqs://affinity

After these options, write the pipeline: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import clear_output_option, run_option
from chunkflow_py.cli.subcommands import pipeline_subcommand, refuse_dry_run
from chunkflow_py.cli.subcommands.tune import MemoryType
from chunkflow_py.pipeline.terminal import echo, option_headings
from chunkflow_py.tasks.checkerboard import USUAL_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import CommandPart


# fmt: off
@pipeline_subcommand
@option_headings(
    {
        "Queue": ("queue", "create_queue", "shared_queue", "workers"),
        "Steps": ("stage", "fork"),
        "Exchange of patches": ("exchange", "exchange_limit"),
        "Workers": ("budget", "priority", "sign_key"),
    }
)
@run_option()
@click.option("--queue", "-q", metavar="URL",
              help="Queue to send tasks to: sqs://NAME, file:///shared/folder or sqlite:///file.  "
                   "[default: a SQLite file in the run directory, if that is a local folder]")
@click.option("--create-queue/--no-create-queue", default=True, show_default=True,
              help="If the queue or its dead-letter queue does not exist, create it.")
@click.option("--shared-queue", is_flag=True,
              help="Accept a queue that contains tasks of another run. The workers of the two runs "
                   "then delay each other.")
@click.option("--workers", type=click.IntRange(min=1), default=USUAL_WORKERS, show_default=True,
              help="Expected number of simultaneous worker processes, on all machines. If tasks "
                   "share patches, the order in which tasks are sent depends on this number.")
@click.option("--stage",
              help="Name of the first step.  [default: its last operator that runs a network, else "
                   "its last operator that computes]")
@click.option("--fork", metavar="URL",
              help="Reuse the output of the run at this address, for steps whose output would be "
                   "the same.")
@click.option("--device-class", type=click.Choice(["same", "any"]), default="same",
              show_default=True,
              help="same: refuse workers on machines that would compute different bytes; any: "
                   "accept all machines, whose results agree only within a tolerance.")
@click.option("--exchange", metavar="auto|on|off|URL",
              help="Let tasks exchange the patches that they share, so that each patch is computed "
                   "once. on: store them in the run directory; URL: store them in this folder or "
                   "bucket, which all workers share; auto: like on, but a worker process stops "
                   "the exchange if computing the patches is faster.  [default: auto]")
@click.option("--exchange-limit", type=MemoryType(), metavar="SIZE",
              help="Largest size of the exchange of a step, such as 100GB. At this size, tasks "
                   "store no more patches.  [default: on a disk, half of the free space; in a "
                   "bucket, no limit]")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="AMOUNT",
              help="Limit of the cost of all workers together. At the limit, workers take no more "
                   "tasks. Each worker needs --cost-per-hour, in the same currency.  [default: no "
                   "limit]")
@click.option("--priority", type=int, metavar="NUMBER",
              help="Priority of the run. Workers that serve several runs take tasks of the run "
                   "with the highest priority first.  [default: 0]")
@click.option("--sign-key", metavar="FILE",
              help="Sign the run with the Ed25519 private key in this PEM file. Workers with the "
                   "public key in --trust-key then execute model files and plugins of the run.")
@clear_output_option()
@click.option("--rehearse/--no-rehearse", default=True, show_default=True,
              help="Load the network on this machine, to estimate the memory of a worker process.")
def command(
    run: str | None, queue: str | None, create_queue: bool, shared_queue: bool, stage: str | None,
    fork: str | None, device_class: str, exchange: str | None, exchange_limit: int | None,
    clear_output: bool, rehearse: bool, workers: int, budget: float | None, priority: int | None,
    sign_key: str | None,
) -> Callable[[Sequence[CommandPart]], None]:
    """Return the function that submits the pipeline after the options of ``submit``."""
    # fmt: on
    refuse_dry_run()

    def act(parts: Sequence[CommandPart]) -> None:
        from chunkflow_py.cli.run_pipelines import step_pipelines
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.submit import default_queue, default_run, submit

        mip = click.get_current_context().find_root().params["mip"]
        steps = step_pipelines(parts, stage, mip=mip, device_class=device_class)
        run_directory = RunDirectory.parse(run or default_run(steps[-1].operators))
        submission = submit(
            run_directory,
            steps,
            queue or default_queue(run_directory.url),
            create_queue=create_queue,
            shared_queue=shared_queue,
            fork=None if fork is None else RunDirectory.parse(fork),
            rehearse=rehearse,
            clear_output=clear_output,
            exchange=exchange,
            exchange_limit=exchange_limit,
            workers=workers,
            budget=budget,
            priority=priority,
            sign_key=sign_key,
        )
        for line in submission.summary():
            echo(line)

    return act
