r"""Join the skeleton fragments of each object.

Example: chunkflow aggregate-skeleton-fragments --fragments-path precomputed://file:///data/seg \
  --prefix 12

Run this command after skeletonize has finished all tasks. The command joins the fragments of each
object at the task boundaries. It also removes the short pieces, branches and loops that come from
cutting objects into tasks. --prefix selects objects by the first digits of their ids. If the prefix
is an item of the task, give the name of this item with --input-name.

In a run, each task can join the objects of one prefix. With --digits 2, the prefix consists of two
digits and is the start of the task's box along z: a task with the box 70-71_0-1_0-1 joins the
objects whose ids start with 70. For example:
chunkflow submit ... skeletonize ... then generate-tasks --roi-size 100 1 1 --chunk-size 1 1 1
aggregate-skeleton-fragments --fragments-path seg --digits 2

With --shards 16, skeletons are stored in 16 files (shards). A hash of the object id selects the
shard of an object. The start of the task's box along z is the number of the shard: a task with the
box 5-6_0-1_0-1 writes shard 5. For example:
then generate-tasks --roi-size 16 1 1 --chunk-size 1 1 1
aggregate-skeleton-fragments --fragments-path seg --shards 16
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.skeleton import Skeleton
    from chunkflow_py.segmentation.skeletonize import SkeletonAggregator

SECTION = "objects"


def aggregate_skeleton_fragments(
    fragments: Sequence[Skeleton], dust_threshold: float = 1000, tick_threshold: float = 3500
) -> Skeleton:
    """Return the skeleton of one object, joined from its fragments.

    Args:
        fragments: fragments of the object; the result depends on their order.
        dust_threshold: remove connected pieces that are shorter than this, nanometres.
        tick_threshold: remove branches that are shorter than this, nanometres.

    Raises:
        MissingExtraError: kimimaro is not installed.
    """
    from chunkflow_py.segmentation.skeletonize import join_skeletons

    return join_skeletons(fragments, dust_threshold, tick_threshold)


@operator("write")
@click.option(
    "--input-name",
    "-i",
    default="prefix",
    show_default=True,
    help="Name of the item with the prefix, if the task has such an item.",
)
@click.option(
    "--prefix", "-p", help="Join only objects whose ids start with these digits.  [default: all]"
)
@click.option(
    "--digits",
    type=click.IntRange(1, 18),
    help="Number of digits of the prefix; the prefix is the start of the task's box along z.",
)
@click.option(
    "--fragments-path",
    "-f",
    required=True,
    help="URL of the volume, or of the folder of its skeleton fragments.",
)
@click.option(
    "--output-path",
    "-o",
    help="URL of the volume or folder to write skeletons to.  [default: --fragments-path]",
)
@click.option(
    "--dust-threshold",
    type=click.FloatRange(min=0),
    default=1000,
    show_default=True,
    help="Length below which connected pieces of a skeleton are removed, nm.",
)
@click.option(
    "--tick-threshold",
    type=click.FloatRange(min=0),
    default=3500,
    show_default=True,
    help="Length below which branches of a skeleton are removed, nm.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    help="Number of shards to divide the skeletons into, a power of two. A task writes the shard "
    "whose number is the start of its box along z. A task without a box writes all shards.  "
    "[default: one file for each object]",
)
def command(
    input_name: str,
    prefix: str | None,
    digits: int | None,
    fragments_path: str,
    output_path: str | None,
    dust_threshold: float,
    tick_threshold: float,
    shards: int | None,
) -> SkeletonAggregator:
    """Check the prefix and the number of shards, and return the operator."""
    from chunkflow_py.segmentation.labels.object_shards import sharding_of
    from chunkflow_py.segmentation.skeletonize import SkeletonAggregator
    from chunkflow_py.volume.location import Location

    check_extra("skeleton", "aggregate-skeleton-fragments", "kimimaro")
    if prefix is not None and not is_digits(prefix.rstrip(":")):
        msg = f"--prefix {prefix} is not a number; give the first digits of ids, such as 12"
        raise OptionError(msg)
    if shards is not None:
        if prefix is not None or digits is not None:
            msg = (
                f"--shards {shards} divides the objects by a hash of their ids, but --prefix and "
                "--digits divide the objects by the first digits of their ids; give --shards "
                "alone, or leave --shards out"
            )
            raise OptionError(msg)
        check_extra("precomputed", "aggregate-skeleton-fragments --shards", "imagecodecs")
        sharding_of(shards)
    output = None if output_path is None else Location.parse(output_path).store_url
    source = Location.parse(fragments_path).store_url
    return SkeletonAggregator(
        source, output, prefix, input_name, digits, dust_threshold, tick_threshold, shards
    )
