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

from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.components import connected_components, renumber

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


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

    def as_dict(self) -> dict[str, float | int]:
        """Return the scores by name, ready for JSON."""
        return asdict(self)


def evaluate(
    segmentation: NDArray[Any], groundtruth: NDArray[Any], *, ignore_zero: bool = True
) -> SegmentationScore:
    """Return the scores of *segmentation* against *groundtruth*.

    0 in the segmentation is a label like any other: background that should not be there counts as
    one large segment. See `relabel` for the other way.

    Args:
        segmentation: integer or boolean labels, any shape.
        groundtruth: the same shape.
        ignore_zero: leave voxels out where the truth is 0, because nobody has labelled them.

    Raises:
        ChunkError: the shapes differ, the voxels are no labels, or none is left to compare.
    """
    if segmentation.shape != groundtruth.shape:
        msg = (
            f"segmentation has shape {segmentation.shape}, ground truth {groundtruth.shape} "
            "(voxels); cut both to the same box"
        )
        raise ChunkError(msg)
    for name, array in (("segmentation", segmentation), ("ground truth", groundtruth)):
        if array.dtype.kind not in "biu":
            msg = f"{name} has voxels of type {array.dtype}, which are no labels; use integers"
            raise ChunkError(msg)
    ours, truth = segmentation.ravel(), groundtruth.ravel()
    if ignore_zero:
        labelled = truth != 0
        ours, truth = ours[labelled], truth[labelled]
    if not truth.size:
        msg = (
            "no voxel is left to compare: the ground truth is 0 everywhere in the region; "
            "choose another region or --count-zero"
        )
        raise ChunkError(msg)
    pairs, of_ours, of_truth = _contingency(ours, truth)
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
        voxels=int(truth.size),
        segments=len(of_ours),
        bodies=len(of_truth),
    )


def table(scores: dict[str, Any], title: str) -> str:
    """Return *scores* as lines for people to read, with *title* above."""
    rows = [
        ("variation of information", "voi_split", "voi_merge", "voi", "bits, 0 is perfect"),
        ("Rand", "rand_split", "rand_merge", None, "share of pairs, 1 is perfect"),
        ("adapted Rand error", None, None, "adapted_rand_error", "0 is perfect"),
    ]
    lines = [title, f"{'':<25}{'split':>9}{'merge':>9}{'both':>9}"]
    for name, *keys, unit in rows:
        cells = "".join(f"{scores[key]:9.4f}" if key else " " * 9 for key in keys)
        lines.append(f"{name:<25}{cells}  {unit}")
    counts = f"{scores['segments']} segments, {scores['bodies']} bodies, {scores['voxels']} voxels"
    return "\n".join([*lines, counts])


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


def _contingency(
    ours: NDArray[Any], truth: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the sizes of the overlaps, of our segments and of the true bodies; none is 0."""
    first, of_ours = _dense(ours)
    second, of_truth = _dense(truth)
    codes = first * np.int64(len(of_truth)) + second
    _, pairs = np.unique(codes, return_counts=True)
    return pairs, of_ours, of_truth


def _dense(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    _, dense, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return dense, counts


def _entropy(counts: NDArray[np.int64]) -> float:
    share = counts / counts.sum()
    return float(-np.sum(share * np.log2(share)))


def _pair_count(counts: NDArray[np.int64]) -> float:
    # In floating point: the square of a large body may not fit in 64 bits.
    sizes = counts.astype(float)
    return float(np.sum(sizes * (sizes - 1)))
