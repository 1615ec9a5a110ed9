"""Make the coarser levels of a volume, for the subcommands downsample-volume and convert."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.cli.phase import run_phase
from chunkflow_py.errors import VolumeNotFoundError

if TYPE_CHECKING:
    from chunkflow_py.volume.protocol import VolumeOptions

logger = logging.getLogger(__name__)


def make_levels(
    url: str,
    start_mip: int = 1,
    stop_mip: int | None = None,
    opening: VolumeOptions | None = None,
    *,
    processes: int = 1,
    **making: Any,
) -> None:
    """Make the levels of a volume from *start_mip* up to, but not including, *stop_mip*.

    Args:
        url: address of the volume.
        start_mip: finest level to make.
        stop_mip: first level that is not made (default: make all levels of the volume).
        opening: options with which the volume is opened.
        processes: number of processes that run the tasks.
        making: further arguments of `chunkflow_py.run.whole_volume.downsampling`.

    Raises:
        VolumeNotFoundError: the volume lacks one of the levels to make.
        ChunkflowError: tasks of a level failed. No coarser level is made.
    """
    from chunkflow_py.run.whole_volume import downsampling
    from chunkflow_py.volume import open_volume

    mips = open_volume(url, start_mip - 1, opening=opening).mips
    stop = max(mips) + 1 if stop_mip is None else stop_mip
    missing = set(range(start_mip, max(stop, start_mip + 1))) - set(mips)
    if missing:
        msg = (
            f"{url} has no mip {min(missing)}, only mip {', '.join(map(str, mips))}; create the "
            f"volume with create-volume --max-mip {max(missing)}, or choose existing levels with "
            "--start-mip and --stop-mip"
        )
        raise VolumeNotFoundError(msg)
    for mip in range(start_mip, stop):
        logger.info("making mip %d of %s", mip, url)
        make_pipeline = partial(downsampling, url, mip, opening=opening, **making)
        run_phase(make_pipeline, f"making mip {mip} of {url}", processes=processes)
