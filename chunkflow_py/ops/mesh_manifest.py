"""List each object's mesh fragments.

Example: chunkflow mesh-manifest --volume-path precomputed://file:///data/seg --digits 2

After mesh, each object needs a list of its fragments, the file ID:0. Tasks divide the objects by
the first digits of their ids: with --digits 2 there are 100 tasks; --prefix 7 is the task of object
7, and --prefix 70 that of objects 70, 700, 7012 and so on.

--multires writes meshes of several levels of detail instead (Draco), which a viewer loads part by
part, and names their folder in the info of the volume; the fragments stay as they are.

In a run: chunkflow submit ... mesh -o seg then mesh-manifest -v seg
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
    url: str, digits: int = 1, prefix: int | None = None, *, multires: bool = False
) -> ManifestTasks:
    """Return the tasks that write manifests, in any order: ``for task in it: it.work(task)``.

    Args:
        url: of a store: of a precomputed volume whose info names a folder of meshes, or of that
            folder.
        digits: how many leading digits of an id determine its task.
        prefix: number of the only task (default: all).
        multires: write meshes of several levels of detail.

    Raises:
        OptionError: the prefix has more digits.
    """
    from chunkflow_py.segmentation.mesh_folder import ManifestTasks, ManifestWriter

    tasks = ManifestTasks(ManifestWriter(url, digits, multires), prefix)
    len(tasks)  # the numbers are right, or this says what is wrong with them
    return tasks


@source
@click.option("--prefix", "-p", type=click.IntRange(min=0), help="Number of the only task to do.")
@click.option(
    "--disbatch/--no-disbatch",
    default=False,
    show_default=True,
    help="Do only the task whose number disBatch sets.",
)
@click.option(
    "--digits",
    "-d",
    type=click.IntRange(1, 18),
    default=1,
    show_default=True,
    help="Leading digits of an id that determine its task.",
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
    help="Write meshes with several levels of detail, or lists of fragments.",
)
def command(
    prefix: int | None, disbatch: bool, digits: int, volume_path: str, multires: bool
) -> ManifestTasks:
    """Return the tasks; the volume is opened later."""
    from chunkflow_py.volume.location import Location

    if multires:
        check_extra("precomputed", "mesh-manifest --multires", "DracoPy")
        check_extra("mesh", "mesh-manifest --multires", "zmesh")
    if disbatch:
        if prefix is not None:
            msg = f"--prefix {prefix} and --disbatch both select a task; give one"
            raise OptionError(msg)
        prefix = environment_number("DISBATCH_REPEAT_INDEX", "--disbatch")
    return mesh_manifest(Location.parse(volume_path).store_url, digits, prefix, multires=multires)
