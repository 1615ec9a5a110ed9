"""Show a run on a web page: map of tasks, speed, workers, errors, cost.

Example: chunkflow dashboard s3://bucket/affinity.run --price 0.35

The address is printed; Ctrl-C ends it. Only this machine can connect, unless --bind-address says
otherwise; nobody is asked for a password. The page reads the run's records and its queue, changes
nothing, and reads nothing while it is hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.verbs import verb

if TYPE_CHECKING:
    from collections.abc import Callable


@verb
@click.argument("run")
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="[default: a free one]")
@click.option(
    "--bind-address",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 lets other machines connect.",
)
@click.option(
    "--open/--no-open", default=False, show_default=True, help="Open the page in the browser."
)
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Of an hour of a worker, to tell the cost; may be changed on the page.",
)
def command(
    run: str, port: int | None, bind_address: str, open: bool, price: float | None
) -> Callable[[], None]:
    """Take the options; the run is opened when the verb acts."""

    def act() -> None:
        import threading
        import webbrowser

        from chunkflow_py.dashboard.server import DashboardServer
        from chunkflow_py.dashboard.watch import RunWatch
        from chunkflow_py.run.home import RunHome

        server = DashboardServer(RunWatch(RunHome.parse(run), price), bind_address, port or 0)
        try:
            click.echo(f"{run} is shown at {server.url} until you press Ctrl-C")
            if open:
                webbrowser.open(server.url)
            while True:
                threading.Event().wait(3600)
        except KeyboardInterrupt:
            pass  # which is how it is meant to end
        finally:
            server.stop()

    return act
