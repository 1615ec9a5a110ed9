r"""Segment affinities: watershed, then merging.

Example: chunkflow load-h5 --file-name affinity.h5 agglomerate --threshold 0.7 \
  save-h5 --file-name seg.h5

Two segments are merged while 1 minus the mean affinity of their shared face is below --threshold.
A threshold of 0.7 merges segments with a mean affinity above 0.3; a higher threshold merges more.
The affinities are (3, z, y, x) in [0, 1], with channels x, y, z. Each value is the affinity of a
voxel to its lower neighbour along the axis of the channel. Integers are divided by the maximum of
their type.

If tasks divide a volume, labels are unique in the volume (--global-ids). Otherwise, they are unique
only in their chunk. To give one label to a segment that crosses task boundaries, let each task load
a margin and run agglomerate and save-overlap; then run link-labels, solve-labels and relabel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.ops.options.label_options import numbering_from, numbering_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import Decorator, ItemName, input_option, output_option
from chunkflow_py.segmentation import MEAN_AFFINITY, score_code

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.labels.numbering import Numbering
    from chunkflow_py.volume.labelling import Labelling

SECTION = "segment"


def agglomerate(
    chunk: Chunk, fragments: Any = "waterz", threshold: float = 0.7, **settings: Any
) -> Chunk:
    """Return the segments of an affinity map.

    Args:
        chunk: (3, z, y, x) affinities in [0, 1]; see `segmentation.labels.agglomerate.agglomerate`.
        fragments: a chunk or array (z, y, x) of labels to merge, or the method that makes these
            labels: ``waterz`` or ``seeded`` (``None`` selects ``waterz``).
        threshold: two segments are merged while 1 minus their mean affinity is below this value.
        settings: further keyword arguments of `segmentation.labels.agglomerate.agglomerate`.

    Returns:
        A chunk (z, y, x) of kind segmentation: labels 1 to N, 0 for background; uint32 or uint64.

    Raises:
        ChunkError: the chunk does not hold affinities, or the box of the fragments differs.
    """
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.segmentation.labels import agglomerate as engine

    if isinstance(fragments, Chunk):
        engine.check_same_box(fragments, chunk)
        fragments = fragments.array
    result = engine.agglomerate(
        chunk.array,
        [threshold],
        "waterz" if fragments is None else fragments,
        voxel_size_nm=chunk.voxel_size_nm,
        **settings,
    )
    return chunk.with_array(next(result), kind="segmentation")


@dataclass
class Agglomerator(OperatorBase):
    """Segments the affinities of every task."""

    input_name: str
    output_name: str
    fragments_name: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    numbering: Numbering | None = None
    cut_remedy: ClassVar[str] = hook_value(
        "load a margin (--expand-margin-size), store the overlaps of tasks with save-overlap, and "
        "join the segments with stitch-labels"
    )
    margin_helps: ClassVar[bool] = hook_value(True)

    @hook
    def prepare(self, outline: Any) -> None:
        """If ids must be unique in the volume, check that the tasks of *outline* allow such ids."""
        if self.numbering:
            self.numbering.prepare(outline)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return dtype, number of channels and kind of the resulting labels."""
        numbering = self.numbering
        dtype = numbering.dtype if numbering and numbering.makes_global else "uint32"
        return type(read)(dtype, 1, "segmentation")

    @property
    @hook
    def labelling(self) -> Labelling | None:
        """Record of how segments are labelled, or ``None`` if ids are unique only in a chunk."""
        from chunkflow_py.volume.labelling import Labelling

        is_global = self.numbering is not None and self.numbering.makes_global
        return Labelling("agglomerate") if is_global else None

    @property
    @hook
    def code(self) -> tuple[str, ...]:
        """Descriptions of code from outside this package that the operator runs."""
        return score_code(self.settings)

    def __call__(self, task: Task) -> Task:
        """Add the segmentation to the task."""
        settings = dict(self.settings)
        if self.fragments_name is not None:
            settings["fragments"] = task.chunk(self.fragments_name)
        segments = agglomerate(task.chunk(self.input_name), **settings)
        if self.numbering:
            segments = segments.with_array(self.numbering(segments.array, segments, task.bbox))
        task[self.output_name] = segments
        return task


def _number(name: str, default: float, text: str) -> Decorator:
    return click.option(name, type=float, default=default, show_default=True, help=text)


@operator("compute")
@_number("--threshold", 0.7, "Merge segments while 1 - mean affinity is below this value.")
@_number("--aff-threshold-low", 0.001, "A voxel with no affinity above this value is background.")
@_number("--aff-threshold-high", 0.9999, "Neighbours with at least this affinity share a fragment.")
@_number("--interior-threshold", 0.7, "Seeds have a mean affinity above this (--fragments seeded).")
@click.option("--flip-channel/--no-flip-channel", default=True, show_default=True,
              help="Order of the channels: x, y, z (--flip-channel) or z, y, x.")  # fmt: skip
@click.option(
    "--scoring-function",
    default=MEAN_AFFINITY,
    show_default=True,
    help="C++ type of the score that waterz computes.",
)
@click.option("--fragments", type=click.Choice(["waterz", "seeded"]), default="waterz",
              show_default=True,
              help="Watershed on all affinities, or from seeds inside the cells.")  # fmt: skip
@click.option("--fragments-name", type=ItemName("in"),
              help="Name of a chunk of labels to merge, instead of --fragments.")  # fmt: skip
@numbering_options()
@input_option()
@output_option()
def command(
    input_name: str, output_name: str, fragments: str, fragments_name: str | None, **settings: Any
) -> Agglomerator:
    """Check the thresholds, and return the operator."""
    from chunkflow_py.segmentation.labels.agglomerate import (
        check_affinity_thresholds,
        check_threshold,
    )

    seeds = ("cc3d", "scipy", "skimage") if fragments == "seeded" else ()
    check_extra("segmentation", "agglomerate", "waterz", *seeds)
    check_affinity_thresholds(settings["aff_threshold_low"], settings["aff_threshold_high"])
    check_threshold(settings["threshold"], settings["scoring_function"])
    if fragments_name and fragments == "seeded":
        msg = (
            f"--fragments-name {fragments_name} and --fragments seeded both give fragments; leave "
            "one of them out"
        )
        raise OptionError(msg)
    settings["fragments"] = fragments
    return Agglomerator(input_name, output_name, fragments_name, settings, numbering_from(settings))
