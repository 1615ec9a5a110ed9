"""Scores of the segmentations that a hierarchy contains, against ground truth.

The fragments are compared with the ground truth only once, which gives a contingency table. For
each threshold, the fragments in the rows of this table are replaced by segments, and equal rows are
added up. No voxels are read for this.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from chunkflow_py.errors import needs_extra
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean
from chunkflow_py.segmentation.agglomeration.hierarchy import Segments, cut
from chunkflow_py.segmentation.evaluate import score
from chunkflow_py.segmentation.labels.contingency import contingency, joined
from chunkflow_py.segmentation.labels.label_table import relabelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.segmentation.agglomeration.region_merging import Merges
    from chunkflow_py.segmentation.evaluate import SegmentationScore
    from chunkflow_py.segmentation.labels.contingency import Contingency
    from chunkflow_py.segmentation.labels.label_table import LabelTable
    from chunkflow_py.volume.protocol import Volume

_BAR = 30  # characters of the longest bar
# Formats of figures, and metadata to leave out, so that equal scores give equal bytes.
FIGURES: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def fragment_table(
    fragments: Volume, names: LabelTable, truth: Volume, boxes: Iterable[BoundingBox]
) -> Contingency:
    """Return the contingency table of fragments and ground truth.

    Args:
        fragments: volume of fragments that fragment-affinity has made.
        names: table that solve-labels has written. It maps the ids in *fragments*, which differ
            between tasks, to one id for each fragment.
        truth: labels of the ground truth.
        boxes: boxes to compare; they must not overlap.
    """
    return joined(
        contingency(relabelled(fragments.read(box).array, names), truth.read(box).array)
        for box in boxes
    )


def scores_at(
    table: Contingency, merges: Merges, thresholds: Sequence[float], dtype: str
) -> Iterator[tuple[float, SegmentationScore]]:
    """Yield each threshold, with the scores of the segmentation at this threshold.

    Args:
        table: contingency table of the fragments and the ground truth.
        merges: merges of the hierarchy, at least all those up to the highest of *thresholds*.
        thresholds: thresholds in [0, 1]; at each of them, regions are merged while 1 - mean
            affinity is at most the threshold.
        dtype: type of the affinities as integers.
    """
    for threshold in thresholds:
        segments = Segments(cut(merges, least_mean(threshold, dtype)))
        yield threshold, score(table.renamed(segments(table.segments)))


def drawn(scores: Sequence[tuple[float, SegmentationScore]]) -> list[str]:
    """Return the lines of a text table of scores.

    Each threshold has one line. A bar shows the variation of information (VOI) at this threshold,
    and the word "best" marks the lowest VOI.
    """
    worst = max((each.voi for _, each in scores), default=0.0) or 1.0
    best = min((each.voi for _, each in scores), default=0.0)
    lines = [f"{'threshold':>9}  {'VOI split':>9}  {'merge':>6}  {'sum':>6}  {'Rand error':>10}"]
    for threshold, each in scores:
        bar = "#" * max(1, round(_BAR * each.voi / worst))
        mark = " best" if each.voi == best else ""
        lines.append(
            f"{threshold:>9g}  {each.voi_split:>9.3f}  {each.voi_merge:>6.3f}  {each.voi:>6.3f}  "
            f"{each.adapted_rand_error:>10.3f}  {bar}{mark}"
        )
    return lines


def figure_of(scores: Sequence[tuple[float, SegmentationScore]], kind: str) -> bytes:
    """Return a figure of the scores against the threshold; the lowest VOI is marked.

    Args:
        scores: pairs of a threshold and the scores at this threshold, thresholds ascending.
        kind: format of the figure, one of `FIGURES`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs_extra("view", "evaluate-hierarchy --figure"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    thresholds = [threshold for threshold, _ in scores]
    best, at_best = min(scores, key=lambda each: each[1].voi)
    figure = Figure(figsize=(7, 6), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for name, label in (("voi_split", "split"), ("voi_merge", "merge"), ("voi", "sum")):
        values = [getattr(each, name) for _, each in scores]
        upper.plot(thresholds, values, marker="o", markersize=3, label=label)
    errors = [each.adapted_rand_error for _, each in scores]
    lower.plot(thresholds, errors, marker="o", markersize=3, color="tab:red")
    for axes in (upper, lower):
        axes.axvline(best, color="tab:gray", linestyle="--", zorder=0)
        axes.set_ylim(bottom=0)
    upper.plot([], [], color="tab:gray", linestyle="--", label="best threshold")
    upper.set_title(f"best threshold: {best:g} (VOI sum {at_best.voi:.3f} bits)")
    upper.set_ylabel("variation of information (bits)")
    upper.legend()
    lower.set_ylabel("adapted Rand error (0 to 1)")
    lower.set_xlabel("threshold (1 - mean affinity)")
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "chunkflow"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=FIGURES[kind])
    return buffer.getvalue()
