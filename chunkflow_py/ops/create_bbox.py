r"""Make one task for a given box.

Example: chunkflow create-bbox --start 0 0 0 --size 20 256 256 load-h5 --file-name raw.h5 \
  save-h5 --file-name cut.h5
"""

from __future__ import annotations

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import TaskSource, source
from chunkflow_py.pipeline.params import zyx_option
from chunkflow_py.tasks.task_grid import region_of


def create_bbox(start: Zyx, stop: Zyx | None = None, size: Zyx | None = None) -> BoundingBox:
    """Return the box from *start* to *stop*, or from *start* with extent *size* (voxels, zyx).

    Raises:
        OptionError: neither *stop* nor *size* is given, *stop* and *size* disagree, or the box
            would be empty.
    """
    start, end = region_of(start, stop, size, names=("--start", "--stop", "--size"))
    if end is None:
        msg = f"--start {start} alone does not define a box; also give --stop or --size"
        raise OptionError(msg)
    return BoundingBox(start, end)


@source
@zyx_option("--start", "-s", required=True, help="First voxel of the box, zyx.")
@zyx_option("--stop", "-p", help="End of the box (exclusive), voxels, zyx.")
@zyx_option("--size", "-z", minimum=1, help="Extent of the box, voxels, zyx.")
def command(start: Zyx, stop: Zyx | None, size: Zyx | None) -> TaskSource:
    """Return the source of a single task, which has the given box."""
    return TaskSource([create_bbox(start, stop, size)], is_divided=False)
