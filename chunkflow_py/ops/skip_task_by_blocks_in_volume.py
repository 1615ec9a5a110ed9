r"""Skip a task whose blocks are all stored.

Example: chunkflow generate-tasks --volume-path file://out --chunk-size 64 512 512 \
  skip-task-by-blocks-in-volume --volume-path file://out load-h5 --file-name em.h5 \
  save-volume --fill-missing --volume-path file://out

A block counts as stored if it exists; its content is not read. Savers store blocks of zeros only
with --fill-missing. If the saver ran without --fill-missing, tasks with a block of zeros are
therefore never skipped. With submit and work, this operator is not needed: the ledger of the run
records the finished tasks, and the subcommand verify checks their output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.ops.options.volume_options import access_options, opening_from, volume_path_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.protocol import Volume, VolumeOptions

SECTION = "steer"


@dataclass
class StoredSkipper(OperatorBase):
    """Skips a task if every block or shard of the volume in the task's box is stored.

    Attributes:
        volume_path: URL of the volume.
        mip: resolution level to check.
        time: time index to check (default: the time index of each task).
        opening: options for opening the volume.
    """

    volume_path: str
    mip: int = 0
    time: int | None = None
    opening: VolumeOptions | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _volume: Volume | None = field(default=None, init=False, repr=False)

    @property
    @hook
    def kept(self) -> str:
        """Address and level of the volume; a task is finished if its blocks are stored there."""
        from chunkflow_py.volume.location import Location, level_name

        return level_name(Location.parse(self.volume_path), self.mip)

    @hook
    def prepare(self, outline: Any) -> None:
        """Open the volume, and check that the tasks have boxes.

        Args:
            outline: `Outline` of the pipeline; ``None`` if the operator is used alone.

        Raises:
            VolumeNotFoundError: the volume does not exist.
            OptionError: the tasks have no boxes.
        """
        from chunkflow_py.volume import open_volume

        self._volume = open_volume(self.volume_path, self.mip, opening=self.opening)
        if outline is not None and not outline.has_tasks:
            msg = (
                "skip-task-by-blocks-in-volume checks whether the blocks of "
                f"{self.volume_path} in a task's box are stored, but the tasks have no boxes; put "
                "generate-tasks or create-bbox in front of skip-task-by-blocks-in-volume"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Return *task* unchanged, unless all blocks in the task's box are stored.

        Raises:
            Skip: all blocks in the task's box are stored.
            GeometryError: the task has no box, or its box lies outside of the volume.
        """
        if self._volume is None:
            self.prepare(None)
        volume: Any = self._volume
        if task.bbox is None or task.region is None:
            msg = (
                "skip-task-by-blocks-in-volume needs the task's box, but this task has no box; put "
                "generate-tasks or create-bbox in front of skip-task-by-blocks-in-volume"
            )
            raise GeometryError(msg)
        inside = task.bbox.intersection(volume.bounds)
        if inside.is_empty:
            msg = (
                f"the task's box {task.bbox} lies outside of the bounds {volume.bounds} of "
                f"{volume.url} (zyx, voxels); check --volume-path and the boxes of the tasks"
            )
            raise GeometryError(msg)
        time = task.region.time if self.time is None else self.time
        if volume.has_blocks(inside, time=time):
            msg = f"all blocks of the task are stored in {volume.url}"
            raise Skip(msg)
        return task


@operator("read")
@volume_path_option("Volume, such as file://out or zarr://s3://bucket/out.zarr.")
@click.option("--mip", "-m", type=click.IntRange(min=0), default=0, show_default=True,
              help="Resolution level to check.")  # fmt: skip
@click.option(
    "--time",
    type=click.IntRange(min=0),
    help="Time index to check.  [default: time index of the task]",
)
@access_options()
def command(volume_path: str, mip: int, time: int | None, **options: Any) -> StoredSkipper:
    """Return the operator, which opens the volume when the pipeline starts."""
    return StoredSkipper(volume_path, mip, time, opening_from(options))
