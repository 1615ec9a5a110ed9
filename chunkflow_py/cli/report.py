"""What a person sees of a line: a view of progress, or a line a task; where the time went."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from chunkflow_py.cli.gpu_use import GpuWatch
from chunkflow_py.cli.line_state import LineState, voxels_of
from chunkflow_py.cli.line_view import line_rows
from chunkflow_py.cli.logs import configure_logging, restore_logging, says_json, tell
from chunkflow_py.cli.pace import voxel_speed
from chunkflow_py.cli.screen import Screen, is_terminal
from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.errors import OperatorError
from chunkflow_py.pipeline.hooks import HasTraffic
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator

__all__ = ["Report", "configure_logging", "restore_logging"]

logger = logging.getLogger(__name__)


class Report(Listener):
    """Shows progress while a line runs, and where the time went when it is done.

    On a terminal there is one view that changes in place; elsewhere every task has a line.

    Args:
        show_progress: either of them; ``None``: yes.
        show_table: the table of times at the end.

    Attributes:
        state: of the line.
    """

    def __init__(self, *, show_progress: bool | None, show_table: bool) -> None:
        """Begin with nothing counted."""
        self.show_progress = show_progress is not False
        self.show_table = show_table
        self.state = LineState()
        self._shown = ExitStack()

    @property
    def total(self) -> int | None:
        """Number of tasks, if it is known."""
        return self.state.total

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
        """Show the view, if this is a terminal."""
        self.state = state = LineState(operators, tasks)
        names = [stage.name for stage in operators]
        tell(logger, logging.INFO, "run_started", operators=names, tasks=tasks)
        if shows_view(self.show_progress):
            gpu = GpuWatch()
            if state.network_s is not None:
                self._shown.enter_context(gpu)
            self._shown.enter_context(Screen(sys.stderr, lambda: line_rows(state, gpu)))

    def operator_started(self, label: str, task: Task) -> None:
        """Show which operator is at work on which task."""
        if logger.isEnabledFor(logging.DEBUG):  # its words take longer than a task may
            words = f"{task}: {label} begins"
            tell(logger, logging.DEBUG, "operator_started", words, task=_name(task), operator=label)
        self.state.started(label, task)

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:
        """Show how far it is."""
        self.state.progressed(label, task, done, total)

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:
        """Count its time."""
        if logger.isEnabledFor(logging.DEBUG):
            words = f"{task}: {label} took {seconds:.3f} s"
            about = {"task": _name(task), "operator": label, "seconds": seconds}
            tell(logger, logging.DEBUG, "operator_finished", words, **about)
        self.state.finished(label, task, seconds)

    def task_finished(self, task: Task) -> None:
        """Count the task, and say so."""
        voxels = voxels_of(task)
        self.state.task_finished(task, voxels)
        seconds = sum(task.seconds.values())
        words = ""
        # Of the only task the table at the end says the same; why one was skipped, a line before.
        if task.outcome is None and self.state.total != 1 and self._says_tasks():
            words = f"{task}: {task_words(task.seconds, voxels)}"
        tell(
            logger,
            logging.ERROR if task.failed else logging.INFO,
            "task_finished",
            words,
            task=_name(task),
            seconds=seconds,
            operators=task.seconds,
            voxels=None if task.failed else voxels,
            **_outcome(task),
        )

    def run_finished(self) -> None:
        """Leave nothing of the view, and print the table."""
        self._shown.close()
        state = self.state
        tell(
            logger,
            logging.INFO,
            "run_finished",
            done=state.done,
            skipped=state.skipped,
            failed=state.failed,
            tasks=state.total,
            seconds=state.elapsed_s,
            operators=state.seconds,
            voxels=state.voxels,
            network_seconds=state.network_s,
        )
        if self.show_table and not says_json():
            echo(self.table(), err=True)

    def _says_tasks(self) -> bool:
        return self.show_progress and not shows_view(self.show_progress)

    def table(self) -> str:
        """Return where the time went: seconds of each operator, all tasks together.

        Lanes overlap, so the operators' sum may exceed the elapsed time; so may the seconds of one
        that works on several tasks at once.
        """
        state = self.state
        rows = dict(state.seconds)
        if (network_s := state.network_s) is not None:
            rows["outside network"] = max(0.0, state.elapsed_s - network_s)
        counts = (state.ended, state.skipped)
        lines = table_lines(rows, state.elapsed_s, *counts, state.voxels)
        return "\n".join(lines + self._traffic())

    def _traffic(self) -> list[str]:
        """Return what each loader has read, and how much of that was needed."""
        lines = []
        for stage in self.state.operators:
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
        # The sentence stands alone: no view below it, no table after it.
        self._shown.close()
        self.show_table = False
        if debug and task.outcome is not None:
            logger.error("traceback", exc_info=task.outcome)
        if says_json():
            return  # it was said when the task ended
        echo(f"Error: {task.outcome}", err=True)
        if self.total is not None and self.total > 1:
            left = self.total - self.state.ended - 1
            counts = f"{self.state.ended} of {self.total} tasks done, 1 failed, {left} not run."
            echo(counts, err=True)


def shows_view(is_wanted: bool) -> bool:
    """Return whether progress is a view that changes in place."""
    return is_wanted and not says_json() and is_terminal(sys.stderr)


def task_words(seconds: Mapping[str, float], voxels: int | None) -> str:
    """Return where the time of a task went, in one line."""
    total = sum(seconds.values())
    parts = ", ".join(f"{name} {each:.2f}" for name, each in seconds.items())
    speed = f", {voxel_speed(voxels / total)}" if voxels and total else ""
    return f"done in {total:.2f} s ({parts}){speed}"


def table_lines(
    seconds: Mapping[str, float], elapsed_s: float, ended: int, skipped: int, voxels: int
) -> list[str]:
    """Return a table of the seconds of each operator; its last line says what was done."""
    width = max([len("operator"), *(len(name) for name in seconds)])
    lines = [f"{'operator':<{width}}   seconds  of elapsed"]
    for name, each in seconds.items():
        share = each / elapsed_s if elapsed_s else 0.0
        lines.append(f"{name:<{width}}  {each:8.2f}  {share:10.0%}")
    speed = f"{voxel_speed(voxels / elapsed_s)}, " if voxels and elapsed_s else ""
    tasks = f"{ended} task{'' if ended == 1 else 's'}"
    left = f", {skipped} of them skipped" if skipped else ""
    return [*lines, f"{'elapsed':<{width}}  {elapsed_s:8.2f}  {speed}{tasks}{left}"]


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
    """Return a number of bytes as it is printed, in bytes if it is far less than a megabyte."""
    return describe_bytes(size) if size >= 1e5 else f"{size:,} bytes"
