"""Make the coarser levels of a whole volume.

Each level is computed from the next finer level: the mean for images, the most frequent label for
segmentations. The empty levels must already exist: create the volume with create-volume --max-mip.
The levels may have shards or large blocks, because each task writes whole blocks or shards.

Example: chunkflow downsample-volume zarr://em.zarr --stop-mip 5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import parallel_option, processes_option, task_size_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.volume_options import (
    access_from,
    downsampling_mode_option,
    fill_missing_option,
    requester_pays_option,
    sparse_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# fmt: off
@subcommand
@click.argument("volume_path", metavar="URL")
@click.option("--start-mip", "-s", type=click.IntRange(min=1), default=1, show_default=True,
              help="Finest level to make.")
@click.option("--stop-mip", "-p", type=click.IntRange(min=2),
              help="Stop before this level.  [default: make all levels of the volume]")
@downsampling_mode_option()
@sparse_option()
@task_size_option("Size of a task, zyx, in voxels of the new level.  [default: whole blocks or "
                  "shards, about 64 MiB]")
@click.option("--resume/--overwrite", default=False, show_default=True,
              help="Skip blocks that are already stored, or write them again.")
@fill_missing_option()
@processes_option()
@parallel_option()
@requester_pays_option()
def command(
    volume_path: str, start_mip: int, stop_mip: int | None, **options: Any
) -> Callable[[], None]:
    """Check the order of the levels, and return the function that makes them."""
    # fmt: on
    if stop_mip is not None and stop_mip <= start_mip:
        msg = (
            f"--stop-mip {stop_mip} must be greater than --start-mip {start_mip}; give --stop-mip "
            f"{start_mip + 1} to make one level"
        )
        raise OptionError(msg)

    def act() -> None:
        from chunkflow_py.cli.levels import make_levels
        from chunkflow_py.cli.phase import threads_of
        from chunkflow_py.volume.protocol import VolumeOptions

        opening = VolumeOptions(
            fill_missing=options["fill_missing"],
            parallel=threads_of(options["parallel"], options["processes"]),
            access=access_from(options),
        )
        making = {name: options[name] for name in ("mode", "sparse", "resume", "processes")}
        make_levels(
            volume_path, start_mip, stop_mip, opening, size=options["task_size"], **making
        )

    return act
