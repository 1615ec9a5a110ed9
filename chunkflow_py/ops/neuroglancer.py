"""Show chunks in Neuroglancer, in the browser, until interrupted.

Example: chunkflow load-h5 -f raw.h5 neuroglancer --inputs chunk --open

The address is printed; Ctrl-C ends the view, and the line goes on. Only this machine can connect,
unless --bind-address says otherwise.
"""

from __future__ import annotations

import signal
import threading
import webbrowser
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.params import ItemNames, floats_option
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from types import FrameType

    from chunkflow_py.task import Task
    from chunkflow_py.viewer import ViewerServer

SECTION = "view"


@dataclass
class Neuroglancer:
    """Serves the chunks of one task after the other."""

    inputs: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float] | None = None
    port: int = 0
    bind_address: str = "127.0.0.1"
    open: bool = False
    _server: ViewerServer | None = field(default=None, repr=False)
    _shown: threading.Event = field(default_factory=threading.Event, repr=False)
    _handlers: dict[int, Any] = field(default_factory=dict, repr=False)
    _viewing: bool = False
    _ended: bool = False

    def __enter__(self) -> Neuroglancer:
        """Start the server, and turn an interrupt while a view is up into its end."""
        from chunkflow_py.viewer import ViewerServer

        self._server = ViewerServer(self.bind_address, self.port)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and give the interrupts back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        if self._server is not None:
            self._server.stop()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._viewing:
            self._ended = number == signal.SIGTERM  # shows no further tasks
            self._shown.set()
            return
        before = self._handlers[number]
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, before)
        signal.raise_signal(number)

    def close(self) -> None:
        """End the view that is up."""
        self._shown.set()

    def __call__(self, task: Task) -> Task:
        """Show the chunks and wait."""
        if self._ended or self._server is None:
            return task
        chunks = {name: task.chunk(name) for name in self.inputs}
        url = self._server.show(chunks, self.voxel_size_nm)
        self._shown.clear()
        self._viewing = True
        click.echo(f"{task} is shown at {url} until you press Ctrl-C", err=True)
        if self.open:
            webbrowser.open(url)
        while not self._shown.wait(0.2):
            pass  # a signal that reaches another thread is only handled when this one wakes up
        self._viewing = False
        self._server.clear()
        return task


@operator("write")
@floats_option("--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx.  [default: chunk's]")
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="[default: a free one]")
@click.option(
    "--inputs",
    "-i",
    "-c",
    type=ItemNames("in"),
    default="chunk",
    show_default=True,
    help="Names of the chunks to show, separated by commas.",
)
@click.option(
    "--bind-address",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 lets other machines connect.",
)
@click.option(
    "--open/--no-open", default=False, show_default=True, help="Open the page in the browser."
)
def command(
    voxel_size: tuple[float, float, float] | None,
    port: int | None,
    inputs: tuple[str, ...],
    bind_address: str,
    open: bool,
) -> Neuroglancer:
    """Take the names; the server starts with the line."""
    return Neuroglancer(inputs, voxel_size, port or 0, bind_address, open)
