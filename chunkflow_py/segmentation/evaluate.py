"""Compare a segmentation with the truth: variation of information and Rand, split and merge.

p_ij is the share of voxels that carry label i in the segmentation and j in the truth, s_i and t_j
are its sums over j and over i; H is the entropy in bits; a pair is two different voxels.

| score              | formula                                             | perfect |
|--------------------|-----------------------------------------------------|---------|
| voi_split          | H(segmentation given truth) = H(p) - H(t)           | 0       |
| voi_merge          | H(truth given segmentation) = H(p) - H(s)           | 0       |
| voi                | their sum                                           | 0       |
| rand_split         | pairs together in both / pairs together in truth    | 1       |
| rand_merge         | pairs together in both / pairs together in seg.     | 1       |
| adapted_rand_error | 1 - the harmonic mean of the two                    | 0       |

Sources: Meilă 2007, doi:10.1016/j.jmva.2006.11.013, and Arganda-Carreras et al. 2015,
doi:10.3389/fnana.2015.00142.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.segmentation.evaluate_objects import (
    ClassScore,
    InstanceScore,
    class_scores,
    instance_score,
)
from chunkflow_py.segmentation.labels.components import connected_components, renumber
from chunkflow_py.segmentation.labels.contingency import Contingency, contingency

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox


@dataclass(frozen=True)
class SegmentationScore:
    """How far a segmentation is from the truth; see the formulas of this module.

    Attributes:
        voi_split: bits that cutting true bodies costs.
        voi_merge: bits that joining true bodies costs.
        voi: their sum.
        rand_split: share of the truth's pairs that are kept together, in [0, 1].
        rand_merge: share of the segmentation's pairs that belong together, in [0, 1].
        adapted_rand_error: 1 - their harmonic mean, in [0, 1].
        voxels: number of voxels that were compared.
        segments: number of labels of the segmentation among them (0 counts as one).
        bodies: number of labels of the truth among them.
        instances: how many objects were found; ``None`` if nobody asked.
        classes: Dice and IoU by label, where labels are classes; ``None`` if they are not.
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
        """Return the scores by name, ready for JSON."""
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
        groundtruth: the same shape.
        ignore_zero: see `score`, as the others.
        ignore_segments: labels.
        ignore_bodies: labels.
        iou_threshold: of instances.
        per_class: labels are classes.

    Raises:
        ChunkError: the shapes differ, the voxels are no labels, or none is left to compare.
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
    """Return the scores of a table of overlaps.

    0 in the segmentation is a label like any other for Rand and variation of information:
    background that should not be there counts as one large segment. See `relabel` for the other
    way. For instances, 0 is background in both.

    Args:
        table: of a part or of a whole volume.
        ignore_zero: for Rand and variation of information, leave voxels out where the truth is 0,
            because nobody has labelled them.
        ignore_segments: labels of the segmentation whose voxels are left out of everything.
        ignore_bodies: labels of the truth whose voxels are left out of everything.
        iou_threshold: from which IoU on a segment is a body that was found, in (0, 1].
        per_class: labels are classes: tell Dice and IoU of each.

    Raises:
        ChunkError: no voxel is left to compare.
    """
    table = table.without(ignore_segments, ignore_bodies)
    known = table.without(bodies=[0]) if ignore_zero else table
    if not len(known):
        msg = (
            "no voxel is left to compare: the ground truth is 0 everywhere in the region, or a "
            "label that is ignored; choose another region or --count-zero"
        )
        raise ChunkError(msg)
    pairs, of_ours, of_truth = (
        known.voxels,
        _sizes(known.segments, known),
        _sizes(known.bodies, known),
    )
    joint, split_off, merged = _pair_count(pairs), _pair_count(of_truth), _pair_count(of_ours)
    # Where no two voxels belong together, nothing can have been split (or merged).
    recall = joint / split_off if split_off else 1.0
    precision = joint / merged if merged else 1.0
    both = split_off + merged
    joint_bits = _entropy(pairs)
    # Differences of equal entropies may come out a rounding error below 0.
    split = max(0.0, joint_bits - _entropy(of_truth))
    merge = max(0.0, joint_bits - _entropy(of_ours))
    return SegmentationScore(
        voi_split=split,
        voi_merge=merge,
        voi=split + merge,
        rand_split=recall,
        rand_merge=precision,
        adapted_rand_error=1 - 2 * joint / both if both else 0.0,
        voxels=int(pairs.sum()),
        segments=len(of_ours),
        bodies=len(of_truth),
        instances=instance_score(table, iou_threshold),
        classes=class_scores(table) if per_class else None,
    )


def common_region(
    segmentation: Chunk, groundtruth: Chunk, bbox: BoundingBox | None = None
) -> BoundingBox:
    """Return where both chunks lie, inside of *bbox*.

    Raises:
        GeometryError: nowhere.
    """
    region = segmentation.bbox.intersection(groundtruth.bbox)
    where = f"segmentation {segmentation.bbox} and ground truth {groundtruth.bbox}"
    if region.is_empty:
        msg = f"{where} have no voxel in common; check their voxel offsets"
        raise GeometryError(msg)
    if bbox is not None:
        if bbox.intersection(region).is_empty:
            msg = f"--bbox {bbox} has no voxel in common with {where}; the part in both is {region}"
            raise GeometryError(msg)
        region = bbox.intersection(region)
    return region


def relabel(
    segmentation: NDArray[Any],
    groundtruth: NDArray[Any],
    voxel_size_nm: Iterable[float] = (1.0, 1.0, 1.0),
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both volumes as one sees them inside of a region cut from a larger volume.

    Two branches of one neuron that do not meet inside of the region are two objects there, and
    no method can know better: both volumes are labelled anew by 26-connected components. Then
    every voxel that the segmentation left 0 takes the label of the nearest segment, so that
    methods that leave out membranes compare with methods that do not.

    Args:
        segmentation: (z, y, x) labels.
        groundtruth: (z, y, x) labels of the same shape; 0 stays 0.
        voxel_size_nm: nanometres, zyx; decides what is nearest.

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
    """Return the voxels of each label in a column of *table*."""
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
