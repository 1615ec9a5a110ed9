"""Show an image, a segmentation or both in the microviewer.

Example: chunkflow load-h5 --file-name raw.h5 view --image-chunk-name chunk --open

The operator prints the address of cloud-volume's microviewer; Ctrl-C ends the view, and the
pipeline continues. Only this machine can connect, unless --bind-address allows others. Probability
and affinity maps are shown in grey from 0 to 1 or, if there are several channels, in one colour per
channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.ops.options.server_options import server_options
from chunkflow_py.ops.viewing.showing import Showing
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, input_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.ops.viewing.micro import MicroServer

SECTION = "view"


@dataclass
class Viewer(OperatorBase):
    """Serves the chunks of one task at a time to the microviewer.

    Attributes:
        image: name of the chunk to show; if it is a segmentation, each label has a colour.
        segmentation: name of a segmentation to show on top of the chunk, or ``None``.
        port: port to listen on; 0 selects a free port.
        bind_address: address to listen on; with 127.0.0.1, only this machine can connect.
        open: whether to open the page in the browser.
    """

    image: str = "chunk"
    segmentation: str | None = None
    port: int = 0
    bind_address: str = "127.0.0.1"
    open: bool = False
    _server: MicroServer | None = field(default=None, repr=False)
    _showing: Showing = field(default_factory=Showing, repr=False)
    any_voxel_size: ClassVar[bool] = hook_value(True)

    def __enter__(self) -> Viewer:
        """Start the server; from then on Ctrl-C ends the current view, not the pipeline."""
        from chunkflow_py.ops.viewing.micro import MicroServer

        self._server = MicroServer(self.bind_address, self.port)
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
        """Show the chunks of the task until the user ends the view.

        Raises:
            ChunkError: the two chunks have different boxes, or one of them cannot be shown.
        """
        if self._showing.ended or self._server is None:
            return task
        labels = None if self.segmentation is None else task.chunk(self.segmentation)
        url = self._server.show(task.chunk(self.image), labels)
        self._showing.wait(task, url, open_page=self.open)
        self._server.clear()
        return task


@operator("write")
@input_option("--image-chunk-name", "-i", help="Name of the chunk to show.")
@click.option(
    "--segmentation-chunk-name",
    "-s",
    type=ItemName("in"),
    help="Name of a segmentation to show on top of the chunk.  [default: none]",
)
@server_options()
def command(
    image_chunk_name: str,
    segmentation_chunk_name: str | None,
    port: int | None,
    bind_address: str,
    open: bool,
) -> Viewer:
    """Return the operator, which starts the server when the pipeline starts."""
    return Viewer(image_chunk_name, segmentation_chunk_name, port or 0, bind_address, open)
