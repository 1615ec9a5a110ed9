"""Show chunks, points and skeletons in a napari window.

Example: chunkflow load-h5 --file-name raw.h5 napari --inputs chunk

The pipeline continues when the window is closed. Coordinates are nanometres, zyx. Each channel of
an affinity map is a layer: x is red, y is green, and z is blue. This operator needs pip install
'chunkflow_py[napari]'. On a machine without a screen, use neuroglancer or preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemNames, floats_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task

SECTION = "view"


def napari(
    items: dict[str, Any], voxel_size_nm: tuple[float, float, float] | None = None
) -> list[tuple[Any, dict[str, Any], str]]:
    """Return the napari layers of items, each as (data, settings, kind of layer).

    Args:
        items: chunks (z, y, x) or (c, z, y, x), points, synapses or skeletons, by item name.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of each chunk).

    Raises:
        ChunkError: an item cannot be shown.
    """
    from chunkflow_py.ops.viewing.napari_layers import napari_layers

    return napari_layers(items, voxel_size_nm)


@dataclass
class NapariWindow(OperatorBase):
    """Opens a window with the items of each task.

    Attributes:
        inputs: names of the items to show.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of each chunk).
    """

    inputs: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float] | None = None
    any_voxel_size: ClassVar[bool] = hook_value(True)

    def __enter__(self) -> NapariWindow:
        """Check before the first task that napari is installed.

        Raises:
            MissingExtraError: napari is not installed.
        """
        self._library()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resources are held."""

    @staticmethod
    def _library() -> Any:
        from chunkflow_py.errors import needs_extra

        with needs_extra("napari", "napari"):
            import napari
        return napari

    def __call__(self, task: Task) -> Task:
        """Show the items of the task until the user closes the window.

        Raises:
            ChunkError: an item cannot be shown.
        """
        layers = napari({name: task[name] for name in self.inputs}, self.voxel_size_nm)
        library = self._library()
        viewer = library.Viewer(title=f"{task}", ndisplay=2)
        for data, settings, kind in layers:
            getattr(viewer, f"add_{kind}")(data, **settings)
        viewer.scale_bar.visible = True
        library.run()
        return task


@operator("write")
@floats_option(
    "--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: as in the chunk]"
)
@click.option(
    "--inputs",
    "-i",
    type=ItemNames("in"),
    default="chunk",
    show_default=True,
    help="Names of the items to show, separated by commas.",
)
def command(voxel_size: tuple[float, float, float] | None, inputs: tuple[str, ...]) -> NapariWindow:
    """Return the operator, which opens a window for each task."""
    return NapariWindow(inputs, voxel_size)
