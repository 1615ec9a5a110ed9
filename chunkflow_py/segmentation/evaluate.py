"""Compare a segmentation with the ground truth: VOI, Rand, instances and classes.

A "segment" is a label of the segmentation, and a "body" is a label of the ground truth. p_ij is the
share of voxels that have label i in the segmentation and label j in the ground truth. s_i is the
sum of p_ij over all j, and t_j is the sum of p_ij over all i. H is the entropy in bits. A pair
consists of two different voxels. A pair is *together* in the segmentation, or in the truth, if both
voxels have the same label in that volume. In the formulas of iou and dice, a segment has s voxels,
a body has t voxels, and n voxels belong to both.

| score              | formula                                             | perfect |
|--------------------|-----------------------------------------------------|---------|
| voi_split          | H(segmentation given truth) = H(p) - H(t)           | 0       |
| voi_merge          | H(truth given segmentation) = H(p) - H(s)           | 0       |
| voi                | voi_split + voi_merge                               | 0       |
| rand_split         | pairs together in both / pairs together in truth    | 1       |
| rand_merge         | pairs together in both / pairs together in seg.     | 1       |
| adapted_rand_error | 1 - harmonic mean of rand_split and rand_merge      | 0       |
| iou                | n / (s + t - n)                                     | 1       |
| dice               | 2 n / (s + t)                                       | 1       |
| precision          | matched segments / segments                         | 1       |
| recall             | matched bodies / bodies                             | 1       |
| f1                 | 2 · matched / (segments + bodies)                   | 1       |

A segment matches a body if their IoU is at least the threshold. No segment and no body is matched
more than once.

Sources: Meilă 2007, doi:10.1016/j.jmva.2006.11.013; Arganda-Carreras et al. 2015,
doi:10.3389/fnana.2015.00142; Caicedo et al. 2019, doi:10.1038/s41592-019-0612-7.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkError, GeometryError, OptionError, needs_extra
from chunkflow_py.segmentation.labels.components import (
    connected_components,
    renumber,
    single_channel,
)
from chunkflow_py.segmentation.labels.contingency import KIND, Contingency, contingency, put_table
from chunkflow_py.store.local_files import write_whole
from chunkflow_py.store.task_counts import CountStore, check_tasks, counted_region

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task


logger = logging.getLogger(__name__)


class InstanceScore(TypedDict):
    """Precision, recall and F1 of objects; see the formulas of this module."""

    iou_threshold: float
    precision: float
    recall: float
    f1: float
    found: int
    segments: int
    bodies: int


class ClassScore(TypedDict):
    """Dice and IoU of one class; see the formulas of this module."""

    dice: float
    iou: float
    segmentation_voxels: int
    groundtruth_voxels: int


@dataclass(frozen=True)
class SegmentationScore:
    """Scores of a segmentation against the ground truth; see the formulas of this module.

    Attributes:
        voi_split: variation of information caused by splitting bodies, in bits.
        voi_merge: variation of information caused by merging bodies, in bits.
        voi: voi_split + voi_merge, in bits.
        rand_split: of all pairs of voxels in one body, the share that lies in one segment.
        rand_merge: of all pairs of voxels in one segment, the share that lies in one body.
        adapted_rand_error: 1 - the harmonic mean of rand_split and rand_merge, in [0, 1].
        voxels: number of compared voxels.
        segments: number of labels of the segmentation in the compared voxels, 0 included.
        bodies: number of labels of the ground truth in the compared voxels.
        instances: precision, recall and F1 of objects; ``None`` if not computed.
        classes: Dice and IoU of each class, by label; ``None`` if labels are not classes.
    """

    voi_split: float
    voi_merge: float
    voi: float
    rand_split: float
    rand_merge: float
    adapted_rand_error: float
    voxels: int
    segments: int
    bodies: int
    instances: InstanceScore | None = None
    classes: dict[str, ClassScore] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the scores by name, as a dictionary that can be written as JSON."""
        return asdict(self)


def evaluate(
    segmentation: NDArray[Any],
    groundtruth: NDArray[Any],
    *,
    ignore_zero: bool = True,
    ignore_segments: Collection[int] = (),
    ignore_bodies: Collection[int] = (),
    iou_threshold: float = 0.5,
    per_class: bool = False,
) -> SegmentationScore:
    """Return the scores of *segmentation* against *groundtruth*; see `score`.

    Args:
        segmentation: integer or boolean labels, any shape.
        groundtruth: labels of the same shape.
        ignore_zero: ignore unlabelled voxels, whose ground truth is 0, in the scores of Rand and
            variation of information.
        ignore_segments: labels of the segmentation to ignore.
        ignore_bodies: labels of the ground truth to ignore.
        iou_threshold: smallest IoU of a segment with the body that it matches, in (0, 1].
        per_class: whether labels are classes, such as 1 for all mitochondria; if so, the result
            contains Dice and IoU of each class.

    Raises:
        ChunkError: the shapes differ, the voxels are not labels, or all voxels are ignored.
        OptionError: the threshold is not in (0, 1].
    """
    return score(
        contingency(segmentation, groundtruth),
        ignore_zero=ignore_zero,
        ignore_segments=ignore_segments,
        ignore_bodies=ignore_bodies,
        iou_threshold=iou_threshold,
        per_class=per_class,
    )


