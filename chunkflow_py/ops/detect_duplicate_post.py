"""Remove duplicate postsynaptic points.

Example: chunkflow load-synapses -f synapses.h5 load-h5 -f segmentation.h5 detect-duplicate-post
--distance-threshold 10 save-synapses -f single.h5

Points of one segment that are near each other are one contact, of which the point nearest to its
T-bar stays. --max-distance and --max-post-num take out more. With --user, only what that user has
made is taken out: points that others have checked stay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import check_extra
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, input_option, output_option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.core.task import Task

SECTION = "objects"
logger = logging.getLogger(__name__)


def duplicates(
    synapses: Synapses,
    segmentation: Chunk,
    distance_threshold: float = 10.0,
    max_distance: float | None = None,
    max_post_num: int | None = None,
    user: str | None = None,
) -> NDArray[Any]:
    """Tell of each postsynaptic point whether it is to be taken out, (m,) bool.

    Args:
        synapses: with positions in voxels of the segmentation.
        segmentation: (z, y, x) or (1, z, y, x), integers; 0 is background. Points outside of it are
            no duplicates.
        distance_threshold: within which points on one segment are one contact, voxels.
        max_distance: points farther from their T-bar are taken out, voxels.
        max_post_num: of more points of a T-bar those of the least distance / confidence stay.
        user: whose points may be taken out (default: everybody's).

    Raises:
        ChunkError: nobody of that name is among the users, or the chunk holds no labels.
        MissingExtraError: SciPy is not installed.
    """
    import numpy as np

    from chunkflow_py.segmentation.labels.partners import doubled, objects_at, ranks

    protected = np.zeros(len(synapses.post), bool)
    if user is not None:
        number = synapses.user_id(user)
        protected = ~protected if synapses.post_users is None else synapses.post_users != number
    objects = objects_at(segmentation, synapses.post)
    distance = synapses.pre_to_post_distances
    found = doubled(synapses, objects, distance_threshold, protected)
    if max_distance is not None:
        found |= distance > max_distance
    if max_post_num is not None:
        confidence = 1.0 if synapses.post_confidence is None else synapses.post_confidence
        cost = distance / np.maximum(confidence, 1e-6)
        found |= ranks(synapses.post_to_pre, found, ~protected, cost) >= max_post_num
    return found & ~protected


def detect_duplicate_post(synapses: Synapses, segmentation: Chunk, **options: Any) -> Synapses:
    """Return *synapses* without the postsynaptic points that `duplicates` tells of."""
    return synapses.keep_post(~duplicates(synapses, segmentation, **options))


@dataclass
class DuplicateRemover:
    """Takes duplicates out of the synapses of every task."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"
    duplicates_name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, task: Task) -> Task:
        """Take them out; a task without synapses has ``None``."""
        from chunkflow_py.core.synapses import Synapses

        kept = removed = None
        if task[self.synapses_name] is not None:
            synapses = task.item(self.synapses_name, Synapses)
            found = duplicates(synapses, task.chunk(self.input_name), **self.options)
            kept, removed = synapses.keep_post(~found), synapses.keep_post(found)
            logger.info("%s: %d of %d points taken out", task, found.sum(), len(found))
        task[self.output_name] = kept
        if self.duplicates_name is not None:
            task[self.duplicates_name] = removed
        return task


@operator("compute")
@input_option(help="Name of the segmentation.")
@input_option("--synapses-name", "-s", default="syns", help="Name of the synapses.")
@output_option("--output-name", "-o", default="syns", help="Name of what stays.")
@click.option("--duplicates-name", "-d", type=ItemName("out"), help="Name of what is taken out.")
@click.option("--distance-threshold", type=click.FloatRange(min=0), default=10.0, show_default=True,
              help="Within which points on one segment are one contact, voxels.")  # fmt: skip
@click.option("--max-distance", type=click.FloatRange(min=0),
              help="Take out points farther from their T-bar, voxels.")  # fmt: skip
@click.option("--max-post-num", type=click.IntRange(min=1),
              help="Points of a T-bar at most.  [default: any number]")  # fmt: skip
@click.option("--user", help="Whose points may be taken out.  [default: everybody's]")
def command(
    input_name: str,
    synapses_name: str,
    output_name: str,
    duplicates_name: str | None,
    **options: Any,
) -> DuplicateRemover:
    """Take the distances."""
    check_extra("segmentation", "detect-duplicate-post", "scipy")
    return DuplicateRemover(input_name, synapses_name, output_name, duplicates_name, options)
