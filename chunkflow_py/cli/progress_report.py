"""Report of a running pipeline: a progress view on a terminal, log lines, and a table of times.

On a terminal, a view is updated in place; elsewhere, one line is logged for each task. A table at
the end shows the seconds of each operator. With ``--log-json``, the same information is written as
JSON lines (docs/progress.md). `WorkerReport` is the corresponding report of a worker.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from chunkflow_py.cli.gpu_use import GpuWatch
from chunkflow_py.cli.logs import log_event, writes_json
from chunkflow_py.cli.progress import (
    PipelineProgress,
    Progress,
    progress_rows,
    voxel_speed,
)
from chunkflow_py.cli.screen import Screen, is_terminal
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import OperatorError
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator

logger = logging.getLogger(__name__)

SNAPSHOT_S = 0.25
LEDGER_S = 60.0  # between two reads of the ledger, which are made for a terminal only


class ProgressReport(ABC):
    """Show the progress of a pipeline or a worker, and print a table of times at the end.

    Args:
        show_progress: whether to show the progress. On a terminal, the progress is shown as a view;
            elsewhere, as one line per task.
        show_table: whether to print the table of times at the end.
    """

    def __init__(self, *, show_progress: bool, show_table: bool) -> None:
        self.show_progress, self.show_table = show_progress, show_table
        self._shown = ExitStack()

    @property
    def shows_view(self) -> bool:
        """Whether the terminal shows a progress view, which is updated in place."""
        return self.show_progress and not writes_json() and is_terminal(sys.stderr)

    @property
    def shows_tasks(self) -> bool:
        """Whether progress is shown as one log line per task."""
        return self.show_progress and not self.shows_view

    def _show(self, progress: Progress, gpu: GpuWatch) -> None:
        self._shown.enter_context(Screen(sys.stderr, lambda: progress_rows(progress, gpu)))

    def _report_end(
        self, event: str, progress: Progress, *, shows_table: bool, **fields: Any
    ) -> None:
        self._shown.close()
        log_event(
            logger,
            logging.INFO,
            event,
            done=progress.done,
            skipped=progress.skipped,
            tasks=progress.total,
            seconds=progress.elapsed_s,
            operators=progress.seconds,
            voxels=progress.voxels,
            **fields,
        )
        if shows_table and not writes_json():
            echo(self.table(), err=True)

    @abstractmethod
    def table(self) -> str:
        """Return the table of times as text, without a line break at the end."""


class PipelineReport(ProgressReport, Listener):
    """Report of a pipeline that runs in this process.

    Args:
        show_progress: whether to show the progress; ``None`` means yes. On a terminal, the progress
            is shown as a view; elsewhere, as one line per task.
        show_table: whether to print the table of times at the end.

    Attributes:
        progress: numbers of ended tasks, and the running operators.
    """

    def __init__(self, *, show_progress: bool | None, show_table: bool) -> None:
        super().__init__(show_progress=show_progress is not False, show_table=show_table)
        self.progress = PipelineProgress()

    @property
    def total(self) -> int | None:
        """Number of all tasks of the pipeline, if known."""
        return self.progress.total

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        """Log the start of the pipeline and, if stderr is a terminal, show the progress view."""
        self.progress = PipelineProgress(operators, tasks)
        names = [operator.name for operator in operators]
        log_event(logger, logging.INFO, "run_started", operators=names, tasks=tasks)
        if self.shows_view:
            gpu = GpuWatch()
            if self.progress.network_s is not None:
                self._shown.enter_context(gpu)
            self._show(self.progress, gpu)

    def operator_started(self, label: str, task: Task) -> None:
        """Show in the view that an operator has started on a task."""
        if logger.isEnabledFor(logging.DEBUG):  # formatting may take longer than a small task
            text = f"{task}: {label} starts"
            fields = {"task": _name(task), "operator": label}
            log_event(logger, logging.DEBUG, "operator_started", text, **fields)
        self.progress.operator_started(label, task)

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:
        """Show that an operator has finished *done* of its *total* units of work."""
        self.progress.operator_progressed(label, task, done, total)

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        """Add the seconds that an operator spent on a task to the table of times."""
        if logger.isEnabledFor(logging.DEBUG):
            text = f"{task}: {label} took {seconds:.3f} s"
            fields = {"task": _name(task), "operator": label, "seconds": seconds}
            log_event(logger, logging.DEBUG, "operator_finished", text, **fields)
        self.progress.operator_finished(label, task, seconds)

    def task_finished(self, task: Task) -> None:
        """Count a task that has left the pipeline, and log its outcome."""
        voxels = self.progress.task_ended(task)
        text = ""
        # The table shows the times of a single task. The reason of a skip was logged before.
        if task.outcome is None and self.total != 1 and self.shows_tasks:
            text = f"{task}: {task_times(task.seconds, voxels)}"
        log_event(
            logger,
            logging.ERROR if task.failed else logging.INFO,
            "task_finished",
            text,
            task=_name(task),
            seconds=sum(task.seconds.values()),
            operators=task.seconds,
            voxels=None if task.failed else voxels,
            **_outcome(task),
        )

    def run_finished(self) -> None:
        """Erase the progress view, log the numbers of tasks, and print the table of times."""
        progress = self.progress
        network_s = progress.network_s
        self._report_end(
            "run_finished",
            progress,
            shows_table=self.show_table,
            failed=progress.failed,
            network_seconds=network_s,
        )

    def table(self) -> str:
        """Return a table of the seconds that each operator ran, summed over all tasks.

        The sum over all operators may exceed the elapsed time, because stages overlap. Even the
        seconds of one operator may exceed this time, if it runs on several tasks simultaneously.
        """
        progress = self.progress
        rows = dict(progress.seconds)
        if (network_s := progress.network_s) is not None:
            rows["outside network"] = max(0.0, progress.elapsed_s - network_s)
        return "\n".join(table_lines(rows, progress) + self._traffic_lines())

    def _traffic_lines(self) -> list[str]:
        lines = []
        for operator in self.progress.operators:
            traffic = operator.hooks.traffic
            if traffic is not None and traffic.needed_bytes:
                share = traffic.decoded_bytes / traffic.needed_bytes
                hits = traffic.cache_hits
                lines.append(
                    f"{operator.name} read {_amount(traffic.stored_bytes)} and decoded it to "
                    f"{_amount(traffic.decoded_bytes)}, which is "
                    f"{share:{'.2f' if share < 100 else ',.0f'}} times the "
                    f"{_amount(traffic.needed_bytes)} that tasks needed; {hits} "
                    f"block{'' if hits == 1 else 's'} came from the cache of blocks read earlier"
                )
            if traffic is not None and traffic.missing_blocks:
                many = traffic.missing_blocks
                lines.append(
                    f"{operator.name} found {many} block{'' if many == 1 else 's'} missing in the "
                    "volume and used the fill value instead (--fill-missing)"
                )
        return lines

    def print_failure(self, task: Task, *, debug: bool) -> None:
        """Print the error of a failed task, and the numbers of tasks that were done or not run."""
        # The message is the last output: erase the view, and print no table after it.
        self._shown.close()
        self.show_table = False
        if debug and task.outcome is not None:
            logger.error("traceback", exc_info=task.outcome)
        if writes_json():
            return  # the failure was logged when the task ended
        echo(f"Error: {task.outcome}", err=True)
        if self.total is not None and self.total > 1:
            ended = self.progress.ended
            left = self.total - ended - 1
            echo(f"{ended} of {self.total} tasks done, 1 failed, {left} not run.", err=True)


def task_times(seconds: Mapping[str, float], voxels: int | None) -> str:
    """Return one line with the seconds of a task, in total and per operator, and with its speed."""
    total = sum(seconds.values())
    parts = ", ".join(f"{name} {each:.2f}" for name, each in seconds.items())
    speed = f", {voxel_speed(voxels / total)}" if voxels and total else ""
    return f"done in {total:.2f} s ({parts}){speed}"


def table_lines(seconds: Mapping[str, float], progress: Progress) -> list[str]:
    """Return the lines of a table of each operator's seconds; the last line counts the tasks.

    Args:
        seconds: dict from the name of an operator to its seconds.
        progress: elapsed time and numbers of tasks and voxels.
    """
    elapsed_s, ended, voxels = progress.elapsed_s, progress.ended, progress.voxels
    width = max([len("operator"), *(len(name) for name in seconds)])
    lines = [f"{'operator':<{width}}   seconds  of elapsed"]
    for name, each in seconds.items():
        share = each / elapsed_s if elapsed_s else 0.0
        lines.append(f"{name:<{width}}  {each:8.2f}  {share:10.0%}")
    speed = f"{voxel_speed(voxels / elapsed_s)}, " if voxels and elapsed_s else ""
    tasks = f"{ended} task{'' if ended == 1 else 's'}"
    skipped = f", {progress.skipped} of them skipped" if progress.skipped else ""
    return [*lines, f"{'elapsed':<{width}}  {elapsed_s:8.2f}  {speed}{tasks}{skipped}"]


def _name(task: Task) -> str | None:
    return None if task.region is None else str(task)


def _outcome(task: Task) -> dict[str, str | None]:
    match task.outcome:
        case None:
            return {"outcome": "done"}
        case OperatorError() as error:
            return {"outcome": "failed", "operator": error.operator, "error": str(error)}
        case skip:
            last = next(reversed(task.seconds), None)
            return {"outcome": "skipped", "operator": last, "reason": str(skip)}


def _amount(size: int) -> str:
    """Return *size*, a number of bytes, as text; sizes below 0.1 MB are not rounded."""
    return describe_bytes(size) if size >= 1e5 else f"{size:,} bytes"
