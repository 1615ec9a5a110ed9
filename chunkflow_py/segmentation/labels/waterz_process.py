"""Program that runs waterz in a separate process.

waterz does not release the interpreter lock (GIL) while it works. In a worker process, this would
stop the threads that read chunks, write chunks, and renew leases. waterz also prints to
standard output, which is reserved for results.

The program reads from standard input:

1. one line of JSON with the keys shape, thresholds, has_fragments and settings,
2. the affinities, (3, z, y, x), float32,
3. if has_fragments is true, the fragments (supervoxels), (z, y, x), uint64.

The program writes the labels for each threshold to standard output, one uint64 array after the
other.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_array(stream: IO[bytes], shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return an array of *shape* and *dtype* read from the next bytes of *stream*.

    Raises:
        EOFError: the stream ends before the array is complete.
    """
    array = np.empty(shape, dtype)
    view = memoryview(array.data).cast("B")
    while view:
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            msg = f"the stream ended {len(view)} bytes before the array {shape} was complete"
            raise EOFError(msg)
        view = view[count:]
    return array


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Read one request from *source*, run waterz, and write the labels to *sink*."""
    import waterz

    request = json.loads(source.readline())
    shape = tuple(request["shape"])
    affinity = read_array(source, (3, *shape), "float32")
    fragments = read_array(source, shape, "uint64") if request["has_fragments"] else None
    for labels in waterz.agglomerate(
        affinity, request["thresholds"], fragments=fragments, **request["settings"]
    ):
        sink.write(memoryview(np.ascontiguousarray(labels).data).cast("B"))
        sink.flush()


if __name__ == "__main__":
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # redirects what the library prints to stderr
    with results:
        serve(sys.stdin.buffer, results)
