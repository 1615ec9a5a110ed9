"""Copy a whole volume into another format or place.

SRC may be an image file, a folder of image files, or a volume in any format that load-volume reads.
DST may have any format that save-volume writes. DST has the properties of SRC, except the
properties that an option changes. Without DST, convert prints what SRC contains.

To continue an interrupted conversion, run the same command again: blocks that are already stored
are not written again. The address of SRC is recorded in chunkflow_convert.json in DST (in HDF5, as
an attribute). If DST exists and is not a copy of SRC, convert refuses to change DST.

Example: chunkflow convert s3://bucket/em zarr://em.zarr --block-size 64 128 128
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chunkflow_py.cli.shared_options import (
    check_processes,
    parallel_option,
    processes_option,
    task_size_option,
)
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.saving_options import (
    block_size_option,
    check_shard,
    encoding_option,
    shard_size_option,
)
from chunkflow_py.ops.options.volume_options import (
    access_from,
    access_options,
    fill_missing_option,
    voxel_size_option,
)
from chunkflow_py.pipeline.params import channels_option, is_dry_run, mip_option, zyx_option
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Zyx


# Parameters that also have an effect if there is no DST.
_DESCRIBING = {"source", "mip", "fill_missing", "use_https", "requester_pays"}


# fmt: off
@subcommand
@option_headings(
    {
        "Part to copy": ("mip", "channels", "time"),
        "New volume": (
            "dtype", "voxel_size", "block_size", "shard_size", "encoding", "factor", "max_mip",
        ),
        "Tasks": ("task_size", "processes", "parallel", "overwrite"),
        "Cloud access": ("use_https", "requester_pays"),
    }
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="[DST]", required=False)
@mip_option(help="Level of SRC to copy; it becomes level 0 of DST.  [default: the global --mip]")
@channels_option("-c")
@click.option("--time", type=click.IntRange(min=0),
              help="Time point to copy.  [default: all time points]")
@click.option("--dtype", help="Type of the voxels of DST, such as uint8.  [default: as in SRC]")
@voxel_size_option(instead_of="SRC's")
@block_size_option("DST", "--block-size", "-b", default="as in SRC")
@shard_size_option("DST")
@encoding_option("DST")
@zyx_option("--factor", "-f", minimum=1,
            help="Downsampling factor between consecutive levels of DST, zyx.  [default: as in "
                 "SRC; if SRC has one level, factors that make voxels more cubic]")
@click.option("--max-mip", type=click.IntRange(min=0),
              help="Coarsest level of DST. Levels above 0 are made after the copy, as "
                   "downsample-volume makes them.  [default: as many levels as SRC has; if SRC has "
                   "one level, until no axis is longer than 1024 voxels; for HDF5, 0]")
@task_size_option("Size of a task, voxels, zyx.  [default: whole blocks or shards, about 64 MiB]")
@processes_option()
@parallel_option("-p")
@click.option("--overwrite/--resume", default=False, show_default=True,
              help="Rewrite blocks that are already stored, or skip them.")
@fill_missing_option()
@access_options()
def command(
    source: str, target: str | None, dtype: str | None, shard_size: Zyx | None,
    block_size: Zyx | None, processes: int, parallel: int | None, fill_missing: bool,
    voxel_size: tuple[float, float, float] | None, **options: Any,
) -> Callable[[], None]:
    """Check the block and shard size, and return the function that converts the volume."""
    # fmt: on
    if block_size is not None:
        check_shard(shard_size, block_size)

    if target is None:
        _check_describes()

    def describe() -> None:
        from chunkflow_py.pipeline.terminal import echo
        from chunkflow_py.volume.description import described
        from chunkflow_py.volume.protocol import VolumeOptions

        reading = VolumeOptions(fill_missing=fill_missing, access=access_from(options))
        for name, text in described(source, options["mip"] or 0, reading).items():
            echo(f"{name:<12}{text}")

    def copy(target: str) -> None:
        from chunkflow_py.cli.levels import make_levels
        from chunkflow_py.cli.phase import run_phase, threads_of
        from chunkflow_py.run.whole_volume import Conversion
        from chunkflow_py.volume.new_volume import checked_dtype
        from chunkflow_py.volume.protocol import VolumeOptions

        access, threads = access_from(options), threads_of(parallel, processes)
        check_processes(processes, target)
        for name in ("use_https", "requester_pays"):
            del options[name]
        conversion = Conversion(
            source,
            target,
            dtype=checked_dtype(dtype, "--dtype"),
            voxel_size_nm=voxel_size,
            block_size=block_size,
            shard_size=shard_size,
            reading=VolumeOptions(fill_missing=fill_missing, parallel=threads, access=access),
            writing=VolumeOptions(parallel=threads, access=access),
            **options,
        )
        run_phase(
            conversion.pipeline,
            f"converting {source} to {target}",
            processes=processes,
            at_end=conversion.end,
        )
        if is_dry_run():
            return
        if conversion.levels:
            make_levels(
                target,
                1,
                conversion.levels + 1,
                conversion.writing,
                processes=processes,
                resume=not conversion.overwrite,
            )
        conversion.fit_display()

    return describe if target is None else partial(copy, target)


def _check_describes() -> None:
    """Refuse options that apply only to copying, if DST is missing.

    Raises:
        OptionError: an option that applies only to copying is given.
    """
    context = click.get_current_context()
    for param in context.command.params:
        given = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if given and param.name not in _DESCRIBING:
            msg = f"{param.opts[0]} applies only to copying, but DST is missing; give DST after SRC"
            raise OptionError(msg)
