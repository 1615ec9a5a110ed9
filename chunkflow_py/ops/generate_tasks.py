"""Make a grid of tasks over a region or a volume.

They run here, or are sent to a queue (--queue-name) or written to a file (--file-path) instead.

Example: chunkflow generate-tasks --roi-size 40 512 512 --chunk-size 20 256 256 load-h5 -f raw.h5
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.params import BBOX, is_dry_run, mip_option, zyx_option
from chunkflow_py.stages import source
from chunkflow_py.task import Task
from chunkflow_py.task_grid import region_of, task_grid
from chunkflow_py.task_order import ORDERS, OrderedBoxes
from chunkflow_py.volume_options import access_options, opening_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.task_order import Order
    from chunkflow_py.volume.protocol import Opening

logger = logging.getLogger(__name__)


@dataclass
class TaskGenerator:
    """The tasks of a grid, or of a part of it.

    Attributes:
        selected: (first, end) numbers of the tasks to make; end ``None``: to the last.
        order: in which tasks are numbered and made.
    """

    chunk_size: Zyx
    region: tuple[Zyx | None, Zyx | None, Zyx | None] = (None, None, None)
    grid_size: Zyx | None = None
    respect_stop: bool = False
    aligned_block_size: Zyx | None = None
    volume_path: str | None = None
    mip: int = 0
    opening: Opening | None = None
    selected: tuple[int, int | None] = (0, None)
    file_path: str | None = None
    queue_name: str | None = None
    dry_run: bool = False
    order: Order = "raster"

    @cached_property
    def boxes(self) -> BoxGrid:
        """The whole grid, whatever part of it is made here.

        Jobs that share a grid must agree on the bounds of a new volume and on its write units.
        """
        bounds = None
        if self.volume_path is not None and None in (self.region[0], self.region[1]):
            from chunkflow_py.volume import open_volume

            bounds = open_volume(self.volume_path, self.mip, opening=self.opening).bounds
        start, stop = region_of(*self.region, bounds)
        return task_grid(
            self.chunk_size, start, stop, grid_size=self.grid_size,
            respect_stop=self.respect_stop, block_size=self.aligned_block_size,
        )  # fmt: skip

    @cached_property
    def indexes(self) -> range:
        """Numbers of the tasks to make.

        Raises:
            OptionError: there are no tasks of these numbers.
        """
        first, end = self.selected
        total = len(self.boxes)
        if first >= total:
            msg = f"task {first} was asked for, but there are {total} tasks, 0 to {total - 1}"
            raise OptionError(msg)
        return range(first, total if end is None else min(end, total))

    def __len__(self) -> int:
        """Return how many tasks go down the line."""
        return 0 if self.queue_name or self.file_path else len(self.indexes)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks, or hand them over and yield none."""
        boxes = OrderedBoxes(self.boxes, self.order).part(self.indexes)
        if self.dry_run and (self.queue_name or self.file_path):
            logger.info("dry run: %d tasks are not handed over", len(self.indexes))
            return
        if self.file_path:
            from chunkflow_py.queue.box_file import write_boxes

            write_boxes(self.file_path, self.boxes, self.indexes, self.order)
            logger.info("wrote %d tasks to %s", len(self.indexes), self.file_path)
        if self.queue_name:
            from chunkflow_py.queue.protocol import open_queue

            queue = open_queue(self.queue_name)
            logger.info("sent %d tasks to queue %s", queue.send(map(str, boxes)), self.queue_name)
        if not (self.file_path or self.queue_name):
            yield from (Task(Region(box)) for box in boxes)


def _disbatch_index() -> int:
    text = os.environ.get("DISBATCH_REPEAT_INDEX", "")
    if not text.isdecimal():
        found = f"is {text!r}" if text else "is not set"
        msg = f"--disbatch takes the task's number from DISBATCH_REPEAT_INDEX, which {found}"
        raise OptionError(msg)
    return int(text)


_COUNT = click.IntRange(min=0)


@source
@click.option("--volume-path", "-v", help="URL of a volume whose bounds are the region.")
@mip_option()
@zyx_option("--roi-start", "-s", help="First voxel of the region, zyx.  [default: 0 0 0]")
@zyx_option("--roi-stop", "-r", help="End of the region (exclusive), voxels, zyx.")
@zyx_option("--roi-size", "-z", minimum=1, help="Extent of the region, voxels, zyx.")
@zyx_option("--chunk-size", "-c", minimum=1, help="Extent of a task's box, voxels, zyx.")
@click.option("--bounding-box", "-b", type=BBOX, help="The region as a box string.")
@zyx_option("--grid-size", "-g", minimum=1, help="Number of boxes along z, y and x.")
@click.option("--file-path", "-f", type=click.Path(dir_okay=False), help="Write a .npy of boxes.")
@click.option("--queue-name", "-q", help="Send the tasks to this queue.")
@click.option(
    "--respect-chunk-size/--respect-stop",
    default=True,
    show_default=True,
    help="Keep the size of the last boxes, or cut them off at the region's end.",
)
@zyx_option(
    "--aligned-block-size",
    "-a",
    minimum=1,
    help="Grow the region to multiples of this, counted from (0, 0, 0).",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="raster",
    show_default=True,
    help="Number and make the tasks x fastest, or along a curve on which neighbours are near.",
)
@click.option(
    "--task-index-start",
    "-i",
    type=_COUNT,
    default=0,
    show_default=True,
    help="Number of the first task to make.",
)
@click.option("--task-index-stop", "-p", type=_COUNT, help="Number after the last task to make.")
@click.option(
    "--disbatch/--no-disbatch",
    "-d",
    default=False,
    show_default=True,
    help="Make the one task whose number disBatch sets.",
)
@access_options()
def command(**options: Any) -> TaskGenerator:
    """Check what the options say together; the volume is opened later."""
    region = options["roi_start"], options["roi_stop"], options["roi_size"]
    box: BoundingBox | None = options["bounding_box"]
    if box is not None:
        if any(region):
            msg = f"--bounding-box {box} is the region already; leave the --roi options out"
            raise OptionError(msg)
        region = (box.start, box.stop, None)
    chunk_size: Zyx | None = options["chunk_size"] or (None if box is None else box.size)
    if chunk_size is None:
        msg = "how large a task's box is must be said; give --chunk-size or --bounding-box"
        raise OptionError(msg)
    selected = (options["task_index_start"], options["task_index_stop"])
    if options["disbatch"]:
        if selected != (0, None):
            msg = "--disbatch chooses the task; leave --task-index-start and -stop out"
            raise OptionError(msg)
        selected = (_disbatch_index(), _disbatch_index() + 1)
    elif selected[1] is not None and selected[1] <= selected[0]:
        msg = (
            f"--task-index-stop {selected[1]} must lie behind --task-index-start {selected[0]}; "
            f"{selected[0] + 1} makes one task"
        )
        raise OptionError(msg)
    path = options["file_path"]
    if path and not path.endswith(".npy"):
        msg = f"--file-path {path} must end in .npy; {path}.npy does"
        raise OptionError(msg)
    tasks = TaskGenerator(
        chunk_size, region, options["grid_size"], not options["respect_chunk_size"],
        options["aligned_block_size"], options["volume_path"],
        options["mip"], opening_from(options), selected, path, options["queue_name"],
        is_dry_run(), options["order"],
    )  # fmt: skip
    if tasks.volume_path is None:
        # Needs no volume, so that a wrong number is told at once.
        _ = tasks.indexes
    return tasks
