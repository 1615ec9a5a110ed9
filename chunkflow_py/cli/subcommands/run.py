"""Submit and carry out a run on this machine or Dask.

The same as submit and work in one: what is done is recorded, and the same line again goes on where
this one stopped. The exit code is 0 if the run is complete, 1 if it is complete but for failures,
75 if it stopped with work left, and 2 if the line cannot be carried out here.

Example: chunkflow run --on local:4 --run file:///data/affinity.run

The line follows these options: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.failed import worker_fails_in_order
from chunkflow_py.cli.subcommands import pipeline_subcommand, refuse_dry_run
from chunkflow_py.cli.working import working_from, working_options
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import Part


@pipeline_subcommand
@click.option(
    "--on",
    "place",
    required=True,
    metavar="WHERE",
    help="local:N, N processes of this machine; or dask://HOST:PORT, a scheduler.",
)
@click.option(
    "--run", metavar="URL", help="Where the run is kept.  [default: beside the output, OUTPUT.run]"
)
@click.option(
    "--clear-output",
    is_flag=True,
    help="Delete what other runs have stored inside the boxes of this run's tasks.",
)
@working_options()  # fmt: skip
def command(
    place: str, run: str | None, clear_output: bool, **options: Any
) -> Callable[[Sequence[Part]], None]:
    """Check the options; all is done when the whole line has been read."""
    refuse_dry_run()
    kind, _, rest = place.partition(":")
    if kind == "local" and is_digits(rest) and int(rest):
        options["processes"] = int(rest)
    elif kind != "dask" or not rest.startswith("//"):
        msg = f"--on {place} is neither local:N nor dask://HOST:PORT; local:4 takes 4 processes"
        raise OptionError(msg)
    elif options["metrics_port"] is not None:
        msg = f"--metrics-port is of local processes, and --on {place} has its own; leave it out"
        raise OptionError(msg)
    working = working_from(options)

    def act(parts: Sequence[Part]) -> None:
        from chunkflow_py.cli.run_pipelines import stage_lines, worker_line
        from chunkflow_py.cli.worker_report import WorkerReport, tell_exit
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.submit import default_queue, default_run, submit

        context = click.get_current_context()
        root = context.find_root().params
        with worker_fails_in_order():
            lines = stage_lines(parts, None, mip=root["mip"], device_class="same")
            home = RunDirectory.parse(run or default_run(lines[-1].operators))
            if kind == "local":
                from chunkflow_py.run.worker.worker import work

                queue = default_queue(home.url)
                submit(home, lines, queue, rehearse=False, clear_output=clear_output)
                with WorkerReport(home, root | options) as report:
                    code, message = work(home, working(), worker_line, report)
            else:
                from chunkflow_py.run.dask.dask_run import run_on_dask

                submit(home, lines, "", rehearse=False, clear_output=clear_output)
                code, message = run_on_dask(home, f"tcp:{rest}", worker_line, working())
        tell_exit(code, message)
        context.exit(code)

    return act
