"""Carry out tasks of a run on this machine.

RUN is the address that submit prints. The worker reads the pipeline, the network and the address of
the queue from the run directory at this address. Workers may be started and killed at any time, on
any number of machines. The exit code is 0 if the run is complete, 1 if it is complete except for
failed tasks, 2 if the worker refuses the run, 70 after an unexpected error, and 75 if the worker
stopped before all tasks were done.

Example: chunkflow work s3://bucket/affinity.run#sha256=64-DIGITS --processes 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.failed import worker_fails_in_order
from chunkflow_py.cli.subcommands import refuse_dry_run, subcommand
from chunkflow_py.cli.working import working_from, working_options

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
@working_options()
def command(run: str, **options: Any) -> Callable[[], None]:
    """Check the options, and return the function that executes the tasks of the run."""
    refuse_dry_run()
    working = working_from(options)

    def act() -> None:
        from chunkflow_py.cli.run_pipelines import pipeline_of_step
        from chunkflow_py.cli.worker_report import WorkerReport, report_exit
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.worker.worker import work

        context = click.get_current_context()
        with worker_fails_in_order():
            run_directory = RunDirectory.parse(run)
            with WorkerReport(run_directory, context.find_root().params | options) as report:
                code, message = work(run_directory, working(), pipeline_of_step, report)
        report_exit(code, message)
        context.exit(code)

    return act
