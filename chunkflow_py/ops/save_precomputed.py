"""Write a chunk into a precomputed volume, which is created if missing.

Example: chunkflow create-chunk --size 64 128 128 save-precomputed -v file://out

A new volume has the bounds of the volume that the line reads, and blocks that fit the tasks,
unless options say otherwise; create-info says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.params import input_option, mip_option, zyx_option
from chunkflow_py.stages import operator
from chunkflow_py.volume.precomputed_info import ENCODINGS

if TYPE_CHECKING:
    from chunkflow_py.geometry import Zyx
    from chunkflow_py.volume.precomputed_saver import PrecomputedSaver


@operator("write")
@click.option("--volume-path", "-v", required=True, help="Volume, such as file://out or gs://b/em.")
@input_option()
@mip_option()
@click.option(
    "--upload-log/--no-upload-log",
    default=False,
    show_default=True,
    help="Write where the time went to log/BOX.json in the volume.",
)
@click.option(
    "--create-thumbnail/--no-create-thumbnail",
    default=False,
    show_default=True,
    help="Write the last channel, shrunk along y and x, to thumbnail in the volume.",
)
@click.option(
    "--intensity-threshold", "-t", type=float, help="Save nothing if all voxels are below this."
)
@click.option(
    "--parallel",
    "--nproc",
    "-p",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Blocks to encode and write at the same time.",
)
@click.option(
    "--fill-missing/--no-fill",
    default=False,
    show_default=True,
    help="Store blocks of zeros too; or leave them out.",
)
@zyx_option(
    "--block-size",
    minimum=1,
    help="Block of a new volume, voxels, zyx.  [default: up to 64, to fit the tasks]",
)
@click.option(
    "--encoding",
    type=click.Choice(ENCODINGS),
    default="raw",
    show_default=True,
    help="Compression of a new volume.",
)
@zyx_option(
    "--factor",
    minimum=1,
    default=(2, 2, 2),
    show_default=True,
    help="Shrinkage from level to level of a new volume, zyx.",
)
@click.option(
    "--create/--no-create", default=True, show_default=True, help="Create a missing volume."
)
def command(
    volume_path: str,
    input_name: str,
    mip: int,
    upload_log: bool,
    create_thumbnail: bool,
    intensity_threshold: float | None,
    parallel: int,
    fill_missing: bool,
    block_size: Zyx | None,
    encoding: str,
    factor: Zyx,
    create: bool,
) -> PrecomputedSaver:
    """Take the description of the volume."""
    from chunkflow_py.volume.precomputed_saver import PrecomputedSaver
    from chunkflow_py.volume.saver import VolumeSaver

    writing = {"store_zeros": fill_missing, "parallel": parallel}
    saver = VolumeSaver(
        volume_path,
        mip,
        "precomputed",
        create,
        block_size=block_size,
        encoding=encoding,
        opening=writing,
        creating={"factor": factor, **writing},
    )
    return PrecomputedSaver(saver, input_name, intensity_threshold, upload_log, create_thumbnail)
