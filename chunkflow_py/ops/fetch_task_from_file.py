r"""Take the tasks of one array job from a .npy file.

generate-tasks --file-path writes such a file, which lists the boxes of tasks. Job 0 takes the first
--granularity boxes, job 1 takes the next --granularity boxes, and so on.

Example: chunkflow fetch-task-from-file --file-path tasks.npy --slurm-job-array \
  load-zarr --store em.zarr save-zarr --store copy.zarr
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import environment_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.geometry import BoundingBox


@dataclass
class FileTasks:
    """Source of the tasks of one job.

    Attributes:
        file_path: path of the .npy file.
        job_index: number of the job, from 0.
        granularity: number of boxes per job.
    """

    file_path: str
    job_index: int = 0
    granularity: int = 1

    @cached_property
    def _boxes(self) -> list[BoundingBox]:
        """Boxes of this job.

        Raises:
            OptionError: the file has no box for this job, or its array is not a list of boxes.
        """
        from chunkflow_py.queue.box_file import read_rows

        first = self.job_index * self.granularity
        boxes, total = read_rows(self.file_path, first, self.granularity)
        if not boxes:
            last = -(-total // self.granularity) - 1
            msg = (
                f"job {self.job_index} has no box in {self.file_path}, which contains {total} "
                f"boxes; with --granularity {self.granularity}, the last job is {last}"
            )
            raise OptionError(msg)
        return boxes

    def __len__(self) -> int:
        """Return the number of tasks of this job."""
        return len(self._boxes)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks in the order of the file."""
        return (Task(Region(box)) for box in self._boxes)


@source
@click.option(
    "--file-path",
    "-f",
    required=True,
    type=click.Path(dir_okay=False),
    help="Path of the .npy file of boxes.",
)
@click.option("--job-index", "-i", type=click.IntRange(min=0), help="Number of this job, from 0.")
@click.option(
    "--slurm-job-array/--no-slurm-job-array",
    default=False,
    show_default=True,
    help="Take the job's number from the variable SLURM_ARRAY_TASK_ID.",
)
@click.option(
    "--disbatch/--no-disbatch",
    "-d",
    default=False,
    show_default=True,
    help="Take the job's number from the variable DISBATCH_REPEAT_INDEX.",
)
@click.option(
    "--granularity",
    "-g",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of boxes per job.",
)
def command(
    file_path: str, job_index: int | None, slurm_job_array: bool, disbatch: bool, granularity: int
) -> FileTasks:
    """Determine the job's number, and return the source, which reads the file when needed."""
    sources = (job_index is not None) + slurm_job_array + disbatch
    if sources != 1:
        msg = (
            f"the number of the job is given {sources} times instead of once; give exactly one of "
            "--job-index, --slurm-job-array and --disbatch"
        )
        raise OptionError(msg)
    if slurm_job_array:
        job_index = environment_number("SLURM_ARRAY_TASK_ID", "--slurm-job-array")
    elif disbatch:
        job_index = environment_number("DISBATCH_REPEAT_INDEX", "--disbatch")
    return FileTasks(file_path, job_index or 0, granularity)
