"""Scores of single objects and classes: instances found, Dice, IoU; and all scores as a table.

n is the voxels of the overlap, s those of the segment (or class), t those of the body.

| score     | formula                                                      | perfect |
|-----------|--------------------------------------------------------------|---------|
| iou       | n / (s + t - n)                                              | 1       |
| dice      | 2 n / (s + t)                                                | 1       |
| precision | segments that are a body / segments                          | 1       |
| recall    | bodies that were found / bodies                              | 1       |
| f1        | 2 · found / (segments + bodies)                              | 1       |

A segment is a body if their IoU reaches the threshold; no segment is two bodies, no body two
segments. Source: Caicedo et al. 2019, doi:10.1038/s41592-019-0612-7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from chunkflow_py.errors import OptionError, needs_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.segmentation.labels.contingency import Contingency


class InstanceScore(TypedDict):
    """How many objects were found; see the formulas of this module."""

    iou_threshold: float
    precision: float
    recall: float
    f1: float
    found: int
    segments: int
    bodies: int


class ClassScore(TypedDict):
    """How well one class was found; see the formulas of this module."""

    dice: float
    iou: float
    segmentation_voxels: int
    groundtruth_voxels: int


def instance_score(table: Contingency, iou_threshold: float = 0.5) -> InstanceScore:
    """Return how many bodies were found, and how many segments are one.

    0 is background in both volumes: it is no object, but what a segment covers of it counts.
    Without any object, all that is there was found: the scores are 1.

    Args:
        table: of overlaps.
        iou_threshold: from which IoU on a segment is a body, in (0, 1].

    Raises:
        OptionError: the threshold is not in (0, 1].
        MissingExtraError: a segment could be one of several bodies, and scipy is not installed.
    """
    if not 0 < iou_threshold <= 1:
        msg = f"--iou-threshold {iou_threshold:g} must be above 0 and at most 1"
        raise OptionError(msg)
    segments, first, of_ours = _of_label(table.segments, table.voxels)
    bodies, second, of_truth = _of_label(table.bodies, table.voxels)
    iou = table.voxels / (of_ours[first] + of_truth[second] - table.voxels)
    match = (iou >= iou_threshold) & (table.segments != 0) & (table.bodies != 0)
    found = _pairs(first[match], second[match])
    ours, truth = int(np.count_nonzero(segments)), int(np.count_nonzero(bodies))
    return {
        "iou_threshold": iou_threshold,
        "precision": found / ours if ours else 1.0,
        "recall": found / truth if truth else 1.0,
        "f1": 2 * found / (ours + truth) if ours + truth else 1.0,
        "found": found,
        "segments": ours,
        "bodies": truth,
    }


def _pairs(first: NDArray[Any], second: NDArray[Any]) -> int:
    """Return how many pairs can be made at most, in which no number comes twice."""
    if len(np.unique(first)) == len(first) and len(np.unique(second)) == len(second):
        return len(first)
    with needs_extra("segmentation", "an --iou-threshold of at most 0.5"):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_bipartite_matching
    graph = coo_array((np.ones(len(first), bool), (first, second))).tocsr()
    return int(np.count_nonzero(maximum_bipartite_matching(graph) >= 0))


def class_scores(table: Contingency) -> dict[str, ClassScore]:
    """Return Dice and IoU of each label that either volume has, 0 included, by the label."""
    segments, _, of_ours = _of_label(table.segments, table.voxels)
    bodies, _, of_truth = _of_label(table.bodies, table.voxels)
    same = table.where(table.segments == table.bodies)
    ours, truth, both = (
        dict(zip(labels.tolist(), sizes.tolist(), strict=True))
        for labels, sizes in ((segments, of_ours), (bodies, of_truth), (same.bodies, same.voxels))
    )
    scores: dict[str, ClassScore] = {}
    for label in sorted(ours.keys() | truth.keys()):
        s, t, n = ours.get(label, 0), truth.get(label, 0), both.get(label, 0)
        scores[str(label)] = {
            "dice": 2 * n / (s + t),
            "iou": n / (s + t - n),
            "segmentation_voxels": s,
            "groundtruth_voxels": t,
        }
    return scores


def _of_label(
    labels: NDArray[np.uint64], voxels: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels, which of them each one is, and the voxels of each."""
    values, index = np.unique(labels, return_inverse=True)
    sizes = np.zeros(len(values), np.int64)
    np.add.at(sizes, index, voxels)
    return values, index, sizes


def score_table(scores: dict[str, Any], title: str) -> str:
    """Return scores as lines for people to read, with *title* above.

    Args:
        scores: fields of `chunkflow_py.segmentation.evaluate.SegmentationScore`.
        title: what was compared.
    """
    rows = [
        ("variation of information", "voi_split", "voi_merge", "voi", "bits, 0 is perfect"),
        ("Rand", "rand_split", "rand_merge", None, "share of pairs, 1 is perfect"),
        ("adapted Rand error", None, None, "adapted_rand_error", "0 is perfect"),
    ]
    lines = [title, f"{'':<25}{'split':>9}{'merge':>9}{'both':>9}"]
    for name, *keys, unit in rows:
        cells = "".join(f"{scores[key]:9.4f}" if key else " " * 9 for key in keys)
        lines.append(f"{name:<25}{cells}  {unit}")
    if found := scores["instances"]:
        lines.append(f"{'':<25}{'precision':>9}{'recall':>9}{'F1':>9}")
        cells = "".join(f"{found[key]:9.4f}" for key in ("precision", "recall", "f1"))
        name = f"objects at IoU {found['iou_threshold']:g}"
        told = f"{found['found']} of {found['bodies']} found, by {found['segments']} segments"
        lines.append(f"{name:<25}{cells}  {told}")
    if classes := scores["classes"]:
        lines.append(f"{'class':<25}{'Dice':>9}{'IoU':>9}")
        mean = {k: sum(c[k] for c in classes.values()) / len(classes) for k in ("dice", "iou")}
        for label, each in [*classes.items(), ("mean", mean)]:
            lines.append(f"{label:<25}{each['dice']:9.4f}{each['iou']:9.4f}")
    counts = f"{scores['segments']} segments, {scores['bodies']} bodies, {scores['voxels']} voxels"
    return "\n".join([*lines, counts])
