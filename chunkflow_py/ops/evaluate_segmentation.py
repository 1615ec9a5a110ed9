r"""Score a segmentation: VI, Rand, F1, Dice.

Example: chunkflow load-h5 --file-name seg.h5 \
  load-h5 --file-name truth.h5 --output-name groundtruth evaluate-segmentation

Rand and variation of information have two parts: split measures the cost of cutting true bodies,
merge the cost of joining them. Object scores count the bodies that a segment matches with an
intersection over union (IoU) of at least --iou-threshold, and the segments that match a body; label
0 is background. --per-class is for labels that are classes.

The chunks are compared where they overlap; --bbox restricts the region. The operator prints a
table, adds the scores to the task by name, and with --json writes them to a file.

For a volume of many tasks, --table-path URL stores the overlaps of each task as one small object,
and `chunkflow sum-scores URL` prints the scores of the volume, which differ from the mean of the
tasks' scores.

--relabel scores a region cut out of larger objects: both volumes are relabelled by 26-connected
components inside the region, and voxels of 0 in the segmentation take the nearest segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError, check_extra, needs_extra
from chunkflow_py.ops.options.scoring_options import scoring_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import BBOX, input_option, is_dry_run, output_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.segmentation.evaluate import Evaluator

SECTION = "segment"


def evaluate_segmentation(
    segmentation: Chunk,
    groundtruth: Chunk,
    bbox: BoundingBox | None = None,
    *,
    relabel: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Score *segmentation* against *groundtruth* where they overlap.

    Args:
        segmentation: (z, y, x) or (1, z, y, x) labels.
        groundtruth: the same.
        bbox: box to compare in (default: where the two overlap).
        relabel: score the region as a volume of its own, see `segmentation.evaluate.relabel`.
        options: keyword arguments of `segmentation.evaluate.score`, such as ``ignore_zero``.

    Returns:
        ``bbox`` (a box string) and the fields of `segmentation.evaluate.SegmentationScore`.

    Raises:
        GeometryError: the boxes have no voxel in common.
        ChunkError: a chunk holds no labels, or the ground truth is empty.
    """
    from chunkflow_py.segmentation.evaluate import common_region, evaluate
    from chunkflow_py.segmentation.evaluate import relabel as relabelled
    from chunkflow_py.segmentation.labels.components import single_channel

    region = common_region(segmentation, groundtruth, bbox)
    ours, truth = (single_channel(c.cut(region).array) for c in (segmentation, groundtruth))
    if relabel:
        with needs_extra("segmentation", "evaluate-segmentation --relabel"):
            ours, truth = relabelled(ours, truth, segmentation.voxel_size_nm)
    return {"bbox": str(region), **evaluate(ours, truth, **options).as_dict()}


@operator("compute")
@input_option(
    "--segmentation-name", "--segmentation-chunk-name", "-s", help="Name of the segmentation."
)
@input_option(
    *("--groundtruth-name", "--groundtruth-chunk-name", "-g"),
    default="groundtruth",
    help="Name of the ground truth.",
)
@output_option("--output", "-o", default="seg_score", help="Name of the scores in the task.")
@click.option("--bbox", "-b", type=BBOX, help="Box to compare.  [default: where the two overlap]")
@click.option(
    "--relabel/--no-relabel",
    default=False,
    show_default=True,
    help="Relabel both by 26-connected components in the box; 0 takes the nearest segment.",
)
@scoring_options
@click.option("--json", "-j", help="JSON file for the scores, or prefix for one file per task.")
@click.option("--table-path", metavar="URL",
              help="Store the overlaps of each task below this folder or prefix, instead of "
                   "printing its scores; sum-scores adds them up.")  # fmt: skip
def command(
    segmentation_name: str,
    groundtruth_name: str,
    output: str,
    json: str | None,
    table_path: str | None,
    **options: Any,
) -> Evaluator:
    """Check that the options are consistent, and return the operator; a dry run stores nothing."""
    from chunkflow_py.segmentation.evaluate import Evaluator
    from chunkflow_py.volume.files.file_name import local_path

    path = json and local_path(json, "--json")
    if table_path:
        for option, given in (("--bbox", options["bbox"]), ("--relabel", options["relabel"])):
            if given:
                msg = (
                    f"{option} compares its own region, whose overlaps cannot be added to those "
                    f"of a volume; leave out {option} or --table-path"
                )
                raise OptionError(msg)
    if options["relabel"]:
        check_extra("segmentation", "evaluate-segmentation --relabel", "cc3d", "scipy")
    names = (segmentation_name, groundtruth_name, output)
    if is_dry_run():
        path = table_path = None
    return Evaluator(*names, evaluate_segmentation, options, echo, path, table_path)
