"""Remove a run, but not its outputs.

The command removes the queue, the ledger, the hierarchy of a segmentation (graph, links and
merges), the exchange (patches that tasks passed to each other), and all other files of the run
directory. Before anything is removed, the command lists what exists and asks for confirmation.
Without the ledger, the outputs cannot be verified or repaired. With --expire, the command removes
only the exchange and the hierarchy; verify then reports the objects of the hierarchy as missing. To
complete an interrupted removal, run the same command again.

Example: chunkflow remove s3://bucket/affinity.run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import refuse_dry_run, subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("run")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--expire", is_flag=True,
              help="Remove only the exchange of patches and the hierarchy, and keep the "
                   "records.")  # fmt: skip
@click.option("--unfinished", is_flag=True, help="Also remove a run that is not finished.")
@click.option("--keep-queue", is_flag=True, help="Keep the queue, because other runs use it.")
def command(
    run: str, yes: bool, expire: bool, unfinished: bool, keep_queue: bool
) -> Callable[[], None]:
    """Return the function that removes the run."""
    refuse_dry_run()

    def act() -> None:
        from chunkflow_py.core.host_memory import describe_bytes
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.run_removal import Removal

        removal = Removal(run_directory := RunDirectory.parse(run), expire=expire)
        if keep_queue:
            removal.queue = ""
        removal.check(unfinished=unfinished)
        for part in removal.parts:
            objects = "object" if part.objects == 1 else "objects"
            size = describe_bytes(part.size)
            echo(f"{part.name}: {part.objects:,} {objects}, {size}: {part.address}")
        if removal.queue:
            echo(f"queue: {removal.queue}")
        if expire and not removal.parts:
            echo("nothing to remove")
            return
        if not yes:
            click.confirm("remove this?", abort=True)
        removal.carry_out()
        echo(f"removed the exchange and the hierarchy of {run_directory.shown}" if expire
             else f"removed {run_directory.shown}")  # fmt: skip

    return act
