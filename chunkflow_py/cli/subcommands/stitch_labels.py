"""Join labels across tasks: one id for each object.

LABELS were made task by task, with ids that are unique in the volume (connected-components or
agglomerate with --global-ids). Labels that touch across task boundaries are linked; with
--overlap-path it is segments that share voxels (see save-overlap). All linked ids become the
smallest of them, in OUTPUT. For connected components this is what labelling the volume at once
would give, whatever the size of the tasks.

The boxes of the tasks and the connectivity are recorded with LABELS. Only labels of older versions
and other programs need --chunk-size and --connectivity.

Links and their table are kept beside OUTPUT. A line that was interrupted goes on where it stopped;
after LABELS have been made again, give --overwrite.
As stages of a run, on many machines: link-labels, solve-labels, relabel.

Example: chunkflow stitch-labels parts.zarr zarr://labels.zarr
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.label_options import CONNECTIVITY, overlap_options
from chunkflow_py.ops.options.saving_options import ENCODINGS
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.params import mip_option, zyx_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.run.stitching import Stitching
    from chunkflow_py.segmentation.labels.components import Connectivity

logger = logging.getLogger(__name__)


# fmt: off
@subcommand
@click.argument("labels", required=False, metavar="LABELS")
@click.argument("output", required=False, metavar="OUTPUT")
@click.option("--volume-path", "-v", metavar="LABELS", help="Volume of the labels.")
@click.option("--output-path", "-o", metavar="OUTPUT", help="Volume to make; uint64.")
@zyx_option("--chunk-size", "-s", minimum=1,
            help="Box size of the tasks that made the labels, from the volume's first voxel on, "
                 "zyx.  [default: as recorded with LABELS]")
@mip_option(help="Level of LABELS, which becomes level 0 of OUTPUT.  [default: --mip before the "
                 "subcommand]")
@click.option("--connectivity", "-c", type=CONNECTIVITY,
              help="Neighbours share a face (6), also an edge (18), also a corner (26).  [default: "
                   "as recorded with LABELS; else 6]")
@click.option("--values-path", metavar="URL",
              help="Volume that was labelled, where it was a segmentation and no mask: labels are "
                   "linked where its values are the same.")
@click.option("--overlap-path", "-p", metavar="URL",
              help="What save-overlap stored: link segments by the voxels they share.")
@overlap_options()
@click.option("--work-path", "-w", metavar="URL",
              help="Folder or prefix for links and their table.  [default: OUTPUT.stitch]")
@zyx_option("--block-size", "-b", minimum=1,
            help="Block of OUTPUT, voxels, zyx.  [default: as LABELS have]")
@click.option("--encoding", type=click.Choice(ENCODINGS),
              help="Compression of OUTPUT.  [default: the format's]")
@zyx_option("--task-size", minimum=1,
            help="Extent of a task that relabels, voxels, zyx.  [default: about 64 MiB of whole "
                 "blocks]")
@click.option("--parallel", type=click.IntRange(min=1),
              help="Blocks to encode or decode at the same time.  [default: one a core]")
@click.option("--overwrite/--resume", default=False, show_default=True,
              help="Do all of it again; or leave out what is there.")
@access_options()
def command(**options: Any) -> Callable[[], None]:
    """Check the options; volumes are opened when the subcommand acts."""
    # fmt: on
    for argument, option in (("labels", "volume_path"), ("output", "output_path")):
        given, named = options.pop(argument), options[option]
        name = option.replace("_", "-")
        if given is not None and named is not None:
            msg = f"{given} and --{name} {named} both name {argument.upper()}; leave one out"
            raise OptionError(msg)
        options[option] = given or named
        if options[option] is None:
            msg = (
                f"stitch-labels needs {argument.upper()}; write chunkflow stitch-labels LABELS "
                f"OUTPUT, or give --{name}"
            )
            raise OptionError(msg)
    if options["overlap_path"] and options["values_path"]:
        msg = (
            f"--values-path {options['values_path']} is for labels that touch; leave it out with "
            "--overlap-path"
        )
        raise OptionError(msg)

    def act() -> None:
        stitch_labels(_stitching(options))

    return act


def stitch_labels(stitching: Stitching) -> None:
    """Link, solve and relabel.

    Raises:
        ChunkflowError: tasks failed; no later phase is begun.
    """
    from chunkflow_py.cli.phase import run_phase

    if click.get_current_context().find_root().params["dry_run"]:
        stitching.linking().check()
        logger.info("dry run: nothing is linked")
        return
    stitching.begin()
    run_phase(stitching.linking, f"linking {stitching.labels}")
    table = stitching.solve()

    def relabelling(**running: Any) -> Any:
        return stitching.relabelling(table, **running)

    run_phase(relabelling, f"relabelling {stitching.labels}")


def _stitching(options: dict[str, Any]) -> Stitching:
    from chunkflow_py.run.stitching import Stitching
    from chunkflow_py.segmentation.labels.linking import OverlapLinker, TouchLinker
    from chunkflow_py.volume.protocol import VolumeOptions

    opening = VolumeOptions(parallel=options["parallel"], access=access_from(options))
    url, mip = options["volume_path"], options["mip"]
    linker: TouchLinker | OverlapLinker
    if options["overlap_path"]:
        linker = OverlapLinker(
            options["overlap_path"],
            options["minimum_overlap"],
            options["minimum_overlap_voxels"],
            opening.access,
        )
    else:
        linker = TouchLinker(url, mip, 6, options["values_path"], opening)
        labelling = None if options["connectivity"] else linker.recorded()
        connectivity = options["connectivity"] or (labelling and labelling.connectivity) or 6
        linker.connectivity = cast("Connectivity", int(connectivity))
    kept = ("chunk_size", "mip", "overwrite", "block_size", "encoding", "task_size")
    return Stitching(
        url,
        options["output_path"],
        linker=linker,
        work=options["work_path"],
        opening=opening,
        **{name: options[name] for name in kept},
    )
