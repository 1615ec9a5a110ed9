"""Export a hierarchy to tables for other programs.

WORK is the folder of intermediate results of segment-affinity, and FOLDER a new folder or prefix.
There are three kinds of tables. Fragments: the size of each fragment, and its segment at
--threshold. Edges: the affinity of each pair of fragments that touch. Merges: all merges, from the
highest affinity to the lowest, so that another program can cut the hierarchy at any threshold. The
tables are npz files, and export.json lists the files.

The segments are the same as those that segment-affinity makes with the same --threshold, --min-size
and --min-affinity. To create a volume of the fragments, use segment-affinity --supervoxels.

An existing export is never overwritten with different tables. One process exports the whole volume,
and needs about 200 bytes of memory for each pair of fragments that touch.

Example: chunkflow export-hierarchy segments.zarr.segment export --threshold 0.7
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.ops.options.agglomeration_options import FRACTION, THRESHOLD_HELP
from chunkflow_py.pipeline.params import is_dry_run

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


@subcommand
@click.argument("work", metavar="WORK")
@click.argument("folder", metavar="FOLDER")
@click.option("--threshold", type=FRACTION, required=True, help=THRESHOLD_HELP)
@click.option("--min-size", type=click.IntRange(min=0), default=0, show_default=True,
              help="Unite each segment with fewer voxels than this with the neighbour to which "
                   "its mean affinity is highest.")  # fmt: skip
@click.option("--min-affinity", type=FRACTION, default=0.0, show_default=True,
              help="Smallest mean affinity at which --min-size unites a segment with a "
                   "neighbour.")  # fmt: skip
def command(
    work: str, folder: str, threshold: float, min_size: int, min_affinity: float
) -> Callable[[], None]:
    """Return the function that exports the hierarchy."""
    is_dry = is_dry_run()

    def act() -> None:
        from chunkflow_py.segmentation.agglomeration.hierarchy_export import HierarchyExport
        from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_settings
        from chunkflow_py.store import open_store
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.location import Location

        place = Location.parse(work).store_url
        hierarchy, graph = (open_store(f"{place}/{name}") for name in ("hierarchy", "graph"))
        read_settings(hierarchy)  # if WORK is not a folder of segment-affinity, this error says so
        target = open_store(Location.parse(folder).store_url)
        export = HierarchyExport(
            hierarchy, graph, target, open_volume(f"{place}/fragments.zarr").voxel_size_nm,
            threshold, min_size, min_affinity,
        )  # fmt: skip
        export.check()
        if is_dry:
            logger.info("dry run: the hierarchy was checked, but not exported")
            return
        index = export.write()
        rows = (f"{table['rows']} {name}" for name, table in index["tables"].items())
        logger.info("%s: %d segments, %s", target.url, index["segments"], ", ".join(rows))

    return act
