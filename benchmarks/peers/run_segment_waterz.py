"""Segment affinities with waterz: fragments, contacts and merging in one call.

Keys of the job: ``source``, a zarr array (3, z, y, x) uint8; ``threshold``; ``processes``, 1. What
is reported is that of `measure.timed`; reading and the conversion to float32 are not timed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import job, report, timed, use_processors

if TYPE_CHECKING:
    from numpy.typing import NDArray


def affinities(source: str) -> NDArray[np.float32]:
    """Return the affinities as waterz takes them: float32 in [0, 1], channel 0 along z."""
    import zarr

    stored: Any = zarr.open_group(source, mode="r")["0"]
    result = np.empty(stored.shape, np.float32)
    for axis in range(3):
        np.divide(stored[2 - axis], np.float32(255), out=result[axis])
    return result


def main() -> None:
    """Measure one call."""
    import waterz

    asked = job()
    use_processors(asked["processes"])
    affinity = affinities(asked["source"])

    def segmented() -> NDArray[np.uint64]:
        (labels,) = waterz.agglomerate(affinity, [asked["threshold"]])
        found: NDArray[np.uint64] = labels
        return found

    log, out = os.open(os.devnull, os.O_WRONLY), os.dup(1)
    os.dup2(log, 1)  # the C++ code prints its progress
    labels, measured = timed(lambda: segmented()[None])
    os.dup2(out, 1)
    report({**measured, "segments": len(np.unique(labels))})


if __name__ == "__main__":
    main()
