"""Options that commands for labelling whole volumes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import BBOX, Decorator

if TYPE_CHECKING:
    from chunkflow_py.segmentation.labels.numbering import Numbering

CONNECTIVITY = click.Choice(["6", "18", "26"])


def numbering_options() -> Decorator:
    """Declare ``--global-ids`` and ``--domain``; `numbering_from` reads their values."""
    return together(
        click.option(
            "--global-ids/--chunk-ids",
            default=None,
            help="Make ids unique in the volume (uint64), or count from 1 in each chunk.  "
            "[default: --global-ids if the volume is divided into tasks, else --chunk-ids]",
        ),
        click.option(
            "--domain",
            type=BBOX,
            help="Box of the whole volume, for --global-ids.  [default: box of the input volume]",
        ),
    )


def numbering_from(options: dict[str, Any]) -> Numbering:
    """Remove the values of `numbering_options` from *options*; return them as `Numbering`."""
    from chunkflow_py.segmentation.labels.numbering import Numbering

    return Numbering(options.pop("global_ids"), options.pop("domain"))


def connectivity_option() -> Decorator:
    """Declare ``--connectivity/-c``: which voxels count as neighbours."""
    return click.option(
        "--connectivity",
        "-c",
        type=CONNECTIVITY,
        default="6",
        show_default=True,
        help="Voxels are neighbours if they share a face (6), a face or an edge (18), or a face, "
        "an edge or a corner (26).",
    )


def overlap_options() -> Decorator:
    """Declare the options for the smallest overlap at which two segments are joined."""
    return together(
        click.option(
            "--minimum-overlap",
            type=click.FloatRange(0, 1),
            default=0.5,
            show_default=True,
            help="Join segments of two tasks only if their overlap is at least this fraction. The "
            "overlap is the mean of two fractions: for each segment, the number of shared voxels "
            "divided by the number of its voxels where the tasks overlap.",
        ),
        click.option(
            "--minimum-overlap-voxels",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Join segments of two tasks only if they share at least this many voxels.",
        ),
    )


def place_of(url: str) -> str:
    """Return the canonical URL of a folder or prefix, the same for all spellings of its URL."""
    from chunkflow_py.volume.location import Location

    return Location.parse(url).store_url


def check_single_task(outline: Any, name: str) -> None:
    """Check that a pipeline has only one task.

    Args:
        outline: what the pipeline knows about its tasks before the first task runs.
        name: name of the operator.

    Raises:
        OptionError: the pipeline has several tasks.
    """
    count = outline.task_count
    if count > 1:
        msg = (
            f"{name} needs a pipeline with one task, but this pipeline has {count} tasks; begin "
            "the pipeline with generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1"
        )
        raise OptionError(msg)


def check_task_boxes(outline: Any, name: str, purpose: str) -> None:
    """Check that tasks have boxes.

    Args:
        outline: what the pipeline knows about its tasks before the first task runs.
        name: name of the operator.
        purpose: what the operator does with the boxes, for the message.

    Raises:
        OptionError: the tasks have no boxes.
    """
    if not outline.has_tasks:
        msg = f"{name} {purpose}, but no task has a box; put generate-tasks in front of {name}"
        raise OptionError(msg)
