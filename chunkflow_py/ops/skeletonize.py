r"""Trace the centre lines of objects.

Example: chunkflow load-precomputed --volume-path seg skeletonize --const 300 \
  save-swc --output-prefix swc/

If a volume is divided into tasks, each task writes a fragment ID:BOX for each of its objects to
--output-path. Then aggregate-skeleton-fragments joins the fragments. The two commands are
`generate-tasks ... load-precomputed --expand-margin-size auto skeletonize --output-path seg` and
`aggregate-skeleton-fragments --fragments-path seg`. Fragments are in Neuroglancer's precomputed
format. Unlike older igneous versions, skeletonize writes no pickles, because loading a pickle can
run code.

Lengths are in nanometres. This operator uses kimimaro (TEASAR), which is licensed under the GPL;
install it with pip install 'chunkflow_py[skeleton]'.
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
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.skeleton import Skeleton
    from chunkflow_py.segmentation.skeletonize import Skeletonizer

SECTION = "objects"

# option -> default of kimimaro, and help
TEASAR = {
    "scale": (
        1.5,
        "Invalidation radius around a path, as a multiple of the distance from the path to the "
        "surface.",
    ),
    "const": (300.0, "Constant to add to the invalidation radius, nm."),
    "pdrf_scale": (100000.0, "Scale of the penalty for paths near the surface."),
    "pdrf_exponent": (4, "Exponent of the penalty for paths near the surface."),
    "soma_detection_threshold": (
        750.0,
        "Radius above which an object is checked for a cell body, nm.",
    ),
    "soma_acceptance_threshold": (
        3500.0,
        "Radius above which an object has a cell body, nm.",
    ),
    "soma_invalidation_scale": (2.0, "Value of --scale for cell bodies."),
    "soma_invalidation_const": (300.0, "Value of --const for cell bodies, nm."),
}


def skeletonize(chunk: Chunk, **settings: Any) -> dict[int, Skeleton]:
    """Return the skeleton (centre lines) of each object of a chunk, keyed by object id.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x); 0 is background.
        settings: arguments of `chunkflow_py.segmentation.skeletonize.create_skeletons`, such as
            ``ids``, ``dust_threshold``, ``scale`` and ``const``.

    Raises:
        ChunkError: the voxels are not labels.
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
@option_headings(
    {
        "Centre lines": (
            "scale", "const", "pdrf_scale", "pdrf_exponent", "max_paths", "fix_branching",
        ),
        "Cell bodies": (
            "soma_detection_threshold", "soma_acceptance_threshold", "soma_invalidation_scale",
            "soma_invalidation_const",
        ),
        "Choice of objects": ("ids", "dust_threshold", "fill_holes"),
    }
)  # fmt: skip
@input_option(help="Name of the chunk of labels.")
@output_option(default="skels", help="Name of the item for the skeletons.")
@click.option(
    "--output-path",
    help="URL of a precomputed volume, or of a folder, to write fragments to.  [default: none]",
)
@floats_option(
    "--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: as in the chunk]"
)
@_teasar_options
@click.option(
    "--max-paths",
    type=click.IntRange(min=1),
    help="Largest number of paths (branches) per object.  [default: all]",
)
@click.option(
    "--dust-threshold",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Leave out objects with at most this many voxels in the chunk.",
)
@click.option("--ids", type=NUMBERS, help="Ids of objects to trace, such as 7,12.  [default: all]")
@click.option(
    "--fix-branching/--no-fix-branching",
    default=True,
    show_default=True,
    help="Compute more accurately where branches leave the trunk; slower.",
)
@click.option(
    "--fill-holes/--keep-holes",
    default=False,
    show_default=True,
    help="Fill holes in objects first; labels inside the holes are lost.",
)
def command(
    input_name: str,
    output_name: str,
    output_path: str | None,
    voxel_size: tuple[float, float, float] | None,
    **settings: Any,
) -> Skeletonizer:
    """Return the operator, which writes no fragments in a dry run."""
    from chunkflow_py.segmentation.skeletonize import SkeletonFragments, Skeletonizer
    from chunkflow_py.volume.location import Location

    check_extra("skeleton", "skeletonize", "kimimaro")
    settings["voxel_size_nm"] = voxel_size
    if output_path is None or is_dry_run():
        return Skeletonizer(input_name, output_name, settings)
    place = Location.parse(output_path).store_url
    return SkeletonFragments(input_name, output_name, settings, place)
