r"""Load synapses from an HDF5 or JSON file.

Example: chunkflow create-bbox --start 0 0 0 --size 64 512 512 \
  load-synapses --file-path synapses.h5 --remove-outside

A name without .h5, .hdf5 or .json is a prefix or a folder: for the task 0-64_0-512_0-512,
`--file-path syns_` reads syns_0-64_0-512_0-512.h5; --suffix replaces .h5. The operator reads files
of save-synapses, files of chunkflow 1.x, and lists of elements from DVID. For an empty file, or a
file without synapses, the operator adds None to the task, and skip-none then skips the task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.ops.options.file_options import file_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import floats_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "objects"

# A hyphen after a digit is not a minus sign: v1-0-64_0-64_0-64 begins at 0.
_BOX_IN_NAME = re.compile(r"(?:t[0-9]+_)?(?:(?<![0-9])-)?[0-9]+--?[0-9]+(?:_-?[0-9]+--?[0-9]+){2}")


@dataclass
class SynapseLoader(OperatorBase):
    """Adds the synapses of a file to every task.

    Attributes:
        files: input file of each task.
        is_xyz: whether positions are xyz, not zyx, in a file that does not name its axis order.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size in the file).
        remove_outside: keep only synapses whose T-bar lies in the task's box.
        set_bbox: set the task's box to the box in the file's name.
        output_name: name of the synapses in the task.
    """

    files: TaskFiles
    is_xyz: bool = False
    voxel_size_nm: tuple[float, float, float] | None = None
    remove_outside: bool = False
    set_bbox: bool = field(default=False, metadata=HOOK)
    output_name: str = "syns"
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origin(self) -> str:
        """Path or prefix of the input files, which no other operator may overwrite."""
        return self.files.place

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check that the tasks have boxes if --remove-outside needs them.

        Raises:
            OptionError: --remove-outside is given, but no task has a box.
        """
        if self.remove_outside and not (outline.has_tasks or self.set_bbox):
            msg = (
                "--remove-outside keeps the synapses in the task's box, but no task has a box; "
                "begin the pipeline with create-bbox or generate-tasks, or give --set-bbox"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Add the synapses of the file to the task.

        Raises:
            VolumeError: the file is missing, or is not a file of synapses.
            GeometryError: ``remove_outside`` is true, but the task has no box; or ``set_bbox`` is
                true, but the file name contains no box.
        """
        from chunkflow_py.core.synapses import Synapses

        url = self.files.url(task.region)
        data = self.files.read(task.region)
        if self.set_bbox:
            task.region = region_in(url)
        synapses = None
        if data:
            synapses = Synapses.from_bytes(data, url, self.voxel_size_nm, is_xyz=self.is_xyz)
        if synapses is not None and self.remove_outside and task.bbox is not None:
            synapses = synapses.inside(task.bbox)
        task[self.output_name] = synapses or None
        return task


def region_in(name: str) -> Region:
    """Return the box that is written in a file name, such as ``syns_0-64_0-512_0-512.h5``.

    Raises:
        GeometryError: the name contains no box.
    """
    boxes = _BOX_IN_NAME.findall(name.rpartition("/")[2])
    if not boxes:
        msg = (
            f"--set-bbox finds no box in the name of {name}; give the file a name such as "
            "syns_0-64_0-512_0-512.h5"
        )
        raise GeometryError(msg)
    return Region.parse(boxes[-1])


@operator("read")
@file_path_option()
@click.option(
    "--suffix", "-s", help="Suffix of the file names, if the path is a prefix.  [default: .h5]"
)
@click.option(
    "--c-order/--f-order",
    default=True,
    show_default=True,
    help="Order of the axes in a file that does not name it: zyx (--c-order) or xyz (--f-order).",
)
@floats_option(
    "--resolution", "-r", help="Edge lengths of a voxel, nm, zyx, instead of those in the file."
)
@click.option(
    "--remove-outside/--keep-all",
    default=False,
    show_default=True,
    help="Keep only synapses whose T-bar lies in the task's box, or keep all synapses.",
)
@click.option(
    "--set-bbox/--not-set-bbox",
    default=False,
    show_default=True,
    help="Set the task's box to the box in the file name.",
)
@output_option("--output-name", "-o", default="syns", help="Name of the synapses.")
def command(
    file_path: str,
    suffix: str | None,
    c_order: bool,
    resolution: tuple[float, float, float] | None,
    remove_outside: bool,
    set_bbox: bool,
    output_name: str,
) -> SynapseLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.store.task_files import TaskFiles

    files = TaskFiles(file_path, suffix or ".h5", (".h5", ".hdf5", ".json"), "--file-path")
    return SynapseLoader(files, not c_order, resolution, remove_outside, set_bbox, output_name)
