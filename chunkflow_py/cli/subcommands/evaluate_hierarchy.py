"""Score a hierarchy against ground truth.

WORK is the folder of intermediate results of segment-affinity, and TRUTH a volume of labels. WORK
contains fragments (small pieces of objects) and the hierarchy (the merges that join fragments to
segments). The fragments are compared with TRUTH only once, so each further threshold takes almost
no time. For each threshold, the table shows the variation of information in bits (split, merge and
their sum; 0 is perfect) and the adapted Rand error. Small segments are not united, so the options
--min-size and --min-affinity of segment-affinity have no effect on these scores. --figure draws the
scores against the threshold.

Example: chunkflow evaluate-hierarchy segments.zarr.segment truth.zarr --bbox 160-180_0-250_0-250
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import GeometryError, OptionError, check_extra
from chunkflow_py.ops.options.agglomeration_options import FRACTION
from chunkflow_py.pipeline.params import BBOX, is_dry_run
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import BoundingBox

_STEPS = 19  # default thresholds, in equal steps up to that of the hierarchy
# As in hierarchy_scores, which imports too much for parsing a command line.
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


@subcommand
@click.argument("work", metavar="WORK")
@click.argument("truth", metavar="TRUTH")
@click.option("--threshold", "thresholds", type=FRACTION, multiple=True,
              help="Threshold to score; give the option several times.  [default: 19 steps up to "
                   "the --max-threshold of the hierarchy]")  # fmt: skip
@click.option("--bbox", type=BBOX,
              help="Box to compare.  [default: overlap of fragments and TRUTH]")  # fmt: skip
@click.option("--figure", metavar="FILE",
              help="File for a figure of the scores: .png, .svg or .pdf.")  # fmt: skip
@json_option()
def command(
    work: str, truth: str, thresholds: tuple[float, ...], bbox: BoundingBox | None,
    figure: str | None, as_json: bool,
) -> Callable[[], None]:  # fmt: skip
    """Return the function that prints the scores."""
    check_extra("segmentation", "evaluate-hierarchy", "fastremap")
    file = None if figure is None else _checked_figure(figure)
    is_dry = is_dry_run()

    def act() -> None:
        scores = _scores(work, truth, thresholds, bbox)
        if file is not None and not is_dry:
            from chunkflow_py.segmentation.agglomeration.hierarchy_scores import figure_of
            from chunkflow_py.store.local_files import write_whole

            write_whole(file, figure_of(scores, file.suffix.lower()[1:]))
        if as_json:
            echo(json.dumps([{"threshold": at, **each.as_dict()} for at, each in scores]))
            return
        from chunkflow_py.segmentation.agglomeration.hierarchy_scores import drawn

        for line in drawn(scores):
            echo(line)

    return act


def _checked_figure(name: str) -> Path:
    """Return the path of the figure, after checking that the figure can be drawn and written.

    Raises:
        OptionError: the name of the file has no known suffix, its folder does not exist, or the
            name is that of a folder.
        MissingExtraError: matplotlib is not installed.
    """
    file = Path(name).expanduser()
    if file.suffix.lower() not in FIGURE_SUFFIXES:
        msg = (
            f"--figure {name} does not end with .png, .svg or .pdf; "
            f"give --figure {(file if file.name else file / 'scores').with_suffix('.png')}"
        )
        raise OptionError(msg)
    if not file.parent.is_dir():
        msg = (
            f"--figure {name} is in the folder {file.parent}, which does not exist; create the "
            "folder, or give a file in another folder"
        )
        raise OptionError(msg)
    if file.is_dir():
        msg = f"--figure {name} is a folder; give the name of a file in this folder"
        raise OptionError(msg)
    check_extra("view", "evaluate-hierarchy --figure", "matplotlib")
    return file


def _scores(
    work: str, truth: str, thresholds: tuple[float, ...], bbox: BoundingBox | None
) -> list[Any]:
    """Return the scores at each threshold.

    Raises:
        VolumeNotFoundError: WORK is not a folder of segment-affinity, or TRUTH does not exist.
        GeometryError: the fragments and TRUTH have no voxel in common.
        OptionError: a threshold is above the --max-threshold with which the hierarchy was made.
    """
    from chunkflow_py.core.geometry import BoxGrid, Zyx
    from chunkflow_py.segmentation.agglomeration.hierarchy_scores import fragment_table, scores_at
    from chunkflow_py.segmentation.agglomeration.hierarchy_store import (
        read_hierarchy,
        read_settings,
    )
    from chunkflow_py.segmentation.labels.label_table import LabelTable
    from chunkflow_py.store import open_store
    from chunkflow_py.volume import open_volume
    from chunkflow_py.volume.location import Location

    place = Location.parse(work).store_url
    hierarchy = open_store(f"{place}/hierarchy")
    settings = read_settings(hierarchy)
    most = settings.max_threshold
    wanted = sorted(thresholds or (round(most * k / _STEPS, 4) for k in range(1, _STEPS + 1)))
    merges, _ = read_hierarchy(hierarchy, wanted[-1])
    fragments, bodies = open_volume(f"{place}/fragments.zarr"), open_volume(truth)
    region = fragments.bounds.intersection(bodies.bounds)
    both = region if bbox is None else region.intersection(bbox)
    if both.is_empty:
        msg = (
            f"the fragments ({fragments.bounds}) and the ground truth ({bodies.bounds}) have no "
            f"voxel in common{'' if bbox is None else f' inside --bbox {bbox}'} (zyx, voxels); "
            "check the voxel offsets, and --bbox"
        )
        raise GeometryError(msg)
    boxes = BoxGrid.covering(both, settings.size.low(Zyx(*both.size)), respect_stop=True)
    names = LabelTable(open_store(f"{place}/fragment-ids"))
    table = fragment_table(fragments, names, bodies, boxes)
    return list(scores_at(table, merges, wanted, settings.dtype))
