"""Write one HTML file that says what a run did, took and cost.

It holds the whole spec with its hashes, times by operator, throughput, workers, cost a teravoxel,
failures with tracebacks, slices of input and output, and whether seams show between tasks. The file
loads nothing and needs no scripts, so that it can be kept with the data. Nothing of the run is
changed. With --verify the exit code is 1 if anything is missing, damaged or not done.

Example: chunkflow report s3://bucket/affinity.run -o affinity.html --price 0.53
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.verbs import verb
from chunkflow_py.params import zyx_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.geometry import Zyx


# fmt: off
@verb
@click.argument("run")
@click.option("--output", "-o", default="report.html", show_default=True,
              type=click.Path(dir_okay=False), help="File to write; replaced if it is there.")
@click.option("--price", type=click.FloatRange(min=0), metavar="DOLLARS",
              help="That an hour of one worker costs.")
@zyx_option("--at", help="Point through which slices are shown, voxels of the tasks.  [default: "
                         "the middle of the tasks]")
@click.option("--faces", type=click.IntRange(min=0, max=10_000), default=32, show_default=True,
              help="Faces of tasks along each axis at which seams are looked for; 0: none.")
@click.option("--failed", type=click.IntRange(min=0), default=20, show_default=True,
              help="How many failed tasks to list with their tracebacks.")
@click.option("--verify", is_flag=True, help="Read again all that was stored, as verify does.")
def command(
    run: str, output: str, price: float | None, at: Zyx | None, faces: int, failed: int,
    verify: bool,
) -> Callable[[], None]:
    """Take the options; the run is opened when the verb acts."""
    # fmt: on

    def act() -> None:
        from chunkflow_py.report.measured import Wanted, report_of
        from chunkflow_py.report.page import page_of
        from chunkflow_py.run.home import RunHome
        from chunkflow_py.store.local import write_whole

        wanted = Wanted(at, faces, failed, verify, price)
        report = report_of(RunHome.parse(run), wanted)
        write_whole(output, page_of(report).encode())
        click.echo(output)
        click.get_current_context().exit(1 if report.damages else 0)

    return act
