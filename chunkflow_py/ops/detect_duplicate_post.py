r"""Remove duplicate postsynaptic points.

Example: chunkflow load-synapses --file-path synapses.h5 load-h5 --file-name segmentation.h5 \
  detect-duplicate-post --distance-threshold 10 save-synapses --file-path single.h5

Points in one segment that lie within --distance-threshold of each other count as one contact. Of
each contact, only the point nearest to its T-bar is kept. --max-distance also removes points far
from their T-bar, and --max-post-num removes surplus points of a T-bar. With --user, only points of
that user are removed, so points that other users have checked are kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import check_extra
from chunkflow_py.ops.options.synapse_options import synapses_option
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
    """Return a mask of the postsynaptic points to remove: a bool array, one value per point.

    Args:
        synapses: synapses with positions in voxels of the segmentation.
        segmentation: (z, y, x) or (1, z, y, x), integers; 0 is background. Points outside of this
            chunk are not compared with other points.
        distance_threshold: largest distance between the points of one contact, voxels.
        max_distance: remove points that are farther from their T-bar than this, voxels.
        max_post_num: largest number of points to keep per T-bar. The points with
            the smallest ratio of distance (from the T-bar) to confidence are kept.
        user: remove only points of this user (default: of all users).

    Raises:
        ChunkError: no annotator is called *user*, or *segmentation* does not contain labels.
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
    is_duplicate = doubled(synapses, objects, distance_threshold, protected)
    if max_distance is not None:
        is_duplicate |= distance > max_distance
    if max_post_num is not None:
        confidence = 1.0 if synapses.post_confidence is None else synapses.post_confidence
        cost = distance / np.maximum(confidence, 1e-6)
        rank = ranks(synapses.post_to_pre, is_duplicate, ~protected, cost)
        is_duplicate |= rank >= max_post_num
    return is_duplicate & ~protected


def detect_duplicate_post(synapses: Synapses, segmentation: Chunk, **options: Any) -> Synapses:
    """Return *synapses* without the postsynaptic points that `duplicates` marks."""
    return synapses.keep_post(~duplicates(synapses, segmentation, **options))


@dataclass
class DuplicateRemover:
    """Removes duplicates from the synapses of every task."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"
    duplicates_name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, task: Task) -> Task:
        """Add the synapses without duplicates to *task*, or ``None`` if *task* has no synapses."""
        from chunkflow_py.core.synapses import Synapses

        kept = removed = None
        if task[self.synapses_name] is not None:
            synapses = task.item(self.synapses_name, Synapses)
            marked = duplicates(synapses, task.chunk(self.input_name), **self.options)
            kept, removed = synapses.keep_post(~marked), synapses.keep_post(marked)
            logger.info("%s: removed %d of %d postsynaptic points", task, marked.sum(), len(marked))
        task[self.output_name] = kept
        if self.duplicates_name is not None:
            task[self.duplicates_name] = removed
        return task


@operator("compute")
@input_option(help="Name of the segmentation.")
@synapses_option()
@output_option("--output-name", "-o", default="syns", help="Name of the remaining synapses.")
@click.option("--duplicates-name", "-d", type=ItemName("out"),
              help="Name of an item for synapses with only the removed points.")  # fmt: skip
@click.option("--distance-threshold", type=click.FloatRange(min=0), default=10.0, show_default=True,
              help="Largest distance between points of one contact, voxels.")  # fmt: skip
@click.option("--max-distance", type=click.FloatRange(min=0),
              help="Remove points farther than this from their T-bar, voxels.")  # fmt: skip
@click.option("--max-post-num", type=click.IntRange(min=1),
              help="Largest number of points to keep per T-bar.  [default: any]")  # fmt: skip
@click.option("--user", help="Remove only points of this user.  [default: of all users]")
def command(
    input_name: str,
    synapses_name: str,
    output_name: str,
    duplicates_name: str | None,
    **options: Any,
) -> DuplicateRemover:
    """Check that SciPy is installed, and return the operator."""
    check_extra("segmentation", "detect-duplicate-post", "scipy")
    return DuplicateRemover(input_name, synapses_name, output_name, duplicates_name, options)
