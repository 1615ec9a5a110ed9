"""Time and memory of merging many annotations: `python benchmarks/annotations.py [COUNT]`.

Tasks have stored points with a confidence and a segment, 10,000 each. The merge runs in a process
of its own; its processor time, elapsed time, peak memory and output are printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from chunkflow_py.core.annotations import Annotations, Property, Relation
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.store import open_store
from chunkflow_py.volume.precomputed.annotation_parts import AnnotationPart, part_key

PER_TASK, EDGE = 10_000, 1024  # points, voxels
SEGMENTS = 1_000_000
MERGE = """
import sys
from chunkflow_py.ops.merge_annotations import merge_annotations
written = merge_annotations(*sys.argv[1:])
print(len(written), sum(stored.size for stored in written))
"""


def store_parts(folder: str, count: int) -> None:
    """Store the annotations of tasks that fill a cube."""
    parts, tasks = open_store(folder), -(-count // PER_TASK)
    edge = round(tasks ** (1 / 3) + 0.5)
    bounds = BoundingBox.from_size((0, 0, 0), Zyx(EDGE, EDGE, EDGE) * edge)
    for task in range(tasks):
        rng = np.random.default_rng(task)
        cell = np.array([task // edge**2, task // edge % edge, task % edge]) * EDGE
        places = rng.integers(0, EDGE, (PER_TASK, 1, 3)) + cell + 0.5
        annotations = Annotations(
            "point",
            places,
            (8, 8, 8),
            properties=(Property("confidence", "float32", rng.random(PER_TASK)),),
            relations=(Relation.to_one("segment", rng.integers(1, SEGMENTS, PER_TASK)),),
        )
        box = BoundingBox.from_size(Zyx.of(cell.tolist()), Zyx(EDGE, EDGE, EDGE))
        parts.put(part_key(box), AnnotationPart(annotations, bounds, tasks).encoded())


def main() -> None:
    """Store the annotations, merge them, and print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        store_parts(f"{folder}/parts", count)
        start = time.monotonic()
        merge = [sys.executable, "-c", MERGE, f"{folder}/parts", f"{folder}/all"]
        process = subprocess.Popen(merge, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        objects, size = map(int, process.stdout.read().split())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        print(
            f"{count} annotations: {usage.ru_utime + usage.ru_stime:.0f} s of processor time, "
            f"{time.monotonic() - start:.0f} s elapsed, peak {usage.ru_maxrss / 1024:.0f} MiB, "
            f"{objects} objects of {size / 1e9:.2f} GB"
        )


if __name__ == "__main__":
    main()
