"""Options that the commands evaluate-segmentation and sum-scores share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.pipeline.params import NumbersType

if TYPE_CHECKING:
    from collections.abc import Callable


class LabelsType(NumbersType):
    """Option type of labels separated by commas; 0 is allowed."""

    name = "labels"
    least, description = 0, "labels; write 0,7"


# fmt: off
_OPTIONS = (
    click.option("--ignore-zero/--count-zero", default=True, show_default=True,
                 help="Exclude unlabelled voxels (ground truth 0) from Rand and variation of "
                      "information, or include them."),
    click.option("--ignore-truth-labels", "ignore_bodies", type=LabelsType(), default=(),
                 help="Ground truth labels to exclude from all scores, such as 0,7.  "
                      "[default: none]"),
    click.option("--ignore-segmentation-labels", "ignore_segments", type=LabelsType(), default=(),
                 help="Segmentation labels to exclude from all scores.  "
                      "[default: none]"),
    click.option("--iou-threshold", type=click.FloatRange(0, 1, min_open=True), default=0.5,
                 show_default=True,
                 help="Smallest intersection over union at which a segment matches a ground truth "
                      "object."),
    click.option("--per-class/--no-per-class", default=False, show_default=True,
                 help="Report Dice and IoU of each label; for labels that are classes, not "
                      "objects."),
)
# fmt: on


def scoring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare an option for each keyword argument of `segmentation.evaluate.score`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
