"""Load skeletons: SWC or precomputed.

Example: chunkflow load-skeleton --path swc/ save-swc --output-prefix copies/

--path is an SWC file, a folder of SWC files, a precomputed volume that has skeletons, or a
precomputed folder of skeletons, on disk or in a bucket. The last number in the name of an SWC file
is the id of its object. Coordinates are in nanometres. MapBuffer files of igneous cannot be read:
convert them to SWC or precomputed files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import floats_option, output_option, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.core.skeleton import Skeleton
    from chunkflow_py.segmentation.skeleton_files import SkeletonLoader

SECTION = "objects"


def load_skeleton(
    path: str, offset_nm: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> dict[int, Skeleton]:
    """Return the skeletons in a file or folder, keyed by the ids of their objects.

    Args:
        path: path or URL of an SWC file, of a folder of SWC files, of a precomputed volume that has
            skeletons, or of a precomputed folder of skeletons.
        offset_nm: offset to add to all coordinates, nanometres, zyx.

    Raises:
        VolumeNotFoundError: there are no skeletons at *path*.
        VolumeError: a file cannot be read.
    """
    from chunkflow_py.segmentation.skeleton_files import read_skeletons

    return {label: each.moved(offset_nm) for label, each in read_skeletons(path).items()}


@operator("read")
@click.option(
    "--path",
    "-p",
    required=True,
    help="Path or URL of an SWC file, a folder of SWC files, or precomputed skeletons.",
)
@click.option(
    "--offset",
    nargs=3,
    type=float,
    metavar="Z Y X",
    help="Offset to add to all coordinates, nm, zyx.",
)
@zyx_option(
    "--voxel-offset", "-t", help="Offset to add to coordinates, voxels, zyx; needs --voxel-size."
)
@floats_option(
    "--voxel-size", "-s", help="Edge lengths of a voxel, nm, zyx; used to convert --voxel-offset."
)
@output_option(default="skels", help="Name of the item that holds the skeletons.")
def command(
    path: str,
    offset: tuple[float, float, float] | None,
    voxel_offset: Zyx | None,
    voxel_size: tuple[float, float, float] | None,
    output_name: str,
) -> SkeletonLoader:
    """Compute the offset in nanometres, and return the operator that loads the skeletons."""
    from chunkflow_py.segmentation.skeleton_files import SkeletonLoader
    from chunkflow_py.volume.location import FORMATS

    if offset is not None and voxel_offset is not None:
        msg = (
            f"--offset {offset} nm and --voxel-offset {voxel_offset} both move the skeletons; give "
            "only one of these options"
        )
        raise OptionError(msg)
    if voxel_offset is not None:
        if voxel_size is None:
            msg = (
                f"--voxel-offset {voxel_offset} (zyx) is in voxels, but the size of a voxel is "
                "unknown; give --voxel-size"
            )
            raise OptionError(msg)
        z, y, x = (count * nm for count, nm in zip(voxel_offset, voxel_size, strict=True))
        offset = (z, y, x)
    scheme, separator, rest = path.partition("://")
    url = rest if separator and scheme in FORMATS else path
    return SkeletonLoader(url, offset or (0.0, 0.0, 0.0), output_name)
