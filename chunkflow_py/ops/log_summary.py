"""Summarize the time per operator from the logs of a run.

Example: chunkflow log-summary --log-dir volume/log --plot times.png

A saver with --upload-log writes these logs to the folder log/ of its volume, in any store. The
table has a row for each device and operator. Its columns are the number of tasks, the total time,
the share of the operator in the total time of all operators, the mean, minimum and maximum seconds
per task, and the speed in millions of voxels per second. For the speed, the voxels in the task's
box are counted or, with --output-size, the voxels of a box of this size. A file that is not a log
is skipped with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.task import Task
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import is_dry_run, zyx_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.ops.viewing.run_log import RunLog

SECTION = "view"


def log_summary(log_dir: str, output_size: Zyx | None = None) -> RunLog:
    """Return the times of operators in the logs of a folder, grouped by device and operator.

    Args:
        log_dir: URL of the folder of the logs.
        output_size: extent of the output of a task, voxels, zyx. The speed is computed from this
            extent (default: from the extent of the box in each log).

    Raises:
        VolumeNotFoundError: there are no logs in *log_dir*.
        VolumeError: none of the files is a log, or the store cannot be read.
    """
    from chunkflow_py.ops.viewing.run_log import read_logs

    return read_logs(log_dir, output_size)


@dataclass
class LogSummary:
    """Prints the summary, and then yields one empty task for the operators that follow.

    Attributes:
        log_dir: URL of the folder of the logs.
        output_size: extent of the output of a task, voxels, zyx; ``None`` means the extent of the
            box in each log.
        plot: URL of a PNG file for a plot of the times; ``None`` draws no plot.
    """

    log_dir: str = "./log"
    output_size: Zyx | None = None
    plot: str | None = None

    def __iter__(self) -> Iterator[Task]:
        """Print the table, draw the plot, and yield the empty task."""
        from chunkflow_py.ops.viewing import run_log
        from chunkflow_py.store.task_files import TaskFiles

        log = log_summary(self.log_dir, self.output_size)
        echo(run_log.table(log))
        if self.plot is not None:
            TaskFiles(self.plot, ".png", ("",), "--plot").write(None, run_log.plot(log))
        yield Task()


@source
@click.option(
    "--log-dir",
    "-l",
    default="./log",
    show_default=True,
    help="Folder of the logs, in any store that can be listed.",
)
@zyx_option(
    "--output-size",
    "-s",
    minimum=1,
    help="Output extent of a task, voxels, zyx, from which to compute the speed.  [default: extent "
    "of the box in each log]",
)
@click.option("--plot", help="PNG file for a plot of the times, in any store.")
def command(log_dir: str, output_size: Zyx | None, plot: str | None) -> LogSummary:
    """Return the source that prints the summary; a dry run draws no plot."""
    return LogSummary(log_dir, output_size, None if is_dry_run() else plot)
