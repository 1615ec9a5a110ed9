"""Options that say how a segmentation is scored, shared by what scores a task and a volume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.pipeline.params import NumbersType

if TYPE_CHECKING:
    from collections.abc import Callable


class LabelsType(NumbersType):
    """Labels, separated by commas."""

    name = "labels"
    least, words = 0, "labels; write 0,7"


# fmt: off
_OPTIONS = (
    click.option("--ignore-zero/--count-zero", default=True, show_default=True,
                 help="Rand and variation of information: leave voxels out where the ground truth "
                      "is 0, because nobody has labelled them."),
    click.option("--ignore-truth-labels", "ignore_bodies", type=LabelsType(), default=(),
                 help="Leave voxels out of all scores where the ground truth is one of these, such "
                      "as 0,7.  [default: none]"),
    click.option("--ignore-segmentation-labels", "ignore_segments", type=LabelsType(), default=(),
                 help="Leave voxels out of all scores where the segmentation is one of these.  "
                      "[default: none]"),
    click.option("--iou-threshold", type=click.FloatRange(0, 1, min_open=True), default=0.5,
                 show_default=True, help="IoU from which on a segment is the body it overlaps."),
    click.option("--per-class/--no-per-class", default=False, show_default=True,
                 help="Labels are classes: tell Dice and IoU of each."),
)
# fmt: on


def scoring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the keywords of `chunkflow_py.segmentation.evaluate.score`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
