"""Show the progress of a run.

The numbers of finished and failed tasks come from the run's records. The numbers of waiting and
running tasks come from the queue; SQS reports approximate numbers. With --watch, the status is
updated until all tasks have ended. On a terminal, the text is updated in place; elsewhere, each
change is printed as a new line.
If RUN is a prefix that ends with a slash, such as s3://bucket/runs/, a table shows the runs below
this prefix, in the order in which workers (work s3://bucket/runs/) execute the runs.

Example: chunkflow status s3://bucket/affinity.run --json
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.monitor.run_status import RunStatus

logger = logging.getLogger(__name__)

_WATCH_S = 10.0


@subcommand
@click.argument("run", required=False, metavar="RUN")
@json_option()
@click.option(
    "--failed",
    "most",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Largest number of failed tasks to list, with the reasons of their failures.",
)
@click.option("--failures", is_flag=True,
              help="Also list each failed attempt, with the kind of failure, the worker, the "
                   "reason and the traceback. Attempts of tasks that will be retried are included. "
                   "--json always lists the attempts.")  # fmt: skip
@click.option(
    "--watch",
    is_flag=False,
    flag_value="",
    metavar="[SECONDS]",
    help="Update the status every SECONDS (default: 10) until no task is left.",
)
@click.pass_context
def command(
    ctx: click.Context, run: str | None, as_json: bool, most: int, failures: bool, watch: str | None
) -> Callable[[], None]:
    """Check the value of --watch, and return the function that prints the status."""
    if run is None and watch and _seconds(watch) is None:
        run, watch = watch, ""  # status --watch RUN
    if run is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    seconds = _WATCH_S if watch == "" else _seconds(watch) if watch else None
    if watch and seconds is None:
        msg = (
            f"--watch {watch} is not a number of seconds greater than 0; give, for example, "
            "--watch 10"
        )
        raise click.UsageError(msg, ctx)

    def act() -> None:
        from chunkflow_py.monitor.run_status import status_of
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.run_prefix import RunPrefix, check_has_runs, is_run_prefix

        if is_run_prefix(run):
            from chunkflow_py.monitor.pool_status import pool_status

            if watch:
                msg = (
                    f"--watch shows one run, but {run} ends with a slash and stands for all runs "
                    "below this prefix; give the address of one run, or leave --watch out"
                )
                raise OptionError(msg)
            check_has_runs(prefix := RunPrefix(run))
            pool = pool_status(prefix)
            echo(json.dumps(pool.to_json()) if as_json else "\n".join(pool.lines()))
            return
        run_directory = RunDirectory.parse(run)

        def read_status() -> RunStatus:
            status = status_of(run_directory, most, attempts=failures or as_json)
            # Without this check a deleted run would look like one without finished tasks.
            run_directory.check_not_deleted()
            return status

        if seconds is not None:
            _watch(read_status, seconds, as_json)
        elif as_json:
            echo(json.dumps(status_of(run_directory, most, attempts=True).to_json()))
        else:
            echo("\n".join(status_of(run_directory, most, attempts=failures).lines()))

    return act


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


def _watch(read_status: Callable[[], RunStatus], seconds: float, as_json: bool) -> None:
    """Show the status until all tasks have ended.

    On a terminal, the status is updated in place. Elsewhere, each change is printed on a new line.

    Args:
        read_status: function that reads the current status of the run.
        seconds: time between two readings.
        as_json: whether to print JSON instead of text.
    """
    import sys

    from chunkflow_py.cli.screen import is_terminal

    if is_terminal(sys.stdout) and not as_json:
        _watch_in_place(read_status, seconds)
        return
    before = None
    for status in _statuses(read_status, seconds):
        if (now := _counts(status)) != before:
            echo(json.dumps(status.to_json()) if as_json else _line(status))
        before = now


def _watch_in_place(read_status: Callable[[], RunStatus], seconds: float) -> None:
    import sys
    import time

    from chunkflow_py.cli.screen import Row, Screen

    rows = [Row("reading the run …")]
    with Screen(sys.stdout, lambda: rows):
        for status in _statuses(read_status, seconds):
            head, *rest = status.lines()
            footer = (
                f"  updated at {time.strftime('%H:%M:%S')}, and every {seconds:g} s until no task "
                "is left; press Ctrl-C to stop watching"
            )
            rows = [Row(head, "bold"), *map(Row, rest), Row(footer, "dim")]
    echo("\n".join(status.lines()))


def _statuses(read_status: Callable[[], RunStatus], seconds: float) -> Iterator[RunStatus]:
    """Yield the status every *seconds* s, until all tasks of the run have ended."""
    import time

    from chunkflow_py.errors import TransientError

    while True:
        try:
            status = read_status()
        except TransientError as error:
            logger.warning("%s; the status will be read again in %g s", error, seconds)
        else:
            yield status
            if status.state != "unfinished":
                return
        time.sleep(seconds)


def _counts(status: RunStatus) -> object:
    # A change of a speed is not printed.
    steps = [
        (step.totals.finished, step.totals.dead, step.totals.failures, step.closed)
        for step in status.stages
    ]
    return status.state, steps, status.queue


def _line(status: RunStatus) -> str:
    """Return a status as one line of text that begins with the current date and time."""
    import time
    from dataclasses import replace

    _, *rest = replace(status, failures=(), failing=()).lines()
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{when} {'; '.join([status.state, *(each.strip() for each in rest)])}"
