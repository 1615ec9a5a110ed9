r"""Segment affinities: watershed, then merging.

Example: chunkflow load-h5 --file-name affinity.h5 agglomerate --threshold 0.7 \
  save-h5 --file-name seg.h5

Two segments are merged while 1 minus the mean affinity of their shared face is below --threshold. A
threshold of 0.7 merges segments with a mean affinity above 0.3; a higher threshold merges more. The
affinities are (3, z, y, x) in [0, 1], with channels x, y, z. Each value is the affinity between a
voxel and the voxel before it along the axis of the channel. Integers are divided by the maximum of
their type.

--method mutex selects the mutex watershed: affinities above 1 - threshold attract, and affinities
below 1 - threshold repel. Affinities far from 1 - threshold are processed first. The mutex
watershed can also use affinities to voxels that are not direct neighbours. In this case, give the
offset of each channel with --affinity-offsets.

If tasks divide a volume, no two tasks use the same label. With --chunk-ids, the labels of each
chunk are numbered from 1 instead, so two tasks can use the same label. To give one label to a
segment that crosses task boundaries, let each task load a margin and run agglomerate and
save-overlap; then run link-labels, solve-labels and relabel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.ops.options.agglomeration_options import affinity_at_option
from chunkflow_py.ops.options.label_options import numbering_from, numbering_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import Decorator, ItemName, input_option, output_option
from chunkflow_py.segmentation import MEAN_AFFINITY, score_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.affinity_layout import Offset
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
        ChunkError: the chunk does not contain affinities, or the fragments have another box than
            the chunk.
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


def mutex_segments(chunk: Chunk, offsets: Sequence[Offset], threshold: float = 0.5) -> Chunk:
    """Segment affinities with the mutex watershed.

    Args:
        chunk: (c, z, y, x) affinities in [0, 1].
        offsets: an offset (z, y, x) in voxels for each channel. The value of the channel at voxel v
            is the affinity between v and v + offset.
        threshold: affinities above 1 - *threshold* attract; affinities below 1 - *threshold* repel.

    Returns:
        A chunk (z, y, x) of kind segmentation: labels 1 to N; 0 for voxels without an attractive
        affinity; uint32 or uint64.

    Raises:
        ChunkError: the chunk does not contain one affinity for each offset, or an offset is longer
            than the chunk.
    """
    from chunkflow_py.segmentation.labels.components import renumber
    from chunkflow_py.segmentation.labels.mutex_watershed import mutex_watershed

    labels = mutex_watershed(chunk.array, offsets, threshold)
    return chunk.with_array(renumber(labels), kind="segmentation")


@dataclass
class Agglomerator(OperatorBase):
    """Segments the affinities of every task.

    Attributes:
        input_name, output_name: names of the affinities and of the segments.
        fragments_name: name of a chunk of labels to merge, or ``None``.
        settings: keyword arguments of `agglomerate`.
        numbering: rule that makes ids unique in the volume. With ``None``, ids are unique only in
            the chunk.
        offsets: offset of each channel, for the mutex watershed. With ``None``, waterz makes the
            segments.
    """

    input_name: str
    output_name: str
    fragments_name: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    numbering: Numbering | None = None
    offsets: tuple[Offset, ...] | None = None
    cut_remedy: ClassVar[str] = hook_value(
        "load a margin (--expand-margin-size), store the overlaps of tasks with save-overlap, and "
        "join the segments with stitch-labels"
    )
    margin_helps: ClassVar[bool] = hook_value(True)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the task grid allows unique labels, if labels must be unique in the volume.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.
        """
        if self.numbering:
            self.numbering.prepare(outline)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype, channels and kind of the labels; *read* describes the input."""
        numbering = self.numbering
        dtype = numbering.dtype if numbering and numbering.makes_global else "uint32"
        return type(read)(dtype, 1, "segmentation")

    @property
    @hook
    def labelling(self) -> Labelling | None:
        """How labels become unique in the volume; ``None`` if they are unique only in a chunk."""
        from chunkflow_py.volume.labelling import Labelling

        is_global = self.numbering is not None and self.numbering.makes_global
        return Labelling("agglomerate") if is_global else None

    @property
    @hook
    def code(self) -> tuple[str, ...]:
        """Description of the C++ code that must be compiled, or an empty tuple."""
        return score_code(self.settings) if self.offsets is None else ()

    def __call__(self, task: Task) -> Task:
        """Add the segmentation to the task."""
        settings, affinity = dict(self.settings), task.chunk(self.input_name)
        if self.fragments_name is not None:
            settings["fragments"] = task.chunk(self.fragments_name)
        if self.offsets is None:
            segments = agglomerate(affinity, **settings)
        else:
            segments = mutex_segments(affinity, self.offsets, settings["threshold"])
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
@click.option("--method", type=click.Choice(["waterz", "mutex"]), default="waterz",
              show_default=True,
              help="Merge fragments by their score (waterz), or use the mutex watershed "
                   "(mutex).")  # fmt: skip
@click.option("--affinity-offsets", metavar="OFFSETS", default=None,
              help="For --method mutex: for each channel, the offset z,y,x from a voxel to its "
                   "partner, such as '-1,0,0 0,-1,0 0,0,-1 -3,0,0'.  [default: three channels, see "
                   "--affinity-order and --affinity-at]")  # fmt: skip
@click.option("--flip-channel/--no-flip-channel", default=True, show_default=True,
              help="Order of the affinity channels: x, y, z (--flip-channel) or z, y, x "
                   "(--no-flip-channel).")  # fmt: skip
@click.option("--affinity-order", type=click.Choice(["xyz", "zyx"]), default=None,
              help="Order of the affinity channels: xyz (same as --flip-channel) or zyx (same "
                   "as --no-flip-channel).")  # fmt: skip
@affinity_at_option()
@click.option(
    "--scoring-function",
    default=MEAN_AFFINITY,
    show_default=True,
    help="C++ type of the score that waterz computes.",
)
@click.option("--fragments", type=click.Choice(["waterz", "seeded"]), default="waterz",
              show_default=True,
              help="Watershed on all affinities (waterz), or from seeds inside the cells "
                   "(seeded).")  # fmt: skip
@click.option("--fragments-name", type=ItemName("in"),
              help="Name of a chunk of labels to merge, instead of --fragments.")  # fmt: skip
@numbering_options()
@input_option()
@output_option()
def command(
    input_name: str, output_name: str, fragments: str, fragments_name: str | None, method: str,
    affinity_offsets: str | None, affinity_order: str | None, **settings: Any,
) -> Agglomerator:  # fmt: skip
    """Check the thresholds, and return the operator."""
    from chunkflow_py.segmentation.labels.agglomerate import (
        check_affinity_thresholds,
        check_threshold,
    )

    if affinity_order is not None:
        _check_order(affinity_order, flips=settings["flip_channel"])
        settings["flip_channel"] = affinity_order == "xyz"
    if method == "mutex":
        check_extra("mutex", "agglomerate --method mutex", "mwatershed")
        check_threshold(settings["threshold"], MEAN_AFFINITY)
        offsets = _offsets(affinity_offsets, settings)
        return Agglomerator(
            input_name, output_name, None, settings, numbering_from(settings), offsets
        )
    if affinity_offsets is not None:
        msg = (
            "--affinity-offsets is for the mutex watershed; add --method mutex, or leave "
            "--affinity-offsets out"
        )
        raise OptionError(msg)
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


def _check_order(order: str, *, flips: bool) -> None:
    """Check that --affinity-order agrees with --flip-channel, if the user gave both options.

    Raises:
        OptionError: the two options name different orders of the channels.
    """
    context = click.get_current_context(silent=True)
    given = context.get_parameter_source("flip_channel") if context else None
    if given == click.core.ParameterSource.COMMANDLINE and flips != (order == "xyz"):
        name = "--flip-channel" if flips else "--no-flip-channel"
        msg = f"--affinity-order {order} contradicts {name}; leave one of them out"
        raise OptionError(msg)


def _offsets(text: str | None, settings: dict[str, Any]) -> tuple[Offset, ...]:
    """Return the offset of each channel for the mutex watershed.

    Raises:
        OptionError: *text* is not a list of offsets, or is given together with --affinity-at.
    """
    from chunkflow_py.core.affinity_layout import AffinityLayout, parse_offsets

    if text is not None:
        if settings["affinity_at"] != "target":
            msg = (
                "--affinity-offsets already says where each affinity is stored; leave "
                "--affinity-at out"
            )
            raise OptionError(msg)
        return parse_offsets(text)
    at = settings["affinity_at"]
    return AffinityLayout("xyz" if settings["flip_channel"] else "zyx", at).offsets