def score(
    table: Contingency,
    *,
    ignore_zero: bool = True,
    ignore_segments: Collection[int] = (),
    ignore_bodies: Collection[int] = (),
    iou_threshold: float = 0.5,
    per_class: bool = False,
) -> SegmentationScore:
    """Return the scores of a contingency table.

    In the scores of Rand and variation of information, label 0 of the segmentation is an ordinary
    label: the whole background counts as one large segment. To avoid this, call `relabel` first. In
    the scores of objects, 0 is background in both volumes.

    Args:
        table: contingency table of a volume or of a part of it.
        ignore_zero: ignore unlabelled voxels, whose ground truth is 0, in the scores of Rand and
            variation of information.
        ignore_segments: labels of the segmentation whose voxels are ignored in all scores.
        ignore_bodies: labels of the ground truth whose voxels are ignored in all scores.
        iou_threshold: smallest IoU of a segment with the body that it matches, in (0, 1].
        per_class: whether labels are classes, such as 1 for all mitochondria; if so, the result
            contains Dice and IoU of each class.

    Raises:
        ChunkError: all voxels are ignored.
        OptionError: the threshold is not in (0, 1].
    """
    table = table.without(ignore_segments, ignore_bodies)
    known = table.without(bodies=[0]) if ignore_zero else table
    if not len(known):
        msg = (
            "no voxels to compare: each voxel of the region has ground truth 0 or an ignored "
            "label; choose another region, ignore fewer labels, or give --count-zero"
        )
        raise ChunkError(msg)
    segment_sizes = _sizes(known.segments, known)
    body_sizes = _sizes(known.bodies, known)
    pairs_in_both = _pair_count(known.voxels)
    pairs_in_bodies = _pair_count(body_sizes)
    pairs_in_segments = _pair_count(segment_sizes)
    # Without pairs of voxels in bodies (or segments), nothing can be split (or merged).
    recall = pairs_in_both / pairs_in_bodies if pairs_in_bodies else 1.0
    precision = pairs_in_both / pairs_in_segments if pairs_in_segments else 1.0
    pairs = pairs_in_bodies + pairs_in_segments
    joint_entropy = _entropy(known.voxels)
    # Rounding may make the difference of equal entropies slightly negative.
    split = max(0.0, joint_entropy - _entropy(body_sizes))
    merge = max(0.0, joint_entropy - _entropy(segment_sizes))
    return SegmentationScore(
        voi_split=split,
        voi_merge=merge,
        voi=split + merge,
        rand_split=recall,
        rand_merge=precision,
        adapted_rand_error=1 - 2 * pairs_in_both / pairs if pairs else 0.0,
        voxels=int(known.voxels.sum()),
        segments=len(segment_sizes),
        bodies=len(body_sizes),
        instances=instance_score(table, iou_threshold),
        classes=class_scores(table) if per_class else None,
    )


def common_region(
    segmentation: Chunk, groundtruth: Chunk, bbox: BoundingBox | None = None
) -> BoundingBox:
    """Return the box of the voxels that both chunks have in common, within *bbox* if it is given.

    Raises:
        GeometryError: the chunks have no voxel in common with each other or with *bbox*.
    """
    region = segmentation.bbox.intersection(groundtruth.bbox)
    where = f"the segmentation {segmentation.bbox} and the ground truth {groundtruth.bbox}"
    if region.is_empty:
        msg = f"{where} have no voxel in common; check their voxel offsets"
        raise GeometryError(msg)
    if bbox is not None:
        if bbox.intersection(region).is_empty:
            msg = (
                f"--bbox {bbox} has no voxel in common with the box {region}, in which {where} "
                f"overlap; give a --bbox that overlaps {region}"
            )
            raise GeometryError(msg)
        region = bbox.intersection(region)
    return region


