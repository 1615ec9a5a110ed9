"""Make a grid of tasks over a region or a volume.

They run here, or are sent to a queue (--queue-name) or written to a file (--file-path) instead.
Of the grid, --bbox-file chooses the boxes that touch one of a file, and --mask those that touch a
coarse mask; without --chunk-size each box of the file is a task as it is.

Example: chunkflow generate-tasks --roi-size 40 512 512 --chunk-size 20 256 256 load-h5 -f raw.h5
"""

from __future__ import annotations

from typing import Any

import click

from chunkflow_py.ops.options.volume_options import access_options, opening_from
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import REGION, floats_option, is_dry_run, mip_option, zyx_option
from chunkflow_py.pipeline.task_source import TaskGenerator, tasks_from
from chunkflow_py.tasks.task_order import ORDERS

_COUNT = click.IntRange(min=0)


@source
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
    help="The region as a box string; t3_0-64_0-512_0-512 is of time index 3.",
)
@zyx_option("--grid-size", "-g", minimum=1, help="Number of boxes along z, y and x.")
@click.option("--file-path", "-f", type=click.Path(dir_okay=False), help="Write a .npy of boxes.")
@click.option("--queue-name", "-q", help="Send the tasks to this queue.")
@click.option(
    "--create-queue/--no-create-queue",
    default=True,
    show_default=True,
    help="Make the queue, and for SQS that of its dead letters, if there is none.",
)
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
@click.option(
    "--bbox-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Boxes of interest (.csv, .json, .npy): make the tasks of the grid that touch one; "
    "without --chunk-size, one task a box.",
)
@click.option(
    "--mask",
    metavar="URL",
    help="Volume of a coarse mask; leave out tasks in which it is zero everywhere.",
)
@click.option(
    "--mask-mip", type=_COUNT, default=0, show_default=True, help="Resolution level of the mask."
)
@floats_option(
    "--voxel-size",
    help="Size of the voxels that boxes are counted in, nm, for --mask.  [default: that of "
    "--volume-path]",
)
@access_options()
def command(**options: Any) -> TaskGenerator:
    """Check what the options say together; volumes are opened later."""
    return tasks_from({**options, "opening": opening_from(options)}, dry_run=is_dry_run())
