r"""Mesh the objects of a chunk.

Example: chunkflow submit generate-tasks --volume-path seg --chunk-size 64 512 512 \
  load-precomputed --volume-path seg --expand-margin-size auto mesh --output-path seg \
  then mesh-manifest --volume-path seg

Each task writes a mesh fragment for each of its objects. With a margin of one voxel, which the
loader reads with --expand-margin-size auto, fragments of neighbouring tasks join without a gap.
Surfaces are closed where the volume ends. --output-path is a precomputed volume or a folder for
meshes. If it is a volume, its info file gets the name of the mesh folder. Coordinates are global,
in nanometres, in the order xyz, as in Neuroglancer and igneous.

The precomputed fragments of an object are named ID:0:BOX. mesh-manifest lists the fragments for
Neuroglancer. Files of other formats are named ID_BOX.ply and ID_BOX.obj, or ID.ply and ID.obj if
one task covers the whole volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import NUMBERS, floats_option, input_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.segmentation.mesh_creation import MeshSaver
    from chunkflow_py.segmentation.mesh_files import Mesh

SECTION = "objects"


def mesh(chunk: Chunk, **settings: Any) -> dict[int, Mesh]:
    """Return the marching-cubes surface of each object of a chunk, keyed by object id.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x); 0 is background.
        settings: arguments of `segmentation.mesh_creation.create_meshes`: ``box``,
            ``voxel_size_nm``, ``simplification_factor``, ``max_simplification_error``, ``ids``,
            ``skip_ids``, ``dust_threshold``.

    Raises:
        ChunkError: the voxels are not labels.
        MissingExtraError: zmesh is not installed.
    """
    from chunkflow_py.segmentation.mesh_creation import create_meshes

    return dict(create_meshes(chunk, **settings))


@operator("write")
@input_option(help="Name of the chunk of labels.")
@click.option(
    "--mip",
    "-m",
    type=click.IntRange(min=0),
    help="Level of the volume at --output-path from which the chunk was loaded.  [default: found "
    "from the voxel size]",
)
@floats_option(
    "--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: as in the chunk]"
)
@click.option(
    "--output-path",
    "-o",
    default="file:///tmp/mesh/",
    show_default=True,
    help="URL of a precomputed volume, or of a folder for the mesh files.",
)
@click.option(
    "--output-format",
    "-t",
    type=click.Choice(["ply", "obj", "precomputed"]),
    default="precomputed",
    show_default=True,
    help="Format of the mesh files.",
)
@click.option(
    "--simplification-factor",
    "-f",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Factor by which to reduce the number of triangles; 0 keeps all triangles.",
)
@click.option(
    "--max-simplification-error",
    "-e",
    type=click.FloatRange(min=0),
    default=40,
    show_default=True,
    help="Largest distance of the simplified surface from the original, nm.",
)
@click.option("--skip-ids", "-s", type=NUMBERS, help="Ids of objects to skip, such as 7,12.")
@click.option("--ids", type=NUMBERS, help="Ids of objects to mesh, such as 7,12.  [default: all]")
@click.option(
    "--dust-threshold",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Skip objects with fewer voxels than this in the task.",
)
@click.option(
    "--manifest/--no-manifest",
    default=False,
    show_default=True,
    help="Also list each fragment in the manifest of its object; it is faster to run mesh-manifest "
    "afterwards.",
)
@click.option(
    "--shard/--no-shard",
    default=False,
    show_default=True,
    help="Not supported: use mesh-manifest --multires or --shards.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    input_name: str,
    mip: int | None,
    voxel_size: tuple[float, float, float] | None,
    output_path: str,
    output_format: Literal["ply", "obj", "precomputed"],
    manifest: bool,
    shard: bool,
    skip_ids: tuple[int, ...] | None,
    **settings: Any,
) -> MeshSaver:
    """Check that the options are consistent, and return the operator."""
    from chunkflow_py.segmentation.mesh_creation import MeshSaver
    from chunkflow_py.volume.location import Location

    if shard:
        msg = (
            "--shard is not supported, because only igneous reads such meshes; leave --shard out "
            "and run mesh-manifest --multires, which joins the fragments of each object into one "
            "file with levels of detail"
        )
        raise OptionError(msg)
    if manifest and output_format != "precomputed":
        msg = (
            "--manifest needs --output-format precomputed, but the format is "
            f"{output_format}; leave --manifest out, or change the format"
        )
        raise OptionError(msg)
    check_extra("mesh", "mesh", "zmesh")
    if settings["dust_threshold"]:
        check_extra("segmentation", "mesh --dust-threshold", "fastremap")
    global_mip = (ctx.parent.params.get("mip") if ctx.parent else None) or 0
    settings["skip_ids"] = skip_ids or ()
    place = Location.parse(output_path).store_url
    return MeshSaver(
        place, input_name, output_format, voxel_size, mip, global_mip, manifest, settings
    )
