"""Submit and carry out a run on this machine or Dask.

run combines submit and work. Finished tasks are recorded, so running the same command again
continues an interrupted run. The exit code is 0 if the run is complete, 1 if it is complete except
for failed tasks, 2 if the pipeline or this machine is refused, 70 after an unexpected error, and 75
if the run stopped before all tasks were done.

Example: chunkflow run --on local:4 --run file:///data/affinity.run

After these options, write the pipeline: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.failed import worker_fails_in_order
from chunkflow_py.cli.shared_options import clear_output_option, run_option
from chunkflow_py.cli.subcommands import pipeline_subcommand, refuse_dry_run
from chunkflow_py.cli.working import working_from, working_options
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import CommandPart


@pipeline_subcommand
@click.option(
    "--on",
    "place",
    required=True,
    metavar="WHERE",
    help="Where to run tasks: local:N, in N processes on this machine, or dask://HOST:PORT, on the "
    "workers of this Dask scheduler.",
)
@run_option()
@clear_output_option()
@working_options()  # fmt: skip
def command(
    place: str, run: str | None, clear_output: bool, **options: Any
) -> Callable[[Sequence[CommandPart]], None]:
    """Check the options, and return the function that submits and executes the run."""
    refuse_dry_run()
    kind, _, rest = place.partition(":")
    if kind == "local" and is_digits(rest) and int(rest):
        options["processes"] = int(rest)
    elif kind != "dask" or not rest.startswith("//"):
        msg = (
            f"--on {place} is neither local:N nor dask://HOST:PORT; give --on local:4 to use 4 "
            "processes on this machine"
        )
        raise OptionError(msg)
    elif options["metrics_port"] is not None:
        msg = (
            f"--metrics-port serves metrics of local processes only, but --on {place} uses Dask, "
            "which serves metrics of its own; leave --metrics-port out"
        )
        raise OptionError(msg)
    working = working_from(options)

    def act(parts: Sequence[CommandPart]) -> None:
        from chunkflow_py.cli.run_pipelines import pipeline_of_step, run_here, step_pipelines
        from chunkflow_py.cli.worker_report import report_exit
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.submit import default_run

        context = click.get_current_context()
        root = context.find_root().params
        with worker_fails_in_order():
            steps = step_pipelines(parts, None, mip=root["mip"], device_class="same")
            run_directory = RunDirectory.parse(run or default_run(steps[-1].operators))
            if kind == "local":
                code, message = run_here(
                    run_directory, steps, working(), root | options, clear_output=clear_output
                )
            else:
                from chunkflow_py.run.dask.dask_run import run_on_dask
                from chunkflow_py.run.submit import submit

                submit(run_directory, steps, "", rehearse=False, clear_output=clear_output)
                code, message = run_on_dask(
                    run_directory, f"tcp:{rest}", pipeline_of_step, working()
                )
        report_exit(code, message)
        context.exit(code)

    return act
