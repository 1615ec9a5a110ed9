"""Score a segmentation by variation of information and Rand.

Example: chunkflow load-h5 -f seg.h5 load-h5 -f truth.h5 -o groundtruth evaluate-segmentation

Both are split in two: split is what cutting true bodies costs, merge what joining them costs.
The chunks are compared where both of them lie; --bbox narrows that down. The table goes to the
standard output, the scores by name into the task, and with --json into a file.

--relabel scores a region cut out of larger objects: both volumes are labelled anew by 26-connected
components inside of the region, and voxels that the segmentation left 0 take the nearest segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import GeometryError, OptionError, needs_extra
from chunkflow_py.params import BBOX, input_option, is_dry_run, output_option
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from chunkflow_py.chunk import Chunk
    from chunkflow_py.geometry import BoundingBox
    from chunkflow_py.stages import Outline
    from chunkflow_py.task import Task

SECTION = "segment"


def evaluate_segmentation(
    segmentation: Chunk,
    groundtruth: Chunk,
    bbox: BoundingBox | None = None,
    *,
    relabel: bool = False,
    ignore_zero: bool = True,
) -> dict[str, Any]:
    """Return the scores of *segmentation* against *groundtruth* where both lie.

    Args:
        segmentation: (z, y, x) or (1, z, y, x) labels.
        groundtruth: the same.
        bbox: compare inside of this box only.
        relabel: score the region as a volume of its own, see `segmentation.evaluate.relabel`.
        ignore_zero: leave voxels out where the ground truth is 0.

    Returns:
        ``bbox`` (a box string) and the fields of `segmentation.evaluate.SegmentationScore`.

    Raises:
        GeometryError: the boxes have no voxel in common.
        ChunkError: a chunk holds no labels, or the ground truth is empty.
    """
    from chunkflow_py.segmentation.components import single_channel
    from chunkflow_py.segmentation.evaluate import evaluate
    from chunkflow_py.segmentation.evaluate import relabel as relabelled

    region = segmentation.bbox.intersection(groundtruth.bbox)
    where = f"segmentation {segmentation.bbox} and ground truth {groundtruth.bbox}"
    if region.is_empty:
        msg = f"{where} have no voxel in common; check their voxel offsets"
        raise GeometryError(msg)
    if bbox is not None:
        if bbox.intersection(region).is_empty:
            msg = f"--bbox {bbox} has no voxel in common with {where}; the part in both is {region}"
            raise GeometryError(msg)
        region = bbox.intersection(region)
    ours, truth = (single_channel(c.cut(region).array) for c in (segmentation, groundtruth))
    if relabel:
        with needs_extra("segmentation", "evaluate-segmentation --relabel"):
            ours, truth = relabelled(ours, truth, segmentation.voxel_size_nm)
    score = evaluate(ours, truth, ignore_zero=ignore_zero)
    return {"bbox": str(region), **score.as_dict()}


@dataclass
class Evaluator:
    """Scores the segmentation of every task."""

    segmentation_name: str
    groundtruth_name: str
    output: str
    bbox: BoundingBox | None
    relabel: bool
    ignore_zero: bool
    json: str | None

    def prepare(self, outline: Outline) -> None:
        """Refuse one JSON file for several tasks."""
        count = 0 if outline.boxes is None else len(outline.boxes)
        if self.json and self.json.endswith(".json") and count > 1:
            msg = (
                f"--json {self.json} is one file, but there are {count} tasks; give a prefix "
                f"without .json, such as {self.json.removesuffix('.json')}_, to get one file a task"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Score, print the table, keep the scores."""
        import json

        from chunkflow_py.segmentation.evaluate import table
        from chunkflow_py.store.local import write_whole

        scores = evaluate_segmentation(
            task.chunk(self.segmentation_name),
            task.chunk(self.groundtruth_name),
            self.bbox,
            relabel=self.relabel,
            ignore_zero=self.ignore_zero,
        )
        task[self.output] = scores
        title = f"{self.segmentation_name} against {self.groundtruth_name}"
        click.echo(table(scores, f"{title} in {scores['bbox']}"))
        if self.json:
            whole = self.json.endswith(".json")
            path = self.json if whole else f"{self.json}{task.region or scores['bbox']}.json"
            write_whole(path, (json.dumps(scores, indent=2) + "\n").encode())
        return task


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
@click.option("--bbox", "-b", type=BBOX, help="Compare in this box only.  [default: all]")
@click.option(
    "--relabel/--no-relabel",
    default=False,
    show_default=True,
    help="Label both anew by 26-connected components in the box; 0 takes the nearest segment.",
)
@click.option(
    "--ignore-zero/--count-zero",
    default=True,
    show_default=True,
    help="Leave voxels out where the ground truth is 0.",
)
@click.option("--json", "-j", help="File for the scores, or a prefix of BOX.json.")
def command(**options: Any) -> Evaluator:
    """Take the names and the region."""
    from chunkflow_py.volume.file_name import local_path

    path = options.pop("json")
    path = path and local_path(path, "--json")
    return Evaluator(json=None if is_dry_run() else path, **options)
