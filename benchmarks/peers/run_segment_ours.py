"""Segment affinities with the command segment-affinity.

Keys of the job: ``source``, ``threshold``, ``task`` (zyx, voxels), ``processes`` (each has one
processor), ``folder`` for the results. ``wall_s`` is that of the whole command, with reading,
storing and the start of its processes; ``peak_bytes`` is the greatest sum of the memory of its
processes (pages that several share are counted once); ``operators_s`` is what the operators took;
``levels`` says how many contacts reached and left the boxes of each level.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil
from measure import job, report, use_processors

_INTERVAL_S = 0.2


class Memory(threading.Thread):
    """Follows the memory of a process and of its descendants."""

    def __init__(self, pid: int) -> None:
        """Follow process *pid* until `stop` is called."""
        super().__init__(daemon=True)
        self.root, self.peak, self.is_running = psutil.Process(pid), 0, True

    def run(self) -> None:
        """Note the greatest sum."""
        while self.is_running:
            total = 0
            try:
                for process in (self.root, *self.root.children(recursive=True)):
                    total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                pass
            self.peak = max(self.peak, total)
            sleep(_INTERVAL_S)

    def stop(self) -> int:
        """Return the peak, bytes."""
        self.is_running = False
        self.join()
        return self.peak


def levels(folder: str) -> list[dict[str, Any]]:
    """Return for each level: boxes, and for the fullest box contacts, merges and bytes."""
    from chunkflow_py.segmentation.agglomeration.graph_store import GraphStore
    from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_settings
    from chunkflow_py.segmentation.agglomeration.region_merging import combined
    from chunkflow_py.store import open_store

    settings = read_settings(open_store(f"{folder}/hierarchy"))
    graphs = GraphStore(open_store(f"{folder}/graph"), settings)
    result = []
    for level in range(settings.last_level + 1):
        found = []
        for box in settings.grid(level):
            left = graphs.read_graph(box, level)
            if level:
                children = settings.children(box, level)
                parts = {child: graphs.read_graph(child, level - 1) for child in children}
                arriving = len(combined(parts, box).inside)
            else:
                arriving = len(graphs.read_contacts(box)[0])
            merges = len(graphs.read_merges(box, level))
            path = Path(folder, "graph", f"level-{level}", f"{box}.npz")
            found.append((arriving, merges, len(left.inside), path.stat().st_size))
        names = ("contacts", "merges", "left", "bytes")
        fullest = dict(zip(names, max(found), strict=True))
        result.append({"boxes": len(found), **fullest})
    return result


def digest(folder: Path) -> str:
    """Return the SHA-256 of names and contents of all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def seconds_of_steps(log: str) -> dict[str, float]:
    """Return the seconds of each operator, as the command has summed them over its tasks."""
    found: dict[str, float] = {}
    for line in log.splitlines():
        words = line.split()
        if len(words) == 3 and words[2].endswith("%"):
            name = words[0].partition("#")[0]
            found[name] = found.get(name, 0) + float(words[1])
    return found


def main() -> None:
    """Measure one run."""
    asked = job()
    use_processors(asked["processes"])
    output = Path(asked["folder"], "segments.zarr")
    work = Path(f"{output}.segment")
    for old in (output, work):
        shutil.rmtree(old, ignore_errors=True)
    size = [*map(str, asked["task"])]
    command = [
        sys.executable, "-m", "chunkflow_py", "segment-affinity", asked["source"],
        f"zarr://{output}", "--task-size", *size, "--block-size", *size, "--threshold",
        str(asked["threshold"]), "--processes", str(asked["processes"]),
    ]  # fmt: skip
    start = perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        memory = Memory(process.pid)
        memory.start()
        log, _ = process.communicate()
        wall, peak = perf_counter() - start, memory.stop()
    if process.returncode:
        raise SystemExit(log[-300:])
    found = {"wall_s": wall, "peak_bytes": peak, "operators_s": seconds_of_steps(log)}
    found |= {"digest": digest(output), "levels": levels(str(work))}
    for old in (output, work):
        shutil.rmtree(old)
    report(found)


if __name__ == "__main__":
    main()
