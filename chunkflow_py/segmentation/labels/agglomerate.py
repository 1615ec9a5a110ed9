"""Agglomeration: make fragments from affinities by a watershed, and merge them into segments.

```
affinity ── watershed ──> fragments ── merge while score < threshold ──> segments
                                       score = 1 - mean affinity of the shared face
```

The library waterz does the watershed and the merges (Funke et al. 2019,
doi:10.1109/TPAMI.2018.2835450). waterz runs in a separate process. In the worker process, waterz
would stop all other threads; see `waterz_process`.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.affinity_layout import AffinityLayout
from chunkflow_py.core.geometry import equal_boxes_remedy
from chunkflow_py.core.map_scale import full_scale
from chunkflow_py.errors import ChunkError, ChunkflowError, OptionError, needs_extra
from chunkflow_py.segmentation import MEAN_AFFINITY
from chunkflow_py.segmentation.labels import waterz_process
from chunkflow_py.segmentation.labels.components import renumber
from chunkflow_py.segmentation.labels.fragments import seeded_fragments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.affinity_layout import AffinityAt
    from chunkflow_py.core.chunk import Chunk

logger = logging.getLogger(__name__)

FragmentMethod = Literal["waterz", "seeded"]

_SLACK = 1e-3  # tolerance around [0, 1], for rounding errors of blending
_BYTES_A_VOXEL = 64  # rough measurement: affinities, labels and state of the watershed


def agglomerate(
    affinity: NDArray[Any],
    thresholds: Sequence[float],
    fragments: NDArray[Any] | FragmentMethod = "waterz",
    *,
    aff_threshold_low: float = 0.001,
    aff_threshold_high: float = 0.9999,
    interior_threshold: float = 0.7,
    scoring_function: str = MEAN_AFFINITY,
    flip_channel: bool = True,
    affinity_at: AffinityAt = "target",
    voxel_size_nm: Iterable[float] = (1.0, 1.0, 1.0),
) -> Iterator[NDArray[Any]]:
    """Yield one segmentation for each of the *thresholds*, which must be ascending.

    Equal arguments give equal segmentations. In the first plane along an axis, the values of the
    channel for this axis are not used, because these values belong to pairs with a voxel outside
    the array.

    Args:
        affinity: (3, z, y, x), floating point in [0, 1], or integers. Integers are divided by the
            maximum of their type, such as 255 for uint8. The value of a channel at a voxel is the
            affinity between this voxel and one of its neighbours along the axis of the channel; see
            *flip_channel* and *affinity_at*.
        thresholds: two segments are merged if their score is below the threshold. The score is 1
            minus the mean affinity of the voxel pairs on their shared face. For example, a
            threshold of 0.7 merges segments with a mean affinity above 0.3. A higher threshold
            merges more.
        fragments: labels (z, y, x) to merge, or the name of the method that makes these labels.
            ``waterz`` is a watershed on the affinities. ``seeded`` is described at
            `fragments.seeded_fragments`. Label 0 is background and stays 0.
        aff_threshold_low: a voxel is background if all its affinities are at or below this value.
            With ``seeded``, a voxel is background if the mean of its affinities is at or below this
            value.
        aff_threshold_high: two voxels belong to the same fragment if they are connected by an
            affinity at or above this value (``waterz`` only).
        interior_threshold: a voxel may be a seed if the mean of its six affinities is above this
            value (``seeded`` only).
        scoring_function: C++ type of the score; see the documentation of waterz. waterz contains
            the compiled code for the mean affinity and some quantiles; other scores need a C++
            compiler and the boost headers.
        flip_channel: true if the channels are x, y, z; false if they are z, y, x.
        affinity_at: ``target`` if the value at a voxel is the affinity to the neighbour with the
            smaller coordinate, ``source`` if it is the affinity to the neighbour with the greater
            coordinate.
        voxel_size_nm: voxel size, zyx, in nm (``seeded`` only).

    Yields:
        (z, y, x) labels 1 to N without gaps, 0 for background; uint32, or uint64 if N exceeds the
        range of uint32.

    Raises:
        ChunkError: the array does not have the shape or the values of affinities, or the fragments
            have a different extent.
        OptionError: the thresholds are not ascending, or *aff_threshold_low* is not below
            *aff_threshold_high*.
        MissingExtraError: waterz is not installed.
        ChunkflowError: waterz failed; the message gives the reason.
    """
    is_ascending = all(a < b for a, b in pairwise(thresholds))
    if not is_ascending or not thresholds:
        msg = (
            f"agglomerate needs one or more ascending thresholds, got {list(thresholds)}; sort them"
        )
        raise OptionError(msg)
    check_affinity_thresholds(aff_threshold_low, aff_threshold_high)
    layout = AffinityLayout("xyz" if flip_channel else "zyx", affinity_at)
    by_axis = _by_axis(affinity, layout)
    if isinstance(fragments, str):
        labels = (
            seeded_fragments(by_axis, interior_threshold, aff_threshold_low, voxel_size_nm)
            if fragments == "seeded"
            else None
        )
    elif fragments.shape != by_axis.shape[1:]:
        msg = (
            f"fragments have extent {tuple(fragments.shape)}, but the affinities have extent "
            f"{by_axis.shape[1:]} (zyx, voxels); cut both to the same box"
        )
        raise ChunkError(msg)
    else:
        # waterz keeps a table as long as the highest label, which may be a global id.
        labels = renumber(fragments).astype(np.uint64)
    settings = {
        "aff_threshold_low": aff_threshold_low,
        "aff_threshold_high": aff_threshold_high,
        "scoring_function": scoring_function,
    }
    for result in _run_waterz(by_axis, thresholds, labels, settings):
        yield renumber(result)


def check_affinity_thresholds(low: float, high: float) -> None:
    """Check that the low affinity threshold is below the high one.

    Raises:
        OptionError: *low* is equal to *high* or above it.
    """
    if not low < high:
        msg = (
            f"--aff-threshold-low {low} must be below --aff-threshold-high {high} (affinities); "
            "the usual pair is 0.001 and 0.9999"
        )
        raise OptionError(msg)


def check_threshold(threshold: float, scoring_function: str) -> None:
    """Check that the threshold for merging segments is in the range of the score.

    Raises:
        OptionError: the score is 1 - mean affinity, but the threshold is not in [0, 1].
    """
    if scoring_function == MEAN_AFFINITY and not 0 <= threshold <= 1:
        msg = (
            f"--threshold {threshold} is compared with 1 - mean affinity, which is in [0, 1]; "
            f"the nearest value that works is {min(max(threshold, 0.0), 1.0):g}"
        )
        raise OptionError(msg)


def check_same_box(fragments: Chunk, affinity: Chunk) -> None:
    """Check that fragments and affinities have the same box.

    Raises:
        ChunkError: the boxes differ.
    """
    if fragments.bbox != affinity.bbox:
        msg = (
            f"the fragments cover {fragments.bbox}, but the affinities cover {affinity.bbox}; "
            f"{equal_boxes_remedy(fragments.bbox, affinity.bbox)}"
        )
        raise ChunkError(msg)


def _by_axis(affinity: NDArray[Any], layout: AffinityLayout) -> NDArray[np.float32]:
    """Return affinities as float32 in [0, 1], with channel k along axis k; a view if possible."""
    if affinity.ndim != 4 or affinity.shape[0] != 3:
        msg = (
            f"agglomeration needs affinities of shape (3, z, y, x), got {tuple(affinity.shape)}; "
            "name the chunk of affinities with --input-name, or select channels with --channels"
        )
        raise ChunkError(msg)
    if 0 in affinity.shape:
        msg = (
            f"affinities of shape {tuple(affinity.shape)} (c, z, y, x) have no voxels; load a "
            "larger box"
        )
        raise ChunkError(msg)
    ordered = layout.arranged(affinity)
    if affinity.dtype.kind in "iu":
        return ordered.astype(np.float32) / np.float32(full_scale(affinity.dtype))
    for axis, channel in enumerate(ordered):
        used = channel[tuple(slice(1, None) if a == axis else slice(None) for a in range(3))]
        if not used.size:
            continue
        low, high = float(used.min()), float(used.max())
        if not (low >= -_SLACK and high <= 1 + _SLACK):
            msg = (
                f"affinities must be in [0, 1], but those along {'zyx'[axis]} range from {low:g} "
                f"to {high:g}; rescale the affinities first (logits of a network need a sigmoid)"
            )
            raise ChunkError(msg)
    return ordered.astype(np.float32, copy=False)


def _run_waterz(
    affinity: NDArray[np.float32],
    thresholds: Sequence[float],
    fragments: NDArray[np.uint64] | None,
    settings: dict[str, Any],
) -> Iterator[NDArray[np.uint64]]:
    with needs_extra("segmentation", "agglomerate"):
        import waterz  # noqa: F401  (a missing waterz is reported here, not by the process)
    shape = affinity.shape[1:]
    request = {
        "shape": shape,
        "thresholds": [float(t) for t in thresholds],
        "has_fragments": fragments is not None,
        "settings": settings,
    }
    with tempfile.TemporaryFile() as log:
        # -P: no module beside the script may hide one of the standard library.
        program = [sys.executable, "-P", str(Path(waterz_process.__file__))]
        with subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process:
            source, sink = process.stdout, process.stdin
            if source is None or sink is None:  # never with PIPE; for the type checker
                return
            try:
                _send(sink, request, affinity, fragments)
                for _ in thresholds:
                    yield waterz_process.read_array(source, shape, "uint64")
            except (EOFError, BrokenPipeError) as error:
                raise ChunkflowError(_failure_message(process.wait(), log, affinity)) from error
            finally:
                process.kill()  # a no-op once it has ended
        for line in _lines(log):
            logger.debug("waterz: %s", line)


def _send(
    sink: IO[bytes],
    request: dict[str, Any],
    affinity: NDArray[np.float32],
    fragments: NDArray[np.uint64] | None,
) -> None:
    sink.write(json.dumps(request).encode() + b"\n")
    # Channel by channel: a flipped array is contiguous in each, so nothing is copied.
    for array in affinity if fragments is None else (*affinity, fragments):
        sink.write(memoryview(np.ascontiguousarray(array).data).cast("B"))
    sink.close()


def _lines(log: IO[bytes]) -> list[str]:
    log.seek(0)
    return [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]


def _failure_message(code: int, log: IO[bytes], affinity: NDArray[np.float32]) -> str:
    size = affinity.shape[1:]
    gigabytes = np.prod(size, dtype=float) * _BYTES_A_VOXEL / 1e9
    if code < 0:
        return (
            f"waterz was killed by signal {-code} on a chunk of {size} voxels (zyx), which needs "
            f"about {gigabytes:.1f} GB of memory; use smaller chunks or a larger machine"
        )
    lines = _lines(log)
    reason = lines[-1] if lines else f"exit code {code}"
    return f"waterz failed on {size} voxels (zyx): {reason}"
