"""Trace the centre lines of objects.

Example: chunkflow load-precomputed -v seg skeletonize --const 300 save-swc -p swc/

Of a volume in tasks, each writes a fragment ID:BOX for each of its objects to --output-path, which
aggregate-skeleton-fragments joins: `generate-tasks ... load-precomputed --expand-margin-size auto
skeletonize --output-path seg`, then `aggregate-skeleton-fragments -f seg`. Fragments are in
Neuroglancer's precomputed format, not the pickles of old igneous, which could run code.

Lengths are nanometres. By kimimaro (TEASAR), which is under the GPL: pip install
'chunkflow_py[skeleton]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import check_extra
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import (
    NUMBERS,
    floats_option,
    input_option,
    is_dry_run,
    output_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.skeleton import Skeleton
    from chunkflow_py.segmentation.skeletonize import Skeletonizer

SECTION = "objects"

# option -> what it does; defaults are kimimaro's
TEASAR = {
    "scale": (1.5, "Around a line, what is nearer than this times its distance to the surface"),
    "const": (300.0, "plus this, nm, is traced already."),
    "pdrf_scale": (100000.0, "How much lines keep to the middle of an object."),
    "pdrf_exponent": (4, "How steeply being near to the surface costs."),
    "soma_detection_threshold": (750.0, "A thicker object, nm, is looked at for a cell body."),
    "soma_acceptance_threshold": (3500.0, "A thicker object, nm, has a cell body."),
    "soma_invalidation_scale": (2.0, "As --scale, for the cell body."),
    "soma_invalidation_const": (300.0, "As --const, for the cell body."),
}


def skeletonize(chunk: Chunk, **settings: Any) -> dict[int, Skeleton]:
    """Return the centre line of each object of a chunk, by their ids.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x), 0 is background.
        settings: of `chunkflow_py.segmentation.skeletonize.create_skeletons`: ``box``, ``ids``,
            ``dust_threshold``, ``scale``, ``const``, ...

    Raises:
        ChunkError: the voxels are no labels.
        MissingExtraError: kimimaro is not installed.
    """
    from chunkflow_py.segmentation.skeletonize import create_skeletons

    return create_skeletons(chunk, **settings)


def _teasar_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (default, text) in reversed(TEASAR.items()):
        function = click.option(
            f"--{name.replace('_', '-')}",
            type=click.IntRange(1) if isinstance(default, int) else click.FloatRange(0),
            default=default,
            show_default=True,
            help=text,
        )(function)
    return function


@operator("compute")
@input_option(help="Name of the chunk of labels.")
@output_option(default="skels", help="Name of the skeletons to make, by the ids of their objects.")
@click.option(
    "--output-path",
    help="URL of a precomputed volume, or of a folder, to write fragments to.  [default: none]",
)
@floats_option("--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: chunk's]")
@_teasar_options
@click.option(
    "--max-paths", type=click.IntRange(min=1), help="Most branches of an object.  [default: all]"
)
@click.option(
    "--dust-threshold",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Leave out pieces of no more voxels.",
)
@click.option("--ids", type=NUMBERS, help="Ids of the only objects to trace, such as 7,12.")
@click.option(
    "--fix-branching/--no-fix-branching",
    default=True,
    show_default=True,
    help="Let branches leave where they should, or be faster.",
)
@click.option(
    "--fill-holes/--keep-holes",
    default=False,
    show_default=True,
    help="Fill holes in objects before; labels inside of them are lost.",
)
def command(
    input_name: str,
    output_name: str,
    output_path: str | None,
    voxel_size: tuple[float, float, float] | None,
    **settings: Any,
) -> Skeletonizer:
    """Take the options; a dry run writes no fragments."""
    from chunkflow_py.segmentation.skeletonize import SkeletonFragments, Skeletonizer
    from chunkflow_py.volume.location import Location

    check_extra("skeleton", "skeletonize", "kimimaro")
    settings["voxel_size_nm"] = voxel_size
    if output_path is None or is_dry_run():
        return Skeletonizer(input_name, output_name, settings)
    place = Location.parse(output_path).store_url
    return SkeletonFragments(input_name, output_name, settings, place)
