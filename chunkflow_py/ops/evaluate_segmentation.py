r"""Score a segmentation: VI, Rand, F1, Dice.

Example: chunkflow load-h5 --file-name seg.h5 \
  load-h5 --file-name truth.h5 --output-name groundtruth evaluate-segmentation

Rand and variation of information have two parts: split measures how much bodies (objects of the
ground truth) are cut into pieces, and merge measures how much different bodies are joined. Object
scores count the bodies and segments that match each other with an intersection over union (IoU) of
at least --iou-threshold; label 0 is background. If labels are classes, --per-class adds Dice and
IoU of each class.

The two chunks are compared where they overlap; --bbox restricts the region. The operator prints a
table of the scores and adds the scores to the task. --json also writes the scores to a file.

If tasks divide a volume, --table-path URL stores the label overlaps of each task in one small
file. Then `chunkflow sum-scores URL` prints the scores of the whole volume, which differ from the
mean of the scores of the tasks.

Use --relabel if the boundary of the region cuts objects into pieces. Before the comparison, each
piece (26-connected component) gets a label of its own, in both chunks. Voxels of label 0 in the
segmentation get the label of the nearest segment.
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
    """Return the scores of *segmentation* against *groundtruth* where the two overlap.

    Args:
        segmentation: (z, y, x) or (1, z, y, x) labels.
        groundtruth: (z, y, x) or (1, z, y, x) labels.
        bbox: box in which to compare (default: the overlap of the two chunks).
        relabel: relabel both chunks first; see `segmentation.evaluate.relabel`.
        options: keyword arguments of `segmentation.evaluate.score`, such as ``ignore_zero``.

    Returns:
        A dictionary of ``bbox`` (the compared box, as text) and the fields of
        `segmentation.evaluate.SegmentationScore`.

    Raises:
        GeometryError: the boxes of the chunks and *bbox* have no voxel in common.
        ChunkError: a chunk does not contain labels, or the ground truth contains only label 0.
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
@output_option("--output", "-o", default="seg_score", help="Name of the item for the scores.")
@click.option("--bbox", "-b", type=BBOX, help="Box to compare.  [default: overlap of the chunks]")
@click.option(
    "--relabel/--no-relabel",
    default=False,
    show_default=True,
    help="Relabel both chunks by 26-connected components; unlabelled voxels of the segmentation "
    "get the label of the nearest segment.",
)
@scoring_options
@click.option("--json", "-j", help="JSON file for the scores, or prefix of one file per task.")
@click.option("--table-path", metavar="URL",
              help="Store the label overlaps of each task below this folder or prefix, instead of "
                   "printing scores; sum-scores adds the overlaps up.")  # fmt: skip
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
                    f"with {option}, the label overlaps of tasks do not add up to those of the "
                    f"volume; leave out {option} or --table-path"
                )
                raise OptionError(msg)
    if options["relabel"]:
        check_extra("segmentation", "evaluate-segmentation --relabel", "cc3d", "scipy")
    names = (segmentation_name, groundtruth_name, output)
    if is_dry_run():
        path = table_path = None
    return Evaluator(*names, evaluate_segmentation, options, echo, path, table_path)
