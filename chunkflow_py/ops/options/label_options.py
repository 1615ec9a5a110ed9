"""Options that the commands for labels of whole volumes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import BBOX, Decorator

if TYPE_CHECKING:
    from chunkflow_py.segmentation.labels.numbering import Numbering

CONNECTIVITY = click.Choice(["6", "18", "26"])


def numbering_options() -> Decorator:
    """Declare ``--global-ids`` and ``--domain``; `numbering_from` reads them."""
    return together(
        click.option(
            "--global-ids/--chunk-ids",
            default=None,
            help="Number pieces by their first voxel in the volume (uint64), so that no two tasks "
            "use one id; or from 1 in each chunk.  [default: global if tasks divide a volume]",
        ),
        click.option(
            "--domain",
            type=BBOX,
            help="Box of the volume, for --global-ids.  [default: that of the volume that is read]",
        ),
    )


def numbering_from(options: dict[str, Any]) -> Numbering:
    """Take what `numbering_options` declare out of *options*."""
    from chunkflow_py.segmentation.labels.numbering import Numbering

    return Numbering(options.pop("global_ids"), options.pop("domain"))


def connectivity_option() -> Decorator:
    """Declare ``--connectivity/-c``."""
    return click.option(
        "--connectivity",
        "-c",
        type=CONNECTIVITY,
        default="6",
        show_default=True,
        help="Neighbours share a face (6), also an edge (18), also a corner (26).",
    )


def overlap_options() -> Decorator:
    """Declare when overlapping segments of two tasks are one."""
    return together(
        click.option(
            "--minimum-overlap",
            type=click.FloatRange(0, 1),
            default=0.5,
            show_default=True,
            help="Of two segments, the fraction that must be common to both, in the mean of the "
            "two, of what each has where the tasks overlap.",
        ),
        click.option(
            "--minimum-overlap-voxels",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Voxels that two segments must have in common.",
        ),
    )


def place_of(url: str) -> str:
    """Return the address of a folder or prefix of objects, the same from wherever it is used."""
    from chunkflow_py.volume.location import Location

    return Location.parse(url).store_url
