"""Options of operators for synapses, and for peaks of probability maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.pipeline.params import Decorator


def synapses_option() -> Decorator:
    """Declare ``--synapses-name/-s``, the name of the synapses that the operator reads."""
    return input_option("--synapses-name", "-s", default="syns", help="Name of the synapses.")


def peak_options(peaks: str, min_distance: float) -> Decorator:
    """Declare ``--min-distance`` and ``--threshold-rel`` of peak detection.

    Args:
        peaks: word for the peaks in the help, such as ``T-bars``.
        min_distance: default of ``--min-distance``, voxels.
    """
    return together(
        click.option(
            "--min-distance",
            type=click.FloatRange(min=1),
            default=min_distance,
            show_default=True,
            help=f"Distance from {peaks} along each axis within which no voxel of the map is "
            "higher, voxels.",
        ),
        click.option(
            "--threshold-rel",
            type=click.FloatRange(0, 1),
            default=0.3,
            show_default=True,
            help=f"Smallest value of the map at {peaks}, as a fraction of the largest possible "
            "value (255 for uint8, 1 for floats).",
        ),
    )
