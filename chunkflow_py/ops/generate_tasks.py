r"""Make a grid of tasks over a region or a volume.

The other operators of the pipeline run on each task, unless the tasks are sent to a queue
(--queue-name) or written to a file (--file-path). --bbox-file keeps only the boxes of the grid that
overlap a box of a file; --mask keeps only the boxes where a coarse mask is not all zero. If
--bbox-file is given without --chunk-size, each box of the file is one task.

With --order hilbert or morton, the tasks are numbered and run along a curve on which neighbouring
tasks are close to each other. With --order checkerboard, one of two neighbours is sent to the queue
long before the other. The two tasks are then seldom processed at the same time, and can exchange
the patches that they share. This order affects only queues. In a single process, in the file of
--file-path, and for --task-index-start, the tasks are in raster order.

Example: chunkflow generate-tasks --roi-size 40 512 512 --chunk-size 20 256 256 \
  load-h5 --file-name raw.h5
"""

from __future__ import annotations

from typing import Any

import click

from chunkflow_py.ops.options.volume_options import access_options, opening_from
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import (
    REGION,
    TIME_POINTS,
    floats_option,
    is_dry_run,
    mip_option,
    zyx_option,
)
from chunkflow_py.pipeline.task_source import TaskGenerator, tasks_from
from chunkflow_py.pipeline.terminal import option_headings
from chunkflow_py.tasks.checkerboard import CHECKERBOARD
from chunkflow_py.tasks.task_order import ORDERS

_COUNT = click.IntRange(min=0)


@source
@option_headings(
    {
        "Region": (
            "volume_path", "mip", "roi_start", "roi_stop", "roi_size", "bounding_box",
            "time_points", "aligned_block_size", "voxel_size",
        ),
        "Grid": ("chunk_size", "grid_size", "respect_chunk_size", "order"),
        "Choice of tasks": (
            "task_index_start", "task_index_stop", "disbatch", "bbox_file", "mask", "mask_mip",
        ),
        "Destination": ("file_path", "queue_name", "create_queue"),
        "Cloud access": ("use_https", "requester_pays"),
    }
)  # fmt: skip
@click.option("--volume-path", "-v", help="URL of a volume whose bounds are the region.")
@mip_option()
@zyx_option("--roi-start", "-s", help="First voxel of the region, zyx.  [default: 0 0 0]")
@zyx_option("--roi-stop", "-r", help="End of the region (exclusive), voxels, zyx.")
@zyx_option("--roi-size", "-z", minimum=1, help="Extent of the region, voxels, zyx.")
@zyx_option("--chunk-size", "-c", minimum=1, help="Extent of a task's box, voxels, zyx.")
@click.option(
    "--bounding-box",
    "-b",
    type=REGION,
    help="Region as text, such as 0-64_0-512_0-512 (zyx), or t3_0-64_0-512_0-512 at time index 3.",
)
@click.option(
    "--time-points",
    type=TIME_POINTS,
    help="Make the tasks for each of these time points: a number, a range such as 0-9 (ten time "
    "points), or all (every time point of --volume-path).  [default: tasks have no time index]",
)
@zyx_option("--grid-size", "-g", minimum=1, help="Number of boxes along z, y and x.")
@click.option(
    "--file-path", "-f", type=click.Path(dir_okay=False), help="Write the boxes to this .npy file."
)
@click.option("--queue-name", "-q", help="Send the tasks to this queue.")
@click.option(
    "--create-queue/--no-create-queue",
    default=True,
    show_default=True,
    help="Create the queue if it does not exist; for SQS, also its dead-letter queue.",
)
@click.option(
    "--respect-chunk-size/--respect-stop",
    default=True,
    show_default=True,
    help="Let the last boxes extend beyond the end of the region, or cut them off there.",
)
@zyx_option(
    "--aligned-block-size",
    "-a",
    minimum=1,
    help="Grow the region to whole blocks of this size, voxels, zyx, counted from (0, 0, 0).",
)
@click.option(
    "--order",
    type=click.Choice([*ORDERS, CHECKERBOARD]),
    help="Order of the tasks: x fastest (raster), along a curve that keeps neighbours close "
    "(hilbert, morton), or checkerboard. checkerboard numbers the tasks like raster, but sends "
    "neighbours to the queue at different times.  [default: raster; checkerboard in a run in "
    "which several workers exchange patches]",
)
@click.option(
    "--task-index-start",
    "-i",
    type=_COUNT,
    default=0,
    show_default=True,
    help="Number of the first task to make, counted from 0.",
)
@click.option("--task-index-stop", "-p", type=_COUNT, help="Number after the last task to make.")
@click.option(
    "--disbatch/--no-disbatch",
    "-d",
    default=False,
    show_default=True,
    help="Make only the task whose number is in the variable DISBATCH_REPEAT_INDEX.",
)
@click.option(
    "--bbox-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File of boxes (.csv, .json, .npy). Make only the tasks of the grid that overlap one of "
    "these boxes; without --chunk-size, make one task per box.",
)
@click.option(
    "--mask",
    metavar="URL",
    help="Volume of a coarse mask; leave out tasks where the mask is all zero.",
)
@click.option(
    "--mask-mip", type=_COUNT, default=0, show_default=True, help="Resolution level of the mask."
)
@floats_option(
    "--voxel-size",
    help="Voxel size of the task boxes, nm, zyx; used by --mask.  [default: as in --volume-path]",
)
@access_options()
def command(**options: Any) -> TaskGenerator:
    """Check that the options are consistent, and return the source of the tasks."""
    return tasks_from({**options, "opening": opening_from(options)}, dry_run=is_dry_run())
