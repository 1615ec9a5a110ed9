r"""Choose sizes, create the output volume and make tasks.

setup-env chooses among the task sizes that fit into memory. Half of --max-ram-size is reserved for
chunks, blending buffers and exchanged patches. Along y and x, the task size is a multiple of the
size of a voxel at --max-mip, and of the size of a voxel of the thumbnail.

With --queue-name, a patch at the boundary of two tasks is computed by both tasks. setup-env
therefore chooses the task size at which the fewest voxels are computed more than once. Without
--queue-name, one of the two tasks computes such a patch and passes the output to the other task.
setup-env therefore chooses the smallest task size for which at least half of the computed output
lies in the task's own box.

setup-env prints the sizes and the command for workers. `chunkflow --dry-run setup-env` only prints,
and creates neither volumes nor tasks.

Example: chunkflow setup-env --volume-start 0 0 0 --volume-size 64 512 512 \
  --volume-path file://out --output-patch-size 16 96 96 --max-mip 6

Positions are in voxels of mip 0, and task boxes in voxels of --mip. With --queue-name, the tasks
are sent to a queue; otherwise the operators that follow run on each task. With --crop-chunk-margin,
the patch grid starts at the corner of each chunk, as in chunkflow 1.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.saving_options import announced, encoding_option
from chunkflow_py.ops.options.volume_options import opening_from, requester_pays_option
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import floats_option, is_dry_run, zyx_option
from chunkflow_py.pipeline.terminal import echo, option_headings

if TYPE_CHECKING:
    from chunkflow_py.pipeline.sizing import Environment

_LEVEL = click.IntRange(min=0, max=16)
_ENCODINGS = ("raw", "jpeg", "compressed_segmentation", "fpzip", "kempressed")


@source
@option_headings(
    {
        "Output volume": (
            "volume_start", "volume_stop", "volume_size", "volume_path", "channel_num", "dtype",
            "mip", "voxel_size", "encoding", "overwrite_info",
        ),
        "Thumbnail": ("thumbnail", "thumbnail_mip"),
        "Task size": (
            "max_ram_size", "output_patch_size", "input_patch_size", "output_patch_overlap",
            "crop_chunk_margin", "max_mip",
        ),
        "Queue": ("queue_name", "visibility_timeout"),
    }
)  # fmt: skip
@zyx_option(
    "--volume-start", required=True, help="First voxel of the output, voxels of mip 0, zyx."
)
@zyx_option("--volume-stop", help="End of the output (exclusive), voxels of mip 0, zyx.")
@zyx_option("--volume-size", "-s", minimum=1, help="Extent of the output, voxels of mip 0, zyx.")
@click.option("--volume-path", "--layer-path", "-l", required=True,
              help="Volume to create, such as file://out or gs://bucket/affinity.")  # fmt: skip
@click.option("--max-ram-size", "-r", type=click.FloatRange(min=0, min_open=True), default=15,
              show_default=True, help="Memory that a worker may use, GB.")  # fmt: skip
@zyx_option("--output-patch-size", "-z", minimum=1, required=True,
            help="Size of the output patch of the network, voxels, zyx.")  # fmt: skip
@zyx_option("--input-patch-size", "-i", minimum=1,
            help="Size of the input patch, voxels, zyx.  [default: the output patch]")  # fmt: skip
@click.option("--channel-num", "-c", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of channels of the output; 3 for an affinity map.")  # fmt: skip
@click.option("--dtype", "-d", type=click.Choice(["uint8", "float16", "float32"]),
              default="float32", show_default=True,
              help="Type of the output; float16 is stored as float32.")  # fmt: skip
@zyx_option("--output-patch-overlap", "-o", minimum=0,
            help="Overlap of output patches, voxels, zyx.  [default: half a patch]")  # fmt: skip
@zyx_option("--crop-chunk-margin", minimum=0,
            help="Voxels to crop on each side of a chunk's output, zyx.")  # fmt: skip
@click.option("--mip", "-m", type=_LEVEL, default=0, show_default=True,
              help="Resolution level of the output.")  # fmt: skip
@click.option("--thumbnail-mip", "-b", type=_LEVEL, default=6, show_default=True,
              help="Resolution level of the thumbnail.")  # fmt: skip
@click.option("--max-mip", "-x", type=_LEVEL, default=8, show_default=True,
              help="Coarsest level of masks; along y and x, the task size is a multiple of the "
                   "size of a voxel of this level.")  # fmt: skip
@click.option("--queue-name", "-q", help="Queue to send the tasks to; created if missing.")
@click.option("--visibility-timeout", "-t", type=click.IntRange(1, 12 * 3600), default=3600,
              show_default=True, help="Length of a task's lease, seconds: the time in which only "
                                      "one worker may compute the task.")  # fmt: skip
@click.option("--thumbnail/--no-thumbnail", default=True, show_default=True,
              help="Also create a volume for thumbnails of the output.")  # fmt: skip
@encoding_option("the output", "-e", choices=_ENCODINGS, default="raw")
@floats_option("--voxel-size", "-v", default=(40, 4, 4), show_default=True,
               help="Edge lengths of a voxel at mip 0, nm, zyx.")  # fmt: skip
@click.option("--overwrite-info/--no-overwrite-info", default=False, show_default=True,
              help="If the volume exists with other metadata, overwrite the metadata.")  # fmt: skip
@requester_pays_option()
def command(
    volume_start: Any,
    volume_stop: Any,
    volume_size: Any,
    thumbnail: bool,
    thumbnail_mip: int,
    **options: Any,
) -> Environment:
    """Return the source of the tasks, which creates the volumes when the pipeline starts."""
    from chunkflow_py.pipeline.sizing import Environment

    opening = opening_from(options)
    del options["requester_pays"]
    return Environment(
        region=(volume_start, volume_stop, volume_size),
        thumbnail_mip=thumbnail_mip if thumbnail else None,
        opening=opening,
        announced=announced(),
        dry_run=is_dry_run(),
        tell=echo,
        **options,
    )
