"""Options of commands that write or create volumes, and operators made from these options."""

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
from chunkflow_py.pipeline.terminal import option_headings
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
    """Declare the options that all volume savers share; `output_from` reads their values.

    Args:
        block_names: spellings of the option for the block size.
        encodings: encodings that the format supports.
        encoding: default encoding; ``None`` lets the format decide.
    """
    return together(
        option_headings(
            {
                "New volume": (
                    "create",
                    "times",
                    "block_size",
                    "shard_size",
                    "encoding",
                    "factor",
                ),
                "Records": ("upload_log", "create_thumbnail"),
            }
        ),
        input_option(),
        mip_option(),
        click.option(
            "--time", type=TIME, help="Time index to write.  [default: time index of the task]"
        ),
        click.option(
            "--times",
            type=click.IntRange(min=1),
            help="Number of time points of a new volume.  [default: as in the input if tasks have "
            "a time index, else no time axis]",
        ),
        click.option(
            "--upload-log/--no-upload-log",
            default=False,
            show_default=True,
            help="Write the time of each operator, seconds, to log/BOX.json in the volume.",
        ),
        click.option(
            "--create-thumbnail/--no-create-thumbnail",
            default=False,
            show_default=True,
            help="Write the last channel, downsampled along y and x, to the folder thumbnail of "
            "the volume.",
        ),
        click.option(
            "--intensity-threshold",
            "-t",
            type=float,
            help="Do not save a chunk whose voxels are all below this value.",
        ),
        click.option(
            "--fill-missing/--no-fill",
            default=False,
            show_default=True,
            help="Store blocks that are all zero, or leave such blocks out.",
        ),
        block_size_option(
            "a new volume", *block_names, default="up to 64, aligned with task boundaries"
        ),
        shard_size_option("a new volume"),
        encoding_option("a new volume", choices=encodings, default=encoding),
        zyx_option(
            "--factor",
            minimum=1,
            default=(2, 2, 2),
            show_default=True,
            help="Downsampling factor from each level of a new volume to the next, zyx.",
        ),
        click.option(
            "--create/--no-create",
            default=True,
            show_default=True,
            help="Create the volume if it does not exist.",
        ),
        requester_pays_option(),
    )


def block_size_option(volume: str, *names: str, default: str | None) -> Decorator:
    """Declare the option for the block size of a new volume; its parameter is ``block_size``.

    Args:
        volume: noun that stands for the volume in the help text.
        names: spellings of the option.
        default: description of the default in the help text. With ``None``, the option is required.
    """
    return zyx_option(
        *names,
        "block_size",
        minimum=1,
        required=default is None,
        help=f"Size of a block of {volume}, voxels, zyx."
        + (f"  [default: {default}]" if default else ""),
    )


def shard_size_option(volume: str) -> Decorator:
    """Declare ``--shard-size``; *volume* names the volume in the help."""
    return zyx_option(
        "--shard-size",
        minimum=1,
        help=f"Size of a shard (several blocks in one file) of {volume}, voxels, zyx.",
    )


def encoding_option(
    volume: str, *short: str, choices: Sequence[str] = ENCODINGS, default: str | None = None
) -> Decorator:
    """Declare ``--encoding`` of a new volume.

    Args:
        volume: noun that stands for the volume in the help text.
        short: short spelling of the option.
        choices: encodings that the format supports.
        default: default encoding; ``None`` lets the format decide.
    """
    shown: dict[str, Any] = {"default": default, "show_default": True} if default else {}
    return click.option(
        "--encoding",
        *short,
        type=click.Choice(choices),
        help=f"Compression of {volume}." + ("" if default else "  [default: set by the format]"),
        **shown,
    )


def parallel_option() -> Decorator:
    """Declare ``--parallel/-p`` of a saver."""
    return click.option(
        "--parallel",
        "-p",
        type=click.IntRange(min=0),
        help="Number of blocks to encode and write at the same time; 0: one per core.  [default: "
        "0]",
    )


