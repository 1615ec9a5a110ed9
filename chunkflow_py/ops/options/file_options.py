"""Options of operators that load single files; `file_loader` makes such an operator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import (
    Decorator,
    channels_option,
    expand_margin_option,
    floats_option,
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName, OnePath
    from chunkflow_py.volume.files.file_volume import FileVolume
    from chunkflow_py.volume.loader import VolumeLoader


def file_name_option(help: str, *aliases: str) -> Decorator:
    """Declare the required option ``--file-name/-f``."""
    return click.option("--file-name", *aliases, "-f", required=True, help=help)


def placement_options(size_flag: str = "-s") -> Decorator:
    """Declare ``--voxel-offset`` and ``--voxel-size``, which override the values in the file."""
    return together(
        zyx_option(
            "--voxel-offset",
            "-v",
            help="Global position of the first voxel, instead of the position in the file.",
        ),
        floats_option(
            "--voxel-size",
            size_flag,
            help="Edge lengths of a voxel, zyx, in nm or as 0.5um, instead of those in the file.",
        ),
    )


def assumed_placement_options(offset_help: str, size_flag: str) -> Decorator:
    """Declare ``--voxel-offset`` and ``--voxel-size`` for a format that stores neither."""
    return together(
        zyx_option("--voxel-offset", "-t", default=(0, 0, 0), show_default=True, help=offset_help),
        floats_option(
            "--voxel-size",
            size_flag,
            default=(1, 1, 1),
            show_default=True,
            help="Edge lengths of a voxel, zyx, in nm or as 0.5um. Without this option, a warning "
            "is logged.",
        ),
    )


def file_path_option() -> Decorator:
    """Declare the required option ``--file-path/-f``, a path or URL."""
    return click.option(
        "--file-path",
        "-f",
        required=True,
        help="Path or URL of a file, or prefix for one file per task.",
    )


def suffix_option() -> Decorator:
    """Declare ``--suffix/-s``, the end of file names that consist of prefix, box and suffix."""
    return click.option(
        "--suffix", "-s", default="", show_default="empty", help="End of the file names."
    )


def dtype_option(dtypes: Sequence[str], *flags: str) -> Decorator:
    """Declare ``--dtype``, the data type to which a loader converts the voxels."""
    return click.option(
        "--dtype",
        *flags,
        type=click.Choice(dtypes),
        help="Type to convert the voxels to; values that do not fit are an error.",
    )


def saved_dtype_option(dtypes: Sequence[str], short: str) -> Decorator:
    """Declare ``--dtype`` of a saver, the data type of the voxels in the file."""
    return click.option(
        "--dtype",
        short,
        type=click.Choice(dtypes),
        help="Type to convert the voxels to. With uint8, a probability or affinity p becomes "
        "255·p. Values that do not fit are an error.",
    )


def chunk_options(*channel_flags: str) -> Decorator:
    """Declare ``--channels``, ``--expand-margin-size`` and ``--output-name``."""
    return together(channels_option(*channel_flags), expand_margin_option(), output_option())


def file_loader(
    files: FileName | OnePath,
    open_file: Callable[..., FileVolume | None],
    *,
    expand_margin_size: Any,
    output_name: str,
    cutout: Cutout | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
    set_bbox: bool = False,
    remove_empty: bool = False,
    **settings: Any,
) -> VolumeLoader:
    """Return the operator that loads a chunk for each task from files of one format.

    Args:
        files: name of the file, or prefix of the names of one file per task.
        open_file: function that opens a file as a volume; it takes the path and *settings*.
        expand_margin_size: voxels to read beyond the task's box on each side, zyx, if *cutout* is
            not given.
        output_name: name of the chunk in the task.
        cutout: part of the file to read (default: the task's box with its margin).
        channels: numbers of the channels to read (default: all).
        dtype: type to convert the voxels to (default: no conversion).
        set_bbox: whether to set the task's box to the box of the chunk.
        remove_empty: whether to delete a file that is empty or contains only zeros.
        settings: further keyword arguments of *open_file*.
    """
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_volume import FileSource
    from chunkflow_py.volume.loader import VolumeLoader

    if "voxel_size" in settings:
        settings["voxel_size_nm"] = settings.pop("voxel_size")
    if "layer_type" in settings:
        settings["kind"] = settings.pop("layer_type")
    return VolumeLoader(
        FileSource(files, partial(open_file, **settings), remove_empty),
        cutout or Cutout(margin=expand_margin_size),
        output_name,
        channels,
        dtype,
        set_bbox=set_bbox,
    )
