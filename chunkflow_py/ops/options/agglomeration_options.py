"""Options that the steps of exact agglomeration share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import Decorator, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.affinity_layout import AffinityLayout
    from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions

FRACTION = click.FloatRange(0, 1)
_THRESHOLDS = {"distance": (0.4, 0.4), "affinity": (0.001, 0.9999)}  # low and high
THRESHOLD_HELP = "Merge segments while 1 - mean affinity is at most this value."


def fragment_options() -> Decorator:
    """Declare the options that define how fragments are made; `fragments_from` reads the values."""
    return together(
        click.option(
            "--fragments",
            type=click.Choice(["distance", "affinity"]),
            default="distance",
            show_default=True,
            help="distance: grow fragments from the middle of cells; affinity: join each voxel "
            "with the neighbour to which its affinity is highest.",
        ),
        click.option(
            "--aff-threshold-low",
            type=FRACTION,
            help="With --fragments distance: lowest affinity at which two voxels inside a cell can "
            "be joined. With --fragments affinity: a voxel whose highest affinity is below this "
            "value is background.  [default: 0.4 for distance, 0.001 for affinity]",
        ),
        click.option(
            "--aff-threshold-high",
            type=FRACTION,
            help="With --fragments distance: a voxel whose mean affinity is at least this value is "
            "inside a cell. With --fragments affinity: neighbours whose affinity is at least this "
            "value are joined.  [default: 0.4 for distance, 0.9999 for affinity]",
        ),
    )


def fragments_from(options: dict[str, Any]) -> FragmentOptions:
    """Remove the values of `fragment_options` from *options*; return them as `FragmentOptions`."""
    from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions

    method = options.pop("fragments")
    given = [options.pop(f"aff_threshold_{name}") for name in ("low", "high")]
    usual = _THRESHOLDS[method]
    low, high = (b if a is None else a for a, b in zip(given, usual, strict=True))
    return FragmentOptions(method, low, high)


def layout_options() -> Decorator:
    """Declare ``--affinity-order`` and ``--affinity-at``, which describe stored affinities."""
    return together(
        click.option(
            "--affinity-order",
            type=click.Choice(["xyz", "zyx"]),
            default="xyz",
            show_default=True,
            help="Order of the channels of the affinities.",
        ),
        affinity_at_option(),
    )


def affinity_at_option() -> Decorator:
    """Declare ``--affinity-at``."""
    return click.option(
        "--affinity-at",
        type=click.Choice(["target", "source"]),
        default="target",
        show_default=True,
        help="The value at a voxel is the affinity to its neighbour with the lower coordinate "
        "(target) or with the higher coordinate (source).",
    )


def layout_from(options: dict[str, Any]) -> AffinityLayout:
    """Remove the values of `layout_options` from *options*; return them as `AffinityLayout`."""
    from chunkflow_py.core.affinity_layout import AffinityLayout

    return AffinityLayout(options.pop("affinity_order"), options.pop("affinity_at"))


def graph_option() -> Decorator:
    """Declare ``--graph-path``."""
    return click.option(
        "--graph-path", "-g", required=True, metavar="URL", help="Folder or prefix of the graph."
    )


def task_size_option() -> Decorator:
    """Declare ``--task-size``, the size that tasks had when measure-contacts ran (voxels, zyx)."""
    return zyx_option(
        "--task-size",
        required=True,
        minimum=1,
        help="Size of the tasks of measure-contacts, voxels, zyx.",
    )


def max_threshold_option() -> Decorator:
    """Declare ``--max-threshold``."""
    return click.option(
        "--max-threshold",
        type=FRACTION,
        default=0.95,
        show_default=True,
        help="Highest threshold at which the segmentation can be read from the hierarchy.",
    )
