"""How every contestant writes and reads a volume; needs NumPy and the standard library only.

```
write   new folder -> create, open | write | sync of the system, remove       the clock runs
read    open                       | read  | let go of the array              between the bars
```

The first time warms the process up (threads, libraries, page cache) and is told apart.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from measure import memory_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

REPEATS = 3


class Contestant(Protocol):
    """A library, and how its users call it.

    Arrays are (z, y, x); jobs have ``format`` (``zarr``, ``sharded``, ``raw``, ``gzip``),
    ``size``, ``block`` and ``shard`` (zyx, voxels), ``level`` of the codec, ``threads`` and
    ``sync`` (wait until the disk has every object).
    """

    def create(self, folder: Path, job: dict[str, Any]) -> Any:
        """Make a new volume and return what `write` takes."""

    def open(self, folder: Path, job: dict[str, Any]) -> Any:
        """Return what `read` takes."""

    def write(self, volume: Any, image: NDArray[np.uint8]) -> None:
        """Write all voxels."""

    def read(self, volume: Any) -> NDArray[np.uint8]:
        """Return all voxels."""


def measure(contestant: Contestant, job: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of each repeat of ``operation``, of the first call, and what there is then.

    Job: besides those of `Contestant`, ``operation`` (``write``, ``read``), ``folder`` and
    ``image`` (a .npy file of the voxels).
    """
    image = np.load(job["image"])
    folder = Path(job["folder"])
    seconds = (_writes if job["operation"] == "write" else _reads)(contestant, folder, image, job)
    return {
        "first_s": seconds[0],
        "seconds": seconds[1:],
        "wall_s": float(np.median(seconds[1:])),
        "peak_bytes": memory_bytes("VmHWM"),
        "stored_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }


def _writes(
    contestant: Contestant, folder: Path, image: NDArray[np.uint8], job: dict[str, Any]
) -> list[float]:
    seconds = []
    for _ in range(REPEATS + 1):
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()  # what others have left to write is not written on our time
        volume = contestant.create(folder, job)
        start = perf_counter()
        contestant.write(volume, image)
        seconds.append(perf_counter() - start)
        del volume
    return seconds


def _reads(
    contestant: Contestant, folder: Path, image: NDArray[np.uint8], job: dict[str, Any]
) -> list[float]:
    volume = contestant.open(folder, job)
    seconds = []
    for number in range(REPEATS + 1):
        start = perf_counter()
        found = contestant.read(volume)
        seconds.append(perf_counter() - start)
        if number == 0 and not np.array_equal(found, image):
            msg = f"what was read from {folder} is not what was written"
            raise RuntimeError(msg)
        del found
    return seconds
