"""What a person sees: log lines, the progress bar, the table of times, how an error prints."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.hooks import HasTraffic
from chunkflow_py.memory import describe_bytes
from chunkflow_py.pipeline import Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.stages import Operator
    from chunkflow_py.task import Task

logger = logging.getLogger(__name__)
_ROOT = logging.getLogger("chunkflow_py")


class _StderrHandler(logging.Handler):
    """Writes to whatever stderr is now, so that a captured stream is honoured."""

    level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, above a progress bar if there is one."""
        tqdm = sys.modules.get("tqdm")  # there is no bar where nobody has imported it
        with tqdm.tqdm.external_write_mode(file=sys.stderr) if tqdm else nullcontext():
            click.echo(self.format(record), err=True)


def configure_logging(*, verbose: bool, debug: bool) -> None:
    """Send our log lines to stderr: warnings always, what is done when *verbose*."""
    restore_logging()
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.level_before = _ROOT.level
    _ROOT.addHandler(handler)
    level = logging.INFO if verbose else logging.WARNING
    _ROOT.setLevel(logging.DEBUG if debug else level)


def restore_logging() -> None:
    """Undo `configure_logging`, so that a program that calls us keeps its own logging."""
    for handler in [h for h in _ROOT.handlers if isinstance(h, _StderrHandler)]:
        _ROOT.removeHandler(handler)
        _ROOT.setLevel(handler.level_before)


class Report(Listener):
    """Shows progress while a line runs, and where the time went when it is done.

    Args:
        show_progress: a progress bar; ``None`` shows it only on a terminal.
        show_table: the table of times at the end.
    """

    def __init__(self, *, show_progress: bool | None, show_table: bool) -> None:
        """Begin with nothing counted."""
        self.show_progress = sys.stderr.isatty() if show_progress is None else show_progress
        self.show_table = show_table
        self.seconds: dict[str, float] = {}
        self.operators: Sequence[Operator] = ()
        self.done = self.skipped = 0
        self.total: int | None = None
        self._bar: Any = None
        self._step = 1
        self._shares: dict[int, float] = {}
        self._lock = Lock()
        self._start = perf_counter()

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        """Open the progress bar: one unit is one operator on one task."""
        self._start = perf_counter()
        self.total = tasks
        self.operators = operators
        self.seconds = {stage.name: 0.0 for stage in operators}
        self._step = len(operators)
        if self.show_progress:
            from tqdm import tqdm

            units = None if tasks is None else tasks * self._step
            share = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
            form = "{desc} " + (share if units else "{elapsed}")
            self._bar = tqdm(
                total=units, bar_format=form, file=sys.stderr, desc="starting", mininterval=0.2
            )

    def operator_started(self, label: str, task: Task) -> None:
        """Show which operator is at work on which task."""
        logger.debug("%s: %s begins", task, label)
        with self._lock:
            self._shares[id(task)] = 0.0
            if self._bar is not None:
                self._bar.set_description_str(
                    f"{label} {'' if task.region is None else task}".strip()
                )

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:  # noqa: ARG002
        """Move the bar within one operator."""
        self._advance(task, done / max(total, 1))

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        """Add to the table."""
        logger.debug("%s: %s took %.3f s", task, label, seconds)
        with self._lock:
            self.seconds[label] += seconds
        self._advance(task, 1.0)

    def _advance(self, task: Task, share: float) -> None:
        with self._lock:
            before = self._shares.get(id(task), 0.0)
            self._shares[id(task)] = share
            if self._bar is not None:
                self._bar.update(share - before)

    def task_finished(self, task: Task) -> None:
        """Count the task."""
        with self._lock:
            self._shares.pop(id(task), None)
            if not task.failed:
                self.done += 1
                self.skipped += task.outcome is not None
            if self._bar is not None:
                self._bar.update(max(0, self._step - len(task.seconds)))

    def run_finished(self) -> None:
        """Close the bar and print the table."""
        self._close_bar()
        if self.show_table:
            click.echo(self.table(), err=True)

    def _close_bar(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def table(self) -> str:
        """Return where the time went: seconds of each operator, all tasks together.

        Lanes overlap, so the operators' sum may exceed the elapsed time; so may the seconds of one
        that works on several tasks at once.
        """
        elapsed = perf_counter() - self._start
        width = max([len("operator"), *(len(name) for name in self.seconds)])
        lines = [f"{'operator':<{width}}   seconds  of elapsed"]
        for name, seconds in self.seconds.items():
            share = seconds / elapsed if elapsed else 0.0
            lines.append(f"{name:<{width}}  {seconds:8.2f}  {share:10.0%}")
        tasks = f"{self.done} task{'' if self.done == 1 else 's'}"
        skipped = f", {self.skipped} of them skipped" if self.skipped else ""
        lines.append(f"{'elapsed':<{width}}  {elapsed:8.2f}  {tasks}{skipped}")
        return "\n".join(lines + self._traffic())

    def _traffic(self) -> list[str]:
        """Return what each loader has read, and how much of that was needed."""
        lines = []
        for stage in self.operators:
            cost = stage.body.traffic if isinstance(stage.body, HasTraffic) else None
            if cost is not None and cost.needed_bytes:
                share = cost.decoded_bytes / cost.needed_bytes
                lines.append(
                    f"{stage.name} read {_amount(cost.stored_bytes)} and decoded "
                    f"{_amount(cost.decoded_bytes)}, {share:{'.2f' if share < 100 else ',.0f'}} "
                    f"times the {_amount(cost.needed_bytes)} that were needed; {cost.cache_hits} "
                    f"block{'' if cost.cache_hits == 1 else 's'} were kept from earlier tasks"
                )
            if cost is not None and cost.missing_blocks:
                many = cost.missing_blocks
                lines.append(
                    f"{stage.name} found no data for {many} block{'' if many == 1 else 's'}, which "
                    f"w{'as' if many == 1 else 'ere'} read as the fill value (--fill-missing)"
                )
        return lines

    def print_failure(self, task: Task, *, debug: bool) -> None:
        """Print why a task failed and what was left undone."""
        # The sentence stands alone: no bar before it on the line, no table after it.
        self._close_bar()
        self.show_table = False
        if debug and task.outcome is not None:
            logger.error("traceback", exc_info=task.outcome)
        click.echo(f"Error: {task.outcome}", err=True)
        if self.total is not None and self.total > 1:
            left = self.total - self.done - 1
            counts = f"{self.done} of {self.total} tasks done, 1 failed, {left} not run."
            click.echo(counts, err=True)


def _amount(size: int) -> str:
    """Return a number of bytes as it is printed, in bytes if it is far less than a megabyte."""
    return describe_bytes(size) if size >= 1e5 else f"{size:,} bytes"