def output_from(
    url: str, options: Mapping[str, Any], *, format: str | None = None, **more: Any
) -> VolumeOutput:
    """Return the operator that saves the chunks of tasks to a volume.

    Args:
        url: address of the volume.
        options: values of the options that `saving_options` declares, by parameter name.
        format: format of the volume, if the address does not name the format.
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
    settings = {key: options[key] for key in taken}
    if context.get_parameter_source("encoding") is click.core.ParameterSource.DEFAULT:
        settings["encoding"] = None  # the format's default; an existing volume may have another
    saver = VolumeSaver(
        url,
        format=format,
        opening=opening,
        announced=announced(),
        **{**settings, **more},
    )
    kept = ("input_name", "intensity_threshold", "upload_log", "create_thumbnail")
    return VolumeOutput(
        saver, **{key: options[key] for key in kept}, name=context.info_name or "save-volume"
    )


def check_shard(shard_size: Zyx | None, block_size: Zyx | None) -> None:
    """Check that the shard size is a multiple of the block size along each axis.

    Raises:
        OptionError: the shard size is not a multiple; the message names the next larger multiple.
    """
    if shard_size is None:
        return
    if block_size is None:
        msg = (
            f"--shard-size {shard_size} (zyx, voxels) needs a block size; give a --block-size that "
            "divides the shard size along each axis"
        )
        raise OptionError(msg)
    if any(shard_size % block_size):
        near = -(-shard_size // block_size) * block_size
        msg = (
            f"--shard-size {shard_size} is not a multiple of the block size {block_size} (zyx, "
            f"voxels); try {near}"
        )
        raise OptionError(msg)


def check_format(url: str, format: str, options: Collection[str]) -> None:
    """Check that options of one format are not given for a volume of another format.

    Args:
        url: address of the volume.
        format: format that *options* belong to.
        options: parameter names of the given options.

    Raises:
        OptionError: the address names another format.
    """
    from chunkflow_py.volume.location import Location

    actual = Location.parse(url).format
    if options and actual not in (None, format):
        name = next(iter(options)).replace("_", "-")
        msg = (
            f"--{name} is only for {format} volumes, but {url} is a {actual} volume; leave "
            f"--{name} out"
        )
        raise OptionError(msg)


def announced() -> Announced:
    """Return the volumes that this pipeline will create.

    All commands of a pipeline share one dict, so that a command knows the volumes that earlier
    commands will create. The keys are addresses. Each value is a function that returns the
    `VolumeSpec` of mip 0, or ``None`` if the spec depends on a chunk.
    """
    context = click.get_current_context()
    volumes: Announced = context.meta.setdefault("chunkflow_py.announced", {})
    return volumes


# --- creating -----------------------------------------------------------------------------------


def creating_options(*, like: bool = False) -> Decorator:
    """Declare the options of commands that create volumes; `creator_from` reads their values.

    Args:
        like: whether the command has the option --like, which names a volume to take properties
            from.
    """
    return together(
        click.option(
            "--input-name",
            "--input-chunk-name",
            "-i",
            default="chunk",
            show_default=True,
            help="Name of a chunk that supplies properties for which no option is given; the chunk "
            "need not exist.",
        ),
        floats_option(
            "--voxel-size", "-s", help="Edge lengths of a voxel, zyx, in nm or as 0.5um."
        ),
        zyx_option("--voxel-offset", "-o", help="Global position of the first voxel, zyx."),
        zyx_option("--volume-size", "-z", minimum=1, help="Extent of the volume, voxels, zyx."),
        zyx_option(
            "--factor",
            "-f",
            minimum=1,
            default=None if like else (2, 2, 2),
            show_default="factor of --like, else 2 2 2" if like else True,
            help="Downsampling factor from each level to the next, zyx.",
        ),
        click.option(
            "--max-mip",
            "-m",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Coarsest level to create.",
        ),
        click.option(
            "--overwrite/--no-overwrite",
            default=False,
            show_default=True,
            help="Replace the metadata of an existing volume.",
        ),
        requester_pays_option(),
    )


def creator_from(options: Mapping[str, Any], **more: Any) -> VolumeCreator:
    """Return the operator that creates a volume.

    Args:
        options: values of the options that `creating_options` declares, by parameter name.
        more: further attributes of `VolumeCreator`.
    """
    from chunkflow_py.volume.new_volume import VolumeCreator

    settings = dict(options)
    opening = opening_from(settings)
    del settings["requester_pays"]
    return VolumeCreator(
        settings.pop("volume_path"),
        opening=opening,
        announced=announced(),
        command=click.get_current_context().info_name or "create-volume",
        **settings,
        **more,
    )
