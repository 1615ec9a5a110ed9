"""Save skeletons to SWC files.

Example: chunkflow load-skeleton --path seg save-swc --output-prefix swc/

The file of an object is named PREFIXID.swc, where ID is the object id; the prefix may be a URL. If
there are several tasks, the files are named PREFIXBOX_ID.swc, where BOX is the box of the task. To
join the parts of an object from several tasks, use skeletonize --output-path and
aggregate-skeleton-fragments. Coordinates and radii are in nanometres, in the order x y z. SWC
cannot store loops: the edge that closes a loop is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.core.skeleton import Skeleton
    from chunkflow_py.segmentation.skeleton_files import SwcSaver

SECTION = "objects"


def save_swc(skeletons: dict[int, Skeleton], prefix: str = "./") -> None:
    """Write each skeleton to an SWC file, under a temporary name until the file is complete.

    Args:
        skeletons: skeletons by object id.
        prefix: path or URL that the file names begin with.

    Raises:
        VolumeError: a file cannot be written.
    """
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.skeleton_files import SwcSaver

    SwcSaver("skels", prefix)(Task(items={"skels": skeletons}))


@operator("write")
@input_option(default="skels", help="Name of the skeletons to save.")
@click.option(
    "--output-prefix",
    "-p",
    default="./",
    show_default=True,
    help="Path or URL that the file names begin with.",
)
def command(input_name: str, output_prefix: str) -> SwcSaver:
    """Return the operator that saves skeletons to files with this prefix."""
    from chunkflow_py.segmentation.skeleton_files import SwcSaver

    return SwcSaver(input_name, output_prefix)
