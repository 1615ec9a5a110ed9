"""Load PNG slices, all or only those of a task.

Example: chunkflow load-png --path pngs/ --voxel-size 40 4 4 save-h5 --file-name raw.h5

The path is a folder, one file, or a prefix: `--path pngs/raw_` reads pngs/raw_00000.png and so on.
If --voxel-offset is given, or if all slices are loaded, the first slice is at --voxel-offset.
Otherwise, the number in the name of a slice is the z position of the slice, by which the box of a
task, or --chunk-size, selects slices.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from chunkflow_py.ops.options.file_options import (
    assumed_placement_options,
    chunk_options,
    dtype_option,
)
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.volume.loader import VolumeLoader

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


def load_png(
    path: str | Path,
    bbox: BoundingBox | None = None,
    voxel_offset: Zyx | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Chunk:
    """Return PNG slices as a chunk, one slice per z.

    Args:
        path: path of a folder or of one file, or a prefix of the paths of files.
        bbox: box to read, in global voxels (default: all).
        voxel_offset: global position of the first slice, zyx. The default is 0, 0, 0 without
            *bbox*. With *bbox*, the default z is the number in the name of the first slice.
        channels: numbers of the colour channels to read, in the order of the result (default: all).
        dtype: type to convert the voxels to (default: the type in the files).

    Raises:
        VolumeError: a slice is missing or cannot be read.
        ChunkError: slices differ in size or type, or a voxel does not fit into *dtype*.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.file_volume import ORIGIN
    from chunkflow_py.volume.files.png import open_png

    if bbox is None and voxel_offset is None:
        voxel_offset = ORIGIN
    return converted(open_png(Path(path), voxel_offset).read(bbox, channels), dtype)


@operator("read")
@click.option("--path", "-p", required=True, help="Folder, PNG file, or prefix of PNG files.")
@zyx_option(
    "--cutout-offset",
    "-c",
    default=(0, 0, 0),
    show_default=True,
    help="With --chunk-size: global position of the first voxel to read, zyx.",
)
@assumed_placement_options(
    "Global position of the first voxel.  [default: 0 0 0; if only a part is loaded, z is the "
    "number of the first slice]",
    "-x",
)
@click.option(
    "--digit-num",
    "-d",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of digits in a file name; selects one of several files with equal numbers, such "
    "as 7.png and 00007.png.",
)
@zyx_option("--chunk-size", "-s", minimum=1, help="Extent of the part to read, voxels, zyx.")
@dtype_option(DTYPES)
@chunk_options()
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    cutout_offset: Zyx,
    voxel_offset: Zyx,
    voxel_size: tuple[float, float, float],
    digit_num: int,
    chunk_size: Zyx | None,
    dtype: str | None,
    channels: tuple[int, ...] | None,
    expand_margin_size: Zyx | Literal["auto"],
    output_name: str,
) -> VolumeLoader:
    """Return the operator that loads the slices."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import OnePath, local_path
    from chunkflow_py.volume.files.file_volume import FileSource
    from chunkflow_py.volume.files.png import open_png
    from chunkflow_py.volume.loader import VolumeLoader

    def is_given(name: str) -> bool:
        return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT

    size_nm = voxel_size if is_given("voxel_size") else None
    open_file = partial(open_png, voxel_size_nm=size_nm, digit_num=digit_num)
    numbered = None if not is_given("voxel_offset") else voxel_offset
    source = FileSource(
        OnePath(Path(local_path(path, "--path")).expanduser()),
        partial(open_file, voxel_offset=numbered),
        open_whole=partial(open_file, voxel_offset=voxel_offset),
    )
    spelling = ("--cutout-offset", "its stop", "--chunk-size", "--expand-margin-size")
    start = cutout_offset if chunk_size else None
    cutout = Cutout(start, None, chunk_size, expand_margin_size, spelling)
    return VolumeLoader(source, cutout, output_name, channels, dtype)
