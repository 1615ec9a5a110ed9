"""Options of commands that serve a page for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.ops.options.volume_options import together

if TYPE_CHECKING:
    from chunkflow_py.pipeline.params import Decorator


def server_options() -> Decorator:
    """Declare ``--port``, ``--bind-address`` and ``--open`` of a command that serves a page."""
    return together(
        click.option(
            "--port",
            "-p",
            type=click.IntRange(0, 65535),
            help="Port to listen on.  [default: any free port]",
        ),
        click.option(
            "--bind-address",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on; 0.0.0.0 lets other machines connect.",
        ),
        click.option(
            "--open/--no-open",
            default=False,
            show_default=True,
            help="Open the page in the browser.",
        ),
    )
