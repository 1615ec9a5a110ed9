"""Copy a label volume without small, large or cut objects.

An object is cut if it touches the border of SRC. Objects are chosen by their size in the whole
volume SRC, so first join labels across tasks with stitch-labels. The voxels of removed objects
become 0 in DST; the other ids are kept. In a time series, objects are chosen separately at each
time point. The result does not depend on the division into tasks.

Intermediate results, such as the table of removed objects, are stored in --work-path. To continue
an interrupted filter-labels, run the same command again. With --parts, nothing is measured:
filter-labels reads the sizes of objects that a run with the operator measure-labels has stored.

Example: chunkflow filter-labels labels.zarr zarr://clean.zarr --min-size 100 --no-border
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import parallel_option, task_size_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.saving_options import block_size_option, encoding_option
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.params import mip_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Zyx


# fmt: off
@subcommand
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--min-size", type=click.IntRange(min=1),
              help="Remove objects with fewer voxels than this.")
@click.option("--max-size", type=click.IntRange(min=1),
              help="Remove objects with more voxels than this.")
@click.option("--border/--no-border", default=True, show_default=True,
              help="Keep or remove objects that touch the border of SRC.")
@mip_option(help="Level of SRC; it becomes level 0 of DST.  [default: the global --mip]")
@click.option("--work-path", "-w", metavar="URL",
              help="Folder or prefix for intermediate results.  [default: DST.filter]")
@click.option("--parts", metavar="URL",
              help="Folder or prefix to which a run with measure-labels wrote its measurements "
                   "(--statistics-path).")
@block_size_option("DST", "--block-size", "-b", default="as in SRC")
@encoding_option("DST")
@task_size_option("Size of a task, voxels, zyx.  [default: whole blocks, about 64 MiB]")
@parallel_option()
@click.option("--overwrite/--resume", default=False, show_default=True,
              help="Repeat all tasks, or skip tasks that are finished.")
@access_options()
def command(
    source: str, target: str, min_size: int | None, max_size: int | None, border: bool,
    mip: int | None, work_path: str | None, parts: str | None, block_size: Zyx | None,
    encoding: str | None, task_size: Zyx | None, parallel: int | None, overwrite: bool,
    **options: Any,
) -> Callable[[], None]:
    """Check that there is something to remove, and return the function that filters."""
    # fmt: on
    if min_size is None and max_size is None and border:
        msg = "filter-labels would remove nothing; give --min-size, --max-size or --no-border"
        raise OptionError(msg)
    if min_size is not None and max_size is not None and min_size > max_size:
        msg = (
            f"--min-size {min_size} is larger than --max-size {max_size}, so no object would "
            "remain; swap the two values"
        )
        raise OptionError(msg)

    def act() -> None:
        from chunkflow_py.cli.phase import run_phase
        from chunkflow_py.pipeline.params import is_dry_run
        from chunkflow_py.run.label_filter import LabelFilter
        from chunkflow_py.volume.protocol import VolumeOptions

        filtering = LabelFilter(
            source,
            target,
            min_size=min_size,
            max_size=max_size,
            keep_border=border,
            mip=mip or 0,
            work=work_path,
            parts=parts,
            block_size=block_size,
            encoding=encoding,
            task_size=task_size,
            overwrite=overwrite,
            opening=VolumeOptions(parallel=parallel, access=access_from(options)),
        )
        if is_dry_run():
            filtering.objects.measuring().check()
            return
        if parts is None:
            filtering.objects.begin()
            run_phase(filtering.objects.measuring, f"measuring {source}")
        removed = filtering.choose()
        copying = filtering.copying()
        run_phase(copying.pipeline, f"filtering {source}", at_end=copying.end)
        echo(f"{target}: {removed}")

    return act
