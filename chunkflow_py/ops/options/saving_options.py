"""Options of commands that write or create volumes, and the saver or creator that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.volume_options import (
    TIME,
    access_from,
    opening_from,
    requester_pays_option,
    together,
)
from chunkflow_py.pipeline.params import (
    Decorator,
    floats_option,
    input_option,
    mip_option,
    zyx_option,
)
from chunkflow_py.volume import ZARR_ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.new_volume import VolumeCreator
    from chunkflow_py.volume.output import VolumeOutput
    from chunkflow_py.volume.protocol import VolumeSpec

    Announced = dict[str, Callable[[], VolumeSpec | None]]

# As in volume.precomputed.precomputed_info, which imports too much for parsing a command line.
PRECOMPUTED_DTYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32",
)  # fmt: skip
PRECOMPUTED_ENCODINGS = (
    "raw", "jpeg", "compressed_segmentation", "kempressed", "npz", "fpzip", "npz_uint8",
    "png", "compresso", "crackle", "jxl", "zfpc",
)  # fmt: skip
ENCODINGS = tuple(dict.fromkeys((*PRECOMPUTED_ENCODINGS, *ZARR_ENCODINGS)))


def saving_options(
    *block_names: str, encodings: Sequence[str] = ENCODINGS, encoding: str | None = None
) -> Decorator:
    """Declare what every saver of volumes takes; `output_from` reads it.

    Args:
        block_names: names of the option of the block size, its long one last.
        encodings: that the format has.
        encoding: the format's default.
    """
    usual: dict[str, Any] = {"default": encoding, "show_default": True} if encoding else {}
    told = "Compression of a new volume." + ("" if encoding else "  [default: the format's]")
    return together(
        input_option(),
        mip_option(),
        click.option("--time", type=TIME, help="Time index to write.  [default: the task's]"),
        click.option(
            "--times",
            type=click.IntRange(min=1),
            help="Time points of a new volume.  [default: the input's, if tasks name a time]",
        ),
        click.option(
            "--upload-log/--no-upload-log",
            default=False,
            show_default=True,
            help="Write where the time went to log/BOX.json in the volume.",
        ),
        click.option(
            "--create-thumbnail/--no-create-thumbnail",
            default=False,
            show_default=True,
            help="Write the last channel, shrunk along y and x, to thumbnail in the volume.",
        ),
        click.option(
            "--intensity-threshold",
            "-t",
            type=float,
            help="Save nothing if all voxels are below this.",
        ),
        click.option(
            "--fill-missing/--no-fill",
            default=False,
            show_default=True,
            help="Store blocks of zeros too; or leave them out.",
        ),
        zyx_option(
            *block_names,
            "block_size",
            minimum=1,
            help="Block of a new volume, voxels, zyx.  [default: up to 64, to fit the tasks]",
        ),
        zyx_option(
            "--shard-size", minimum=1, help="Blocks of a new volume written as one, voxels, zyx."
        ),
        click.option("--encoding", type=click.Choice(encodings), help=told, **usual),
        zyx_option(
            "--factor",
            minimum=1,
            default=(2, 2, 2),
            show_default=True,
            help="Shrinkage from level to level of a new volume, zyx.",
        ),
        click.option(
            "--create/--no-create", default=True, show_default=True, help="Create a missing volume."
        ),
        requester_pays_option(),
    )


def parallel_option() -> Decorator:
    """Declare ``--parallel/-p`` of a saver."""
    return click.option(
        "--parallel",
        "-p",
        type=click.IntRange(min=0),
        help="Blocks to encode and write at the same time; 0: one a core.  [default: 0]",
    )


def output_from(
    url: str, options: Mapping[str, Any], *, format: str | None = None, **more: Any
) -> VolumeOutput:
    """Return what writes a volume as `saving_options` describe.

    Args:
        url: of the volume.
        options: by their names.
        format: of the volume, where the address does not say it.
        more: further attributes of `VolumeSaver`.

    Raises:
        OptionError: two options contradict each other.
    """
    from chunkflow_py.volume.output import VolumeOutput
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.saver import VolumeSaver

    check_shard(options["shard_size"], options["block_size"])
    taken = ("mip", "create", "time", "times", "block_size", "shard_size", "encoding", "factor")
    opening = VolumeOptions(
        store_zeros=options["fill_missing"],
        parallel=options.get("parallel") or None,
        access=access_from(options),
    )
    context = click.get_current_context()
    said = {key: options[key] for key in taken}
    if context.get_parameter_source("encoding") is click.core.ParameterSource.DEFAULT:
        said["encoding"] = None  # that is the format's own; a volume may exist with another
    saver = VolumeSaver(
        url,
        format=format,
        opening=opening,
        announced=announced(),
        **{**said, **more},
    )
    kept = ("input_name", "intensity_threshold", "upload_log", "create_thumbnail")
    return VolumeOutput(
        saver, **{key: options[key] for key in kept}, name=context.info_name or "save-volume"
    )


def check_shard(shard_size: Zyx | None, block_size: Zyx | None) -> None:
    """Refuse shards that are not made of whole blocks.

    Raises:
        OptionError: names the nearest size that works.
    """
    if shard_size is None:
        return
    if block_size is None:
        msg = f"--shard-size {shard_size} needs a block size, of which it is a multiple; give both"
        raise OptionError(msg)
    if any(shard_size % block_size):
        near = -(-shard_size // block_size) * block_size
        msg = f"--shard-size {shard_size} is no multiple of the block {block_size}; try {near}"
        raise OptionError(msg)


def check_format(url: str, format: str, options: Collection[str]) -> None:
    """Refuse options of one format for a volume whose address names another.

    Args:
        url: of the volume.
        format: that has these options.
        options: names of those that were given, as of parameters.

    Raises:
        OptionError: names the option and both formats.
    """
    from chunkflow_py.volume.location import Location

    found = Location.parse(url).format
    if options and found not in (None, format):
        name = next(iter(options)).replace("_", "-")
        msg = f"--{name} is for {format} volumes, but {url} is a {found} volume; leave it out"
        raise OptionError(msg)


def announced() -> Announced:
    """Return what the commands of this line will create, shared by all of them.

    Address of the volume -> its description at mip 0, or ``None`` if only a chunk will tell.
    """
    context = click.get_current_context()
    found: Announced = context.meta.setdefault("chunkflow_py.announced", {})
    return found


# --- creating -----------------------------------------------------------------------------------


def creating_options(*, like: bool = False) -> Decorator:
    """Declare what every creator of volumes takes; `creator_from` reads it.

    Args:
        like: another volume may say what options do not.
    """
    return together(
        click.option(
            "--input-name",
            "--input-chunk-name",
            "-i",
            default="chunk",
            show_default=True,
            help="Chunk to describe, if the line has made one.",
        ),
        floats_option("--voxel-size", "-s", help="Edge lengths of a voxel, nm, zyx."),
        zyx_option("--voxel-offset", "-o", help="Global position of the first voxel, zyx."),
        zyx_option("--volume-size", "-z", minimum=1, help="Extent of the volume, voxels, zyx."),
        zyx_option(
            "--factor",
            "-f",
            minimum=1,
            default=None if like else (2, 2, 2),
            show_default="those of --like, else 2 2 2" if like else True,
            help="Shrinkage from each level to the next, zyx.",
        ),
        click.option(
            "--max-mip",
            "-m",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="The coarsest level.",
        ),
        click.option(
            "--overwrite/--no-overwrite",
            default=False,
            show_default=True,
            help="Replace the description of another volume that is there.",
        ),
        requester_pays_option(),
    )


def creator_from(options: Mapping[str, Any], **more: Any) -> VolumeCreator:
    """Return the creator that `creating_options` describe.

    Args:
        options: by their names.
        more: further attributes of `VolumeCreator`.
    """
    from chunkflow_py.volume.new_volume import VolumeCreator

    said = dict(options)
    opening = opening_from(said)
    del said["requester_pays"]
    return VolumeCreator(
        said.pop("volume_path"),
        opening=opening,
        announced=announced(),
        command=click.get_current_context().info_name or "create-volume",
        **said,
        **more,
    )
