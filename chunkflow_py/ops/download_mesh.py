r"""Save the meshes of objects as PLY or OBJ.

Example: chunkflow download-mesh --volume-path precomputed://file:///data/seg --input 34,25,38 \
  --out-pre meshes/

--input is a list of ids separated by commas, a text file of ids, or the name of a chunk of labels
that the pipeline has loaded. The objects of a chunk are sorted by size, the largest first.
--start-rank and --stop-rank select a part of the list. The manifest of an object, which
mesh-manifest writes, lists the fragments of the object. The fragments are merged into one surface.
The surface is saved to a file named after --out-pre, the id and the format, such as meshes/34.ply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.segmentation.mesh_files import Mesh
    from chunkflow_py.segmentation.mesh_folder import MeshDownload

SECTION = "objects"


def download_mesh(url: str, label: int) -> Mesh:
    """Return the mesh of an object, merged from its fragments without duplicate vertices.

    Args:
        url: URL of a folder of meshes, or of a precomputed volume whose info file names such a
            folder.
        label: id of the object.

    Raises:
        VolumeNotFoundError: the object has no mesh.
        VolumeError: a file of the mesh is missing or damaged.
    """
    from chunkflow_py.segmentation.mesh_folder import MeshReader

    return MeshReader(url).read(label)


@operator("write")
@click.option(
    "--volume-path",
    "-v",
    required=True,
    help="URL of the precomputed volume, or of the folder of its meshes.",
)
@click.option(
    "--input",
    "-i",
    "wanted",
    required=True,
    help="Ids such as 34,25,38, a text file of ids, or the name of a chunk of labels.",
)
@click.option(
    "--start-rank",
    "-s",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Position of the first object to save, counted from 0 in the list of objects.",
)
@click.option(
    "--stop-rank",
    "-p",
    type=click.IntRange(min=0),
    help="Position after the last object to save.  [default: end of the list]",
)
@click.option(
    "--out-pre",
    "-o",
    default="./",
    show_default=True,
    help="Folder (ending in a slash), or beginning of the path or URL of each file.",
)
@click.option(
    "--out-format",
    "-f",
    type=click.Choice(["ply", "obj"]),
    default="ply",
    show_default=True,
    help="Format of the files.",
)
def command(
    volume_path: str,
    wanted: str,
    start_rank: int,
    stop_rank: int | None,
    out_pre: str,
    out_format: Literal["ply", "obj"],
) -> MeshDownload:
    """Return the operator, which opens the volume when the pipeline starts."""
    from chunkflow_py.segmentation.mesh_folder import MeshDownload
    from chunkflow_py.volume.location import Location

    place = Location.parse(volume_path).store_url
    return MeshDownload(place, wanted, slice(start_rank, stop_rank), out_pre, out_format)
