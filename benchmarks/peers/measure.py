"""What every contestant measures in the same way: needs NumPy and the standard library only."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def job() -> dict[str, Any]:
    """Return what is to be measured: the JSON of the first argument.

    Keys: ``size``, ``patch``, ``overlap`` (zyx, voxels), ``channels`` of the output, ``model``:
    ``identity`` or the name of a network file of this folder.
    """
    result: dict[str, Any] = json.loads(sys.argv[1])
    return result


def use_processors(number: int) -> None:
    """Let this process and its children run on a number of processors only."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])


def network_file(model: str) -> str:
    """Return the path of the network file called *model*."""
    return str(Path(__file__).with_name(f"{model}.py"))


def random_image(size: list[int]) -> NDArray[np.uint8]:
    """Return an image without empty patches, the same one for every contestant."""
    return np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)


def memory_bytes(field: str) -> int:
    """Return *field* of this process: ``VmHWM``, the peak of its resident memory, or ``VmRSS``.

    Not ``getrusage``: its peak is inherited from the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    msg = f"/proc/self/status has no {field}; these benchmarks run on Linux"
    raise RuntimeError(msg)


def timed(call: Callable[[], NDArray[Any]]) -> tuple[NDArray[Any], dict[str, Any]]:
    """Call *call* and return its output with seconds, memory and mean.

    Returns:
        The output, and ``wall_s``; ``before_bytes`` (resident before the call), ``peak_bytes``
        (peak since the process began), ``output_bytes``; ``mean`` of the output.
    """
    before = memory_bytes("VmRSS")
    start = perf_counter()
    output = call()
    wall = perf_counter() - start
    peak = memory_bytes("VmHWM")
    # By sections: an average of all at once would need a copy, and float32 sums lose digits.
    means = [section.mean(dtype=np.float64) for channel in output for section in channel]
    return output, {
        "wall_s": wall,
        "before_bytes": before,
        "peak_bytes": peak,
        "output_bytes": output.nbytes,
        "mean": float(np.mean(means)),
    }


def report(result: dict[str, Any]) -> None:
    """Print *result* as the last line of the output, which is what is read."""
    print("\n" + json.dumps(result), flush=True)
