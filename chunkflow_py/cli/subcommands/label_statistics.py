"""Write a table of the objects of a label volume.

For each label of SRC, the table has the number of voxels, the volume, the bounding box, the
centroid, whether the object touches the border of SRC and, with --image, the mean, smallest and
largest intensity of each channel. In a time series, labels of different time points are different
objects, and the table has a column for the time point. All sums are exact, so the table does not
depend on the division into tasks.

Intermediate results are stored in --work-path. To continue an interrupted label-statistics, run
the same command again. With --parts, nothing is measured: label-statistics makes the table from the
measurements that a run with the operator measure-labels has stored.

Example: chunkflow label-statistics labels.zarr objects.csv --image cells.zarr
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import parallel_option, processes_option, task_size_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.params import channels_option, mip_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Zyx


# fmt: off
@subcommand
@click.argument("labels", metavar="SRC")
@click.argument("table", metavar="TABLE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--image", metavar="URL",
              help="Volume of intensities, with the bounds and voxel size of SRC.")
@channels_option()
@mip_option(help="Level of both volumes.  [default: the global --mip]")
@click.option("--work-path", "-w", metavar="URL",
              help="Folder or prefix for the measurements of tasks.  [default: TABLE.parts]")
@click.option("--parts", metavar="URL",
              help="Folder or prefix to which a run with measure-labels wrote its measurements "
                   "(--statistics-path).")
@task_size_option("Size of a task, voxels, zyx.  [default: whole blocks, about 64 MiB]")
@processes_option()
@parallel_option()
@click.option("--overwrite/--resume", default=False, show_default=True,
              help="Measure all tasks again, or skip tasks that are finished.")
@access_options()
def command(
    labels: str, table: Path, image: str | None, channels: tuple[int, ...] | None, mip: int | None,
    work_path: str | None, parts: str | None, task_size: Zyx | None, processes: int,
    parallel: int | None, overwrite: bool, **options: Any,
) -> Callable[[], None]:
    """Check the options, and return the function that measures objects and writes the table."""
    # fmt: on
    if channels is not None and image is None:
        msg = "--channels chooses channels of --image, which is missing; add --image"
        raise OptionError(msg)
    if parts is not None and (work_path is not None or task_size is not None or overwrite):
        msg = (
            f"with --parts {parts}, nothing is measured; leave out --work-path, --task-size and "
            "--overwrite"
        )
        raise OptionError(msg)

    def act() -> None:
        from chunkflow_py.cli.phase import run_phase, threads_of
        from chunkflow_py.pipeline.params import is_dry_run
        from chunkflow_py.run.object_table import ObjectTable, check_table_path, encoded_table
        from chunkflow_py.store.local_files import write_whole
        from chunkflow_py.volume.protocol import VolumeOptions

        check_table_path(table)
        objects = ObjectTable(
            labels,
            (work_path or f"{table}.parts").rstrip("/"),
            image,
            channels,
            mip or 0,
            task_size,
            overwrite,
            VolumeOptions(parallel=threads_of(parallel, processes), access=access_from(options)),
        )
        if is_dry_run():
            objects.measuring().check()
            return
        if parts is None:
            objects.begin()
            make = replace(objects).measuring  # picklable, because no volume is open
            run_phase(make, f"measuring {labels}", processes=processes)
        columns = objects.columns(objects.objects(parts))
        write_whole(table, encoded_table(columns, table.suffix))
        count = len(columns["label"])
        echo(f"{table}: {count} {'object' if count == 1 else 'objects'}")

    return act
