"""Sharded meshes of the same labels, compared with igneous: seconds, memory, vertices.

    python benchmarks/meshes.py [--rounds 3] [--quick] [--folder benchmarks/.meshes]

Both tools make fragments in tasks of the same size, and then one shard, on one processor. igneous
(GPL) runs in an environment of its own: `make peers`.

Two cases: one task, and eight. zmesh counts open edges across all meshes of a task, so igneous'
meshes of eight tasks keep more than twice as many vertices as ours, and are simplified less; with
one task, which has no open edges, the numbers of vertices are equal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from time import perf_counter, sleep
from typing import Any

from peers.build import build, python_of
from processes import HERE, ROOT, say

TASK = (64, 192, 192)
SIZES = {"one task": (64, 192, 192), "eight tasks": (128, 384, 384)}
SPEED_TARGET, MEMORY_LIMIT = 1.0, 2.0
_INTERVAL_S = 0.02
OURS, PEER = "chunkflow_py", "igneous"


def labels_in(folder: Path, size: tuple[int, ...]) -> None:
    """Write a precomputed volume of bent cells; every seventh is background."""
    import numpy as np
    from cloudvolume import CloudVolume
    from scipy.spatial import cKDTree

    seeds = np.random.default_rng(0).random((size[0] * size[1] * size[2] // 27_000, 3)) * size
    places = np.indices(size, np.float32).reshape(3, -1).T
    places += 6 * np.sin(places[:, [1, 2, 0]] / 9)
    labels = cKDTree(seeds).query(places)[1].reshape(size).astype(np.uint64) + 1
    labels[labels % 7 == 0] = 0
    info = CloudVolume.create_new_info(
        1, "segmentation", "uint64", "compressed_segmentation", (16, 16, 40), (0, 0, 0),
        size[::-1], chunk_size=(64, 64, 64),
    )  # fmt: skip
    volume = CloudVolume(f"file://{folder}", info=info, progress=False)
    volume.commit_info()
    volume[:] = np.asfortranarray(labels.T[..., None])


def commands(volume: Path) -> dict[str, list[list[str]]]:
    """Return the two commands of each tool."""
    path, task = str(volume), [*map(str, TASK)]
    ours = [sys.executable, "-m", "chunkflow_py", "--quiet"]
    theirs = [str(python_of("meshes").parent / "igneous"), "mesh"]
    return {
        OURS: [
            [*ours, "generate-tasks", "--volume-path", path, "--chunk-size", *task,
             "load-precomputed", "--volume-path", path, "--expand-margin-size", "auto",
             "mesh", "--output-path", path, "--simplification-factor", "100",
             "--max-simplification-error", "40"],
            [*ours, "mesh-manifest", "--volume-path", path, "--shards", "1"],
        ],
        PEER: [
            [*theirs, "forge", f"file://{path}", "--shape", ",".join(reversed(task)), "--sharded",
             "--max-error", "40"],
            [*theirs, "merge-sharded", f"file://{path}", "--nlod", "2"],
        ],
    }  # fmt: skip


def watched(command: list[str]) -> tuple[float, int]:
    """Run a command on one processor; return its seconds and its peak of memory, bytes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if command[0] != sys.executable:
        del environment["PYTHONPATH"]
    start, peak = perf_counter(), 0
    processor = min(os.sched_getaffinity(0))
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(
            ["taskset", "--cpu-list", str(processor), *command],
            env=environment,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max([peak, *(int(x.split()[1]) for x in status if x.startswith("VmHWM:"))])
            sleep(_INTERVAL_S)
        log.seek(0)
        output = log.read()
    if process.returncode:
        msg = f"Error: {' '.join(command)} failed: {output[-300:]}"
        raise SystemExit(msg)
    return perf_counter() - start, 1024 * peak


def vertices(volume: Path) -> tuple[int, int]:
    """Return the numbers of objects and vertices that cloud-volume reads at the finest level."""
    from cloudvolume import CloudVolume

    source = CloudVolume(f"file://{volume}", progress=False).mesh
    found = [source.reader.list_labels(p.name, source.path) for p in shards(volume, source.path)]
    labels = [int(label) for part in found for label in part]
    return len(labels), sum(len(source.get(label)[label].vertices) for label in labels)


def shards(volume: Path, folder: str) -> list[Path]:
    """Return the files of shards in a folder of a volume."""
    return sorted((volume / folder).glob("*.shard"))


def measure(folder: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the records of all tools: lists of seconds and bytes of both steps."""
    records: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for tool in (OURS, PEER):
            volume = folder / tool
            shutil.rmtree(volume, ignore_errors=True)
            shutil.copytree(folder / "labels", volume)
            steps = [watched(command) for command in commands(volume)[tool]]
            record = records.setdefault(tool, {"seconds": [], "bytes": []})
            record["seconds"].append([seconds for seconds, _ in steps])
            record["bytes"].append([peak for _, peak in steps])
            record["objects"], record["vertices"] = vertices(volume)
            say(f"round {number + 1}, {tool}: {steps}")
    return records


def show(case: str, records: dict[str, dict[str, Any]]) -> None:
    """Print the medians of a case, and how they compare."""
    print(case)
    for tool, record in records.items():
        forge, merge = (median(step) for step in zip(*record["seconds"], strict=True))
        peaks = [max(step) / 1e6 for step in zip(*record["bytes"], strict=True)]
        print(
            f"{tool:13} fragments {forge:7.1f} s {peaks[0]:5.0f} MB   shards {merge:6.1f} s "
            f"{peaks[1]:5.0f} MB   {record['objects']} objects, {record['vertices']} vertices"
        )
    ours, theirs = (
        median(sum(steps) for steps in records[tool]["seconds"]) for tool in (OURS, PEER)
    )
    most = {tool: max(map(max, record["bytes"])) for tool, record in records.items()}
    print(f"speed  {theirs / ours:.2f} times igneous; target: at least {SPEED_TARGET}")
    print(f"memory {most[OURS] / most[PEER]:.2f} times igneous; limit: {MEMORY_LIMIT}")


def main() -> None:
    """Measure and print the figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="one round of one task")
    options.add_argument("--folder", type=Path, default=HERE / ".meshes")
    asked = options.parse_args()
    build("meshes")
    folder = asked.folder.resolve()
    for case, size in list(SIZES.items())[: 1 if asked.quick else None]:
        shutil.rmtree(folder, ignore_errors=True)
        labels_in(folder / "labels", size)
        show(case, measure(folder, 1 if asked.quick else asked.rounds))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
