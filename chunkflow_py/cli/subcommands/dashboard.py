"""Show a run on a web page: map, speed, errors, cost.

Example: chunkflow dashboard s3://bucket/affinity.run --instance g5.xlarge --spot

The address is printed; Ctrl-C ends it. Only this machine can connect, unless --bind-address says
otherwise; nobody is asked for a password. The page reads the run's records and its queue, changes
nothing, and reads nothing while it is hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
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
    metavar="DOLLARS",
    help="Of a worker, an hour; may be changed on the page.  [default: that of the instance]",
)
@click.option(
    "--instance",
    metavar="TYPE",
    help="Type of machine of a worker, such as g5.xlarge, whose price is known.",
)
@click.option("--spot", is_flag=True, help="The machines are spot instances.")
@click.option(
    "--price-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A table of prices instead of the one that is here.",
)
def command(
    run: str,
    port: int | None,
    bind_address: str,
    open: bool,
    price: float | None,
    instance: str | None,
    spot: bool,
    price_file: str | None,
) -> Callable[[], None]:
    """Check the options; the run is opened when the subcommand acts."""
    if spot and instance is None:
        msg = "--spot is about a type of machine; give --instance, such as g5.xlarge, or --price"
        raise OptionError(msg)

    def act() -> None:
        import threading
        import webbrowser

        from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
        from chunkflow_py.monitor.dashboard.run_watch import RunWatch
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.store.store_address import public

        hour, source = price, "as --price said"
        if hour is None and instance is not None:
            hour, source = _price_of(instance, price_file, spot=spot)
        watch = RunWatch(RunDirectory.parse(run), hour, source)
        server = DashboardServer(watch, bind_address, port or 0)
        try:
            echo(f"{public(run)} is shown at {server.url} until you press Ctrl-C")
            if open:
                webbrowser.open(server.url)
            while True:
                threading.Event().wait(3600)
        except KeyboardInterrupt:
            pass  # which is how it is meant to end
        finally:
            server.stop()

    return act


def _price_of(instance: str, price_file: str | None, *, spot: bool) -> tuple[float, str]:
    """Return the price of an hour, and where it comes from in source."""
    from pathlib import Path

    from chunkflow_py.planning.prices import load_prices

    prices = load_prices(Path(price_file) if price_file else None)
    machine = prices.instance(instance)
    source = f"{instance} by the prices of {prices.date}"
    if not spot:
        return machine.hour, f"{source}, on demand"
    assumed = ", assumed to be a share of that on demand" if machine.spot_is_assumed else ""
    return machine.spot_hour, f"{source}, spot{assumed}"
