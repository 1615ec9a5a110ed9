"""Show a run on a web page: map, speed, errors, cost.

If RUN is a prefix that ends with a slash, such as s3://bucket/runs/, the page shows a table of the
runs below this prefix, with links to the page of each run.

Example: chunkflow dashboard s3://bucket/affinity.run --instance g5.xlarge --spot

The command prints the address of the page and serves it until you press Ctrl-C. Only this machine
can connect, unless --bind-address allows other machines. There is no password. The page reads the
run's records and the counts of its queue, and changes nothing. While the page is hidden, nothing is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import check_spot, price_options
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.ops.options.server_options import server_options
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@subcommand
@click.argument("run")
@server_options()
@price_options(
    "Price of a worker in dollars per hour; can be changed on the page.  [default: the price of "
    "--instance]"
)
def command(
    run: str,
    port: int | None,
    bind_address: str,
    open: bool,
    price: float | None,
    instance: str | None,
    spot: bool,
    price_file: Path | None,
) -> Callable[[], None]:
    """Check the options, and return the function that serves the dashboard."""
    check_spot(instance, spot=spot)

    def act() -> None:
        import threading
        import webbrowser

        from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
        from chunkflow_py.monitor.dashboard.pool_watch import PoolWatch
        from chunkflow_py.monitor.dashboard.run_watch import RunWatch
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.run_prefix import RunPrefix, check_has_runs, is_run_prefix
        from chunkflow_py.store.store_address import public

        hour, source = price, "given by --price"
        if hour is None and instance is not None:
            hour, source = _price_of(instance, price_file, spot=spot)
        watch: RunWatch | PoolWatch
        if is_run_prefix(run):
            check_has_runs(prefix := RunPrefix(run))
            watch = PoolWatch(prefix, hour, source)
        else:
            watch = RunWatch(RunDirectory.parse(run), hour, source)
        server = DashboardServer(watch, bind_address, port or 0)
        try:
            echo(f"{public(run)} is shown at {server.url} until you press Ctrl-C")
            if open:
                webbrowser.open(server.url)
            while True:
                threading.Event().wait(3600)
        except KeyboardInterrupt:
            pass  # the usual way to stop the server
        finally:
            server.stop()

    return act


def _price_of(instance: str, price_file: Path | None, *, spot: bool) -> tuple[float, str]:
    """Return the price of a machine type in dollars per hour, and the source of this price."""
    from chunkflow_py.planning.prices import load_prices

    prices = load_prices(price_file)
    machine = prices.instance(instance)
    source = f"{instance}, prices of {prices.date}"
    if not spot:
        return machine.hour, f"{source}, on demand"
    assumed = ", estimated as a share of the on-demand price" if machine.spot_is_assumed else ""
    return machine.spot_hour, f"{source}, spot{assumed}"