def relabel(
    segmentation: NDArray[Any],
    groundtruth: NDArray[Any],
    voxel_size_nm: Iterable[float] = (1.0, 1.0, 1.0),
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Relabel segmentation and ground truth of a region, so that the scores are fair.

    In both arrays, each 26-connected component of a label gets a label of its own. The reason is
    that two branches of one neuron may be connected only outside of the region, so no method can
    know that the branches belong together. Then each unlabelled voxel (0) of the segmentation gets
    the label of the nearest segment. This makes methods that leave membranes unlabelled comparable
    with methods that label membranes.

    Args:
        segmentation: (z, y, x) labels.
        groundtruth: (z, y, x) labels of the same shape; 0 stays 0.
        voxel_size_nm: voxel size, zyx, in nm, for distances to the nearest segment.

    Returns:
        The new segmentation and the new ground truth.
    """
    from scipy.ndimage import distance_transform_edt

    ours = connected_components(_as_labels(segmentation), connectivity=26)
    truth = connected_components(_as_labels(groundtruth), connectivity=26)
    empty = ours == 0
    if empty.any() and not empty.all():
        nearest = distance_transform_edt(
            empty, sampling=tuple(voxel_size_nm), return_distances=False, return_indices=True
        )
        ours = ours[tuple(nearest)]
    return ours, truth


def _as_labels(array: NDArray[Any]) -> NDArray[Any]:
    # Signed labels may be negative; only equality matters to components.
    return array if array.dtype.kind in "bu" or not array.size else renumber(_unsigned(array))


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "i" else array


def _sizes(labels: NDArray[np.uint64], table: Contingency) -> NDArray[np.int64]:
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes: NDArray[np.int64] = np.add.reduceat(table.voxels[order], starts)
    return sizes


def _entropy(counts: NDArray[np.int64]) -> float:
    share = counts / counts.sum()
    return float(-np.sum(share * np.log2(share)))


def _pair_count(counts: NDArray[np.int64]) -> float:
    # In floating point: the square of a large body may not fit in 64 bits.
    sizes = counts.astype(float)
    return float(np.sum(sizes * (sizes - 1)))


def instance_score(table: Contingency, iou_threshold: float = 0.5) -> InstanceScore:
    """Return precision, recall and F1 of objects, with the numbers of matches and objects.

    Label 0 is background in both volumes and not an object. Voxels of a segment that are background
    in the ground truth still count as voxels of the segment. Precision is 1 if there are no
    segments, recall is 1 if there are no bodies, and F1 is 1 if there are neither.

    Args:
        table: contingency table of the two volumes.
        iou_threshold: smallest IoU of a segment with the body that it matches, in (0, 1].

    Raises:
        OptionError: the threshold is not in (0, 1].
        MissingExtraError: a segment or body has several possible matches, and SciPy is not
            installed.
    """
    if not 0 < iou_threshold <= 1:
        msg = f"--iou-threshold {iou_threshold:g} must be above 0 and at most 1"
        raise OptionError(msg)
    segments, first, segment_sizes = _of_label(table.segments, table.voxels)
    bodies, second, body_sizes = _of_label(table.bodies, table.voxels)
    iou = table.voxels / (segment_sizes[first] + body_sizes[second] - table.voxels)
    match = (iou >= iou_threshold) & (table.segments != 0) & (table.bodies != 0)
    matched = _match_count(first[match], second[match])
    ours, truth = int(np.count_nonzero(segments)), int(np.count_nonzero(bodies))
    return {
        "iou_threshold": iou_threshold,
        "precision": matched / ours if ours else 1.0,
        "recall": matched / truth if truth else 1.0,
        "f1": 2 * matched / (ours + truth) if ours + truth else 1.0,
        "found": matched,
        "segments": ours,
        "bodies": truth,
    }


def _match_count(first: NDArray[Any], second: NDArray[Any]) -> int:
    if len(np.unique(first)) == len(first) and len(np.unique(second)) == len(second):
        return len(first)
    with needs_extra("segmentation", "an --iou-threshold of at most 0.5"):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_bipartite_matching
    graph = coo_array((np.ones(len(first), bool), (first, second))).tocsr()
    return int(np.count_nonzero(maximum_bipartite_matching(graph) >= 0))


def class_scores(table: Contingency) -> dict[str, ClassScore]:
    """Return Dice and IoU of each label that one or both volumes contain, including label 0."""
    segments, _, segment_sizes = _of_label(table.segments, table.voxels)
    bodies, _, body_sizes = _of_label(table.bodies, table.voxels)
    same = table.where(table.segments == table.bodies)
    ours, truth, both = (
        dict(zip(labels.tolist(), sizes.tolist(), strict=True))
        for labels, sizes in (
            (segments, segment_sizes),
            (bodies, body_sizes),
            (same.bodies, same.voxels),
        )
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
    values, index = np.unique(labels, return_inverse=True)
    sizes = np.zeros(len(values), np.int64)
    np.add.at(sizes, index, voxels)
    return values, index, sizes


def score_table(scores: dict[str, Any], title: str) -> str:
    """Return scores as a text table.

    Args:
        scores: fields of `SegmentationScore` by name.
        title: first line of the table.
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
    if instances := scores["instances"]:
        lines.append(f"{'':<25}{'precision':>9}{'recall':>9}{'F1':>9}")
        cells = "".join(f"{instances[key]:9.4f}" for key in ("precision", "recall", "f1"))
        name = f"objects at IoU {instances['iou_threshold']:g}"
        matched = (
            f"{instances['found']} of {instances['bodies']} bodies matched, "
            f"{instances['segments']} segments"
        )
        lines.append(f"{name:<25}{cells}  {matched}")
    if classes := scores["classes"]:
        lines.append(f"{'class':<25}{'Dice':>9}{'IoU':>9}")
        mean = {k: sum(c[k] for c in classes.values()) / len(classes) for k in ("dice", "iou")}
        for label, each in [*classes.items(), ("mean", mean)]:
            lines.append(f"{label:<25}{each['dice']:9.4f}{each['iou']:9.4f}")
    counts = f"{scores['segments']} segments, {scores['bodies']} bodies, {scores['voxels']} voxels"
    return "\n".join([*lines, counts])


@dataclass
class Evaluator(OperatorBase):
    """Operator that scores the segmentation of each task against the ground truth.

    The scores are printed and added to the task. With `table_path`, no scores are printed. Instead,
    the contingency table of each task is stored, and `sum-scores` computes the scores of the volume
    from these tables.

    Attributes:
        segmentation_name: name of the chunk to score.
        groundtruth_name: name of the chunk with the ground truth.
        output: name under which the scores are added to the task.
        evaluate: function that takes the segmentation, the ground truth and `options`, and returns
            the scores by name.
        options: keyword arguments of `evaluate`.
        print: function that prints the table of scores of each task.
        json: path of a JSON file for the scores. A path that does not end in .json is a prefix: one
            file is written for each task, and the paths of these files begin with the prefix.
        table_path: address of a folder for the contingency table of each task. If an address is
            given, the scores of tasks are not printed.
    """

    segmentation_name: str
    groundtruth_name: str
    output: str
    evaluate: Callable[..., dict[str, Any]]
    options: dict[str, Any]
    print: Callable[[str], None]
    json: str | None = None
    table_path: str | None = None

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """Address of the contingency tables, if they are stored."""
        return (self._store.place,) if self.table_path else ()

    @property
    def _store(self) -> CountStore:
        return CountStore(self.table_path or "", KIND)

    @hook
    def prepare(self, outline: Any) -> None:
        """Refuse to write one JSON file for several tasks, or tables of tasks that overlap."""
        count = outline.task_count
        if self.json and self.json.endswith(".json") and count > 1:
            msg = (
                f"--json {self.json} is one file, but there are {count} tasks; give a prefix "
                f"without .json, such as {self.json.removesuffix('.json')}_, for one file per task"
            )
            raise OptionError(msg)
        if self.table_path:
            check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Score the segmentation, add the scores to the task, and print them or store a table."""
        ours, truth = task.chunk(self.segmentation_name), task.chunk(self.groundtruth_name)
        if self.table_path:
            scores = self._stored(task)
        else:
            scores = self.evaluate(ours, truth, **self.options)
            title = f"{self.segmentation_name} against {self.groundtruth_name}"
            self.print(score_table(scores, f"{title} in {scores['bbox']}"))
        task[self.output] = scores
        if self.json and scores is not None:
            whole = self.json.endswith(".json")
            path = self.json if whole else f"{self.json}{task.region or scores['bbox']}.json"
            write_whole(path, (json.dumps(scores, indent=2) + "\n").encode())
        return task

    def _stored(self, task: Task) -> dict[str, Any] | None:
        """Store the contingency table of a task, and return the scores of the task.

        The result is ``None`` if all voxels are ignored.
        """
        ours, truth = task.chunk(self.segmentation_name), task.chunk(self.groundtruth_name)
        region = counted_region(task, ours, truth)
        arrays = (single_channel(chunk.cut(region.bbox).array) for chunk in (ours, truth))
        table = contingency(*arrays)
        task.written.append(put_table(self._store, region, table, ours.domain))
        logger.info("stored the contingency table of %s with %d rows", region, len(table))
        skip = {"bbox", "relabel"}
        options = {key: value for key, value in self.options.items() if key not in skip}
        ignored = {*options["ignore_bodies"], *([0] if options["ignore_zero"] else [])}
        if not len(table.without(options["ignore_segments"], ignored)):
            return None
        return {"bbox": str(region.bbox), **score(table, **options).as_dict()}
