"""Show chunks, points, synapses, skeletons in Neuroglancer.

Example: chunkflow load-h5 --file-name raw.h5 neuroglancer --inputs chunk --open

The operator prints the address of the viewer; Ctrl-C ends the view, and the pipeline continues.
Other machines can connect only with --bind-address. Affinities along x are shown in red, along y in
green, and along z in blue. A double click on a segment selects the segment and shows its mesh,
which is computed from the chunk or read from --mesh-path.

With --volume-path, the viewer shows stored volumes of any size without loading them first. The page
in the browser reads only the visible blocks, at the resolution level that is shown. Each channel is
a layer.

Example: chunkflow neuroglancer --volume-path image.zarr,labels.zarr --open
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import click
from click.core import ParameterSource

from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.ops.options.server_options import server_options
from chunkflow_py.ops.viewing.showing import Showing
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import NAMES, NUMBERS, ItemNames, floats_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.ops.viewing.server import ViewerServer

SECTION = "view"


@dataclass
class Neuroglancer(OperatorBase):
    """Serves the items of one task at a time to Neuroglancer.

    Attributes:
        inputs: names of the items to show: chunks, points, synapses or skeletons.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of each chunk).
        port: port to listen on; 0 selects a free port.
        bind_address: address to listen on; with 127.0.0.1, only this machine can connect.
        open: whether to open the viewer in the browser.
        segments: ids of segments to select initially.
        mesh_path: URL of a folder of meshes; with ``None``, meshes are computed from the chunk.
        volumes: addresses of stored volumes to show.
    """

    inputs: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float] | None = None
    port: int = 0
    bind_address: str = "127.0.0.1"
    open: bool = False
    segments: tuple[int, ...] = ()
    mesh_path: str | None = None
    volumes: tuple[str, ...] = ()
    _server: ViewerServer | None = field(default=None, repr=False)
    _showing: Showing = field(default_factory=Showing, repr=False)
    any_voxel_size: ClassVar[bool] = hook_value(True)

    def __enter__(self) -> Neuroglancer:
        """Start the server; from then on Ctrl-C ends the current view, not the pipeline."""
        from chunkflow_py.ops.viewing.server import ViewerServer

        self._server = ViewerServer(self.bind_address, self.port)
        self._showing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and restore the signal handlers."""
        self._showing.__exit__()
        if self._server is not None:
            self._server.stop()

    def close(self) -> None:
        """End the current view."""
        self._showing.close()

    def __call__(self, task: Task) -> Task:
        """Show the items of the task until the user ends the view.

        Raises:
            ChunkError: an item cannot be shown.
        """
        from chunkflow_py.ops.viewing.server import layer_names

        if self._showing.ended or self._server is None:
            return task
        items = {name: task[name] for name in self.inputs}
        volumes = layer_names(self.volumes)
        url = self._server.show(items, self.voxel_size_nm, self.segments, self.mesh_path, volumes)
        self._showing.wait(task, url, open_page=self.open)
        self._server.clear()
        return task


def _inputs(
    context: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    # The default of --inputs, the chunk, does not apply if stored volumes are shown.
    is_default = context.get_parameter_source(param.name or "") is ParameterSource.DEFAULT
    return () if is_default and context.params.get("volume_path") else value


@operator("write")
@click.option(
    "--volume-path",
    type=NAMES,
    is_eager=True,
    help="Stored volumes (OME-Zarr, precomputed or N5) to show without loading them first, "
    "separated by commas.",
)
@floats_option(
    "--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: as in the chunk]"
)
@click.option(
    "--inputs",
    "-i",
    type=ItemNames("in"),
    default="chunk",
    show_default="chunk; none with --volume-path",
    callback=_inputs,
    help="Names of the items to show, separated by commas.",
)
@click.option(
    "--segments",
    type=NUMBERS,
    help="Ids of segments to select initially, such as 3,17; their meshes are shown.",
)
@click.option(
    "--mesh-path",
    help="Path or URL of a folder of meshes. The meshes are shown in the layer of the first "
    "segmentation or, if there is no segmentation, in a separate layer.",
)
@server_options()
def command(
    voxel_size: tuple[float, float, float] | None,
    port: int | None,
    inputs: tuple[str, ...],
    segments: tuple[int, ...] | None,
    mesh_path: str | None,
    bind_address: str,
    open: bool,
    volume_path: tuple[str, ...] | None,
) -> Neuroglancer:
    """Return the operator, which starts the server when the pipeline starts."""
    return Neuroglancer(
        inputs, voxel_size, port or 0, bind_address, open, segments or (), mesh_path,
        volume_path or (),
    )  # fmt: skip
