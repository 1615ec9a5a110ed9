"""Show the progress of a run.

Tasks that ended are counted from the run's records; what waits or is being worked on is what the
queue says, which for SQS is about right. With --watch it looks again until no task is left: on a
terminal in place, else a line when something has changed.

Example: chunkflow status s3://bucket/affinity.run --json
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.monitor.run_status import RunStatus

logger = logging.getLogger(__name__)

_WATCH_S = 10.0


@subcommand
@click.argument("run", required=False, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one object of JSON.")
@click.option(
    "--failed",
    "most",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many failed tasks to list with their reasons.",
)
@click.option("--failures", is_flag=True,
              help="List also the attempts on these tasks, and on those that will be tried again: "
                   "class, worker, reason and traceback; --json has them always.")  # fmt: skip
@click.option(
    "--watch",
    is_flag=False,
    flag_value="",
    metavar="[SECONDS]",
    help="Look again every so many seconds (10 unless given) until no task is left.",
)
@click.pass_context
def command(
    ctx: click.Context, run: str | None, as_json: bool, most: int, failures: bool, watch: str | None
) -> Callable[[], None]:
    """Take the options; the run is opened when the subcommand acts."""
    if run is None and watch and _seconds(watch) is None:
        run, watch = watch, ""  # status --watch RUN
    if run is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    seconds = _WATCH_S if watch == "" else _seconds(watch) if watch else None
    if watch and seconds is None:
        msg = f"--watch {watch} is not a number of seconds above 0; write --watch 10"
        raise click.UsageError(msg, ctx)

    def act() -> None:
        from chunkflow_py.monitor.run_status import status_of
        from chunkflow_py.run.run_directory import RunDirectory

        home = RunDirectory.parse(run)

        def look() -> RunStatus:
            status = status_of(home, most, attempts=failures or as_json)
            home.check_not_deleted()  # or all that is gone would look like nothing done
            return status

        if seconds is not None:
            _watch(look, seconds, as_json)
        elif as_json:
            echo(json.dumps(status_of(home, most, attempts=True).to_json()))
        else:
            echo("\n".join(status_of(home, most, attempts=failures).lines()))

    return act


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


def _watch(look: Callable[[], RunStatus], seconds: float, as_json: bool) -> None:
    """Show a status until no task is left: in place on a terminal, else what changes as lines."""
    import sys

    from chunkflow_py.cli.screen import is_terminal

    if is_terminal(sys.stdout) and not as_json:
        _watch_in_place(look, seconds)
        return
    before = None
    for status in _snapshots(look, seconds):
        if (now := _what_counts(status)) != before:
            echo(json.dumps(status.to_json()) if as_json else _line(status))
        before = now


def _watch_in_place(look: Callable[[], RunStatus], seconds: float) -> None:
    import sys
    import time

    from chunkflow_py.cli.screen import Row, Screen

    rows = [Row("looking …")]
    with Screen(sys.stdout, lambda: rows):
        for status in _snapshots(look, seconds):
            head, *rest = status.lines()
            when = f"as of {time.strftime('%H:%M:%S')}, every {seconds:g} s until no task is left"
            rows = [Row(head, "bold"), *map(Row, rest), Row(f"  {when}; Ctrl-C ends it", "dim")]
    echo("\n".join(status.lines()))


def _snapshots(look: Callable[[], RunStatus], seconds: float) -> Iterator[RunStatus]:
    """Yield a status every so many seconds, the last one when no task is left."""
    import time

    from chunkflow_py.errors import TransientError

    while True:
        try:
            status = look()
        except TransientError as error:
            logger.warning("%s; looking again in %g s", error, seconds)
        else:
            yield status
            if status.state != "unfinished":
                return
        time.sleep(seconds)


def _what_counts(status: RunStatus) -> object:
    """Return the parts of a status whose change is worth a line; speeds change always."""
    steps = [
        (step.totals.finished, step.totals.dead, step.totals.failures, step.closed)
        for step in status.stages
    ]
    return status.state, steps, status.queue


def _line(status: RunStatus) -> str:
    """Return a status as one line, with the time."""
    import time
    from dataclasses import replace

    _, *rest = replace(status, failures=(), failing=()).lines()
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{when} {'; '.join([status.state, *(each.strip() for each in rest)])}"
