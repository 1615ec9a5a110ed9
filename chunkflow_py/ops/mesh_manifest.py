"""List the mesh fragments of each object.

Example: chunkflow mesh-manifest --volume-path precomputed://file:///data/seg --digits 2

After the command mesh, each object needs a manifest: the file ID:0, which lists the fragments of
the object. The objects are divided into tasks by the first digits of their ids. With --digits 2,
there are 100 tasks: --prefix 70 runs the task of the objects 70, 700, 7012 and so on. Each object
with a shorter id has its own task: --prefix 7 runs the task of object 7 only.

With --multires, the tasks write meshes with several levels of detail (Draco) instead of manifests.
A viewer loads such meshes in parts. The tasks also record the folder of these meshes in the info
file of the volume. The fragments do not change.

With --shards 16, the meshes with several levels of detail are stored in 16 files (shards). A hash
of the object id selects the shard of an object. There is one task for each shard, and --prefix 5
runs the task of shard 5.

To run both commands on many machines, submit them together: `chunkflow submit ... mesh
--output-path seg then mesh-manifest --volume-path seg`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import environment_number

if TYPE_CHECKING:
    from chunkflow_py.segmentation.mesh_folder import ManifestTasks

SECTION = "objects"


def mesh_manifest(
    url: str,
    digits: int = 1,
    prefix: int | None = None,
    *,
    multires: bool = False,
    shards: int | None = None,
) -> ManifestTasks:
    """Return the tasks that write manifests; ``result.work(task)`` runs a task.

    Args:
        url: URL of a folder of meshes, or of a precomputed volume whose info file names such a
            folder.
        digits: number of leading digits of an object id that determine the task of the object.
        prefix: first digits of object ids; only the task of these ids is run (default: run all
            tasks). With *shards*, number of the only shard to write.
        multires: write meshes with several levels of detail instead of manifests.
        shards: write meshes with several levels of detail into this number of shards, a power of
            two (default: no shards).

    Raises:
        OptionError: *prefix* has more digits than *digits*; or *shards* is not a power of two; or
            *prefix* is not the number of a shard.
    """
    from chunkflow_py.segmentation.mesh_folder import ManifestTasks, ManifestWriter

    tasks = ManifestTasks(ManifestWriter(url, digits, multires, shards), prefix)
    len(tasks)  # raises an error if the prefix does not match
    return tasks


@source
@click.option(
    "--prefix",
    "-p",
    type=click.IntRange(min=0),
    help="Run only the task with this number: the first digits of the ids of its objects, or the "
    "number of its shard.  "
    "[default: all tasks]",
)
@click.option(
    "--disbatch/--no-disbatch",
    default=False,
    show_default=True,
    help="Run only the task that disBatch assigns to this process.",
)
@click.option(
    "--digits",
    "-d",
    type=click.IntRange(1, 18),
    default=1,
    show_default=True,
    help="Number of leading digits of an object id that determine the task of the object.",
)
@click.option(
    "--volume-path",
    "-v",
    required=True,
    help="URL of the precomputed volume, or of the folder of its meshes.",
)
@click.option(
    "--multires/--legacy",
    default=False,
    show_default=True,
    help="Write meshes with several levels of detail, or write manifests.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    help="Write meshes with several levels of detail into this number of shards, a power of two; "
    "there is one task for each shard.  [default: no shards]",
)
def command(
    prefix: int | None,
    disbatch: bool,
    digits: int,
    volume_path: str,
    multires: bool,
    shards: int | None,
) -> ManifestTasks:
    """Return the source of the tasks, which opens the volume when the pipeline starts."""
    from chunkflow_py.volume.location import Location

    if multires or shards is not None:
        check_extra("precomputed", "mesh-manifest --multires", "DracoPy")
        check_extra("mesh", "mesh-manifest --multires", "zmesh")
    if disbatch:
        if prefix is not None:
            msg = f"--prefix {prefix} and --disbatch both select a task; give only one of them"
            raise OptionError(msg)
        prefix = environment_number("DISBATCH_REPEAT_INDEX", "--disbatch")
    url = Location.parse(volume_path).store_url
    return mesh_manifest(url, digits, prefix, multires=multires, shards=shards)
