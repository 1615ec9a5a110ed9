"""Carry out tasks of a run on this machine.

RUN is the address that submit prints. The worker reads the pipeline, the network and the address of
the queue from the run directory at this address. Workers may be started and killed at any time, on
any number of machines. The exit code is 0 if the run is complete, 1 if it is complete except for
failed tasks, 2 if the worker refuses the run, 70 after an unexpected error, and 75 if the worker
stopped before all tasks were done.

If RUN is a prefix that ends with a slash, such as s3://bucket/runs/, the worker takes tasks of all
runs below this prefix, first from the run with the highest priority (submit --priority). Runs that
are submitted after the start of the worker are included. If a run below the prefix executes model
files or plugins, the worker refuses the run, unless it was signed (submit --sign-key) with a key of
--trust-key.

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
@click.argument("run", metavar="RUN")
@click.option("--trust-key", metavar="FILE",
              help="PEM file with Ed25519 public keys. Refuse a run if none of these keys matches "
                   "its signature.")  # fmt: skip
@working_options()
def command(run: str, trust_key: str | None, **options: Any) -> Callable[[], None]:
    """Check the options, and return the function that executes the tasks of the run."""
    refuse_dry_run()
    working = working_from(options)

    def act() -> None:
        from chunkflow_py.cli.run_pipelines import pipeline_of_step
        from chunkflow_py.cli.worker_report import WorkerReport, report_exit
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.run_prefix import RunPrefix, is_run_prefix
        from chunkflow_py.run.worker.run_pool import RunPool, work_on_pool
        from chunkflow_py.run.worker.worker import work

        context = click.get_current_context()
        values = context.find_root().params | options
        with worker_fails_in_order():
            keys = None
            if trust_key is not None:
                from chunkflow_py.run.signatures import TrustedKeys

                keys = TrustedKeys(trust_key)
            if is_run_prefix(run):
                pool = RunPool(RunPrefix(run), keys)
                with WorkerReport(None, values) as report:
                    code, message = work_on_pool(pool, working(), pipeline_of_step, report)
            else:
                run_directory = RunDirectory.parse(run)
                if keys is not None:
                    keys.check(run_directory)
                with WorkerReport(run_directory, values) as report:
                    code, message = work(run_directory, working(), pipeline_of_step, report)
        report_exit(code, message)
        context.exit(code)

    return act
