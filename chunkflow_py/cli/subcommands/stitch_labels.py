"""Join labels across tasks: one id for each object.

The ids of LABELS must be unique in the volume: use --global-ids when connected-components or
agglomerate makes LABELS. Labels that touch across a task boundary are linked. With --overlap-path,
labels of neighbouring tasks are linked instead if they share enough voxels of the overlaps that
save-overlap has stored. In OUTPUT, linked ids are replaced by the smallest id of their object. For
connected components, OUTPUT is the same as if the whole volume had been labelled in one piece,
whatever the size of the tasks.

The boxes of the tasks and the connectivity are recorded with LABELS. --chunk-size and
--connectivity are needed only for labels that older versions or other programs have made.

The links and the table of ids are stored beside OUTPUT. To continue an interrupted stitch-labels,
run the same command again. If LABELS have been made again, add --overwrite.

To stitch on many machines, use link-labels, solve-labels and relabel as steps of a run.

Example: chunkflow stitch-labels parts.zarr zarr://labels.zarr
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import click

from chunkflow_py.cli.shared_options import parallel_option, task_size_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.label_options import CONNECTIVITY, overlap_options
from chunkflow_py.ops.options.saving_options import block_size_option, encoding_option
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.params import mip_option, zyx_option
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.run.stitching import Stitching
    from chunkflow_py.segmentation.labels.components import Connectivity

logger = logging.getLogger(__name__)


# fmt: off
@subcommand
@option_headings(
    {
        "How labels were made": ("chunk_size", "connectivity", "values_path"),
        "Overlaps": ("overlap_path", "minimum_overlap", "minimum_overlap_voxels"),
        "New volume": ("block_size", "encoding"),
        "Tasks": ("work_path", "task_size", "parallel", "overwrite"),
        "Cloud access": ("use_https", "requester_pays"),
    }
)
@click.argument("labels", required=False, metavar="LABELS")
@click.argument("output", required=False, metavar="OUTPUT")
@click.option("--volume-path", "-v", metavar="LABELS", help="Volume of the labels to join.")
@click.option("--output-path", "-o", metavar="OUTPUT", help="Volume to create, uint64.")
@zyx_option("--chunk-size", "-s", minimum=1,
            help="Size of the tasks that made LABELS, voxels, zyx, if the first task began at the "
                 "first voxel of LABELS.  [default: as recorded with LABELS]")
@mip_option(help="Level of LABELS to read; it becomes level 0 of OUTPUT.  [default: the global "
                 "--mip]")
@click.option("--connectivity", "-c", type=CONNECTIVITY,
              help="Which voxels are neighbours: those that share a face (6), a face or an edge "
                   "(18), or also a corner (26).  [default: as recorded with LABELS, else 6]")
@click.option("--values-path", metavar="URL",
              help="Segmentation whose connected components are LABELS. Labels are linked only "
                   "where the segmentation has equal values. Not needed for the components of a "
                   "mask.")
@click.option("--overlap-path", "-p", metavar="URL",
              help="Address of the overlaps that save-overlap stored; segments that share enough "
                   "voxels are linked.")
@overlap_options()
@click.option("--work-path", "-w", metavar="URL",
              help="Folder or prefix to store the links and the table of ids in.  [default: "
                   "OUTPUT.stitch]")
@block_size_option("OUTPUT", "--block-size", "-b", default="as in LABELS")
@encoding_option("OUTPUT")
@task_size_option("Size of the tasks that relabel, voxels, zyx.  [default: whole blocks, about "
                  "64 MiB]")
@parallel_option()
@click.option("--overwrite/--resume", default=False, show_default=True,
              help="Repeat all tasks, or skip tasks that are finished.")
@access_options()
def command(**options: Any) -> Callable[[], None]:
    """Check that the options agree, and return the function that stitches the labels."""
    # fmt: on
    for argument, option in (("labels", "volume_path"), ("output", "output_path")):
        given, named = options.pop(argument), options[option]
        name = option.replace("_", "-")
        if given is not None and named is not None:
            msg = (
                f"{given} and --{name} {named} both give {argument.upper()}; leave one of them out"
            )
            raise OptionError(msg)
        options[option] = given or named
        if options[option] is None:
            msg = (
                f"stitch-labels needs {argument.upper()}, which is missing; write chunkflow "
                f"stitch-labels LABELS OUTPUT, or give --{name}"
            )
            raise OptionError(msg)
    if options["overlap_path"] and options["values_path"]:
        msg = (
            f"--values-path {options['values_path']} is for labels that touch, but --overlap-path "
            "links labels that share voxels; leave one of these two options out"
        )
        raise OptionError(msg)

    def act() -> None:
        stitch_labels(_stitching(options))

    return act


def stitch_labels(stitching: Stitching) -> None:
    """Link the labels of neighbouring tasks, assign an id to each object, and relabel the volume.

    Raises:
        ChunkflowError: tasks failed; the later phases are not started.
    """
    from chunkflow_py.cli.phase import run_phase

    if click.get_current_context().find_root().params["dry_run"]:
        stitching.linking().check()
        logger.info("dry run: the labels were checked, but not linked")
        return
    stitching.begin()
    run_phase(stitching.linking, f"linking {stitching.labels}")
    relabelling = stitching.relabelling(stitching.solve())
    description = f"relabelling {stitching.labels}"
    run_phase(relabelling.pipeline, description, at_end=relabelling.end)


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
