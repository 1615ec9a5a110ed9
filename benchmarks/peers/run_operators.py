"""Call commands on chunks, by this package or by chunkflow 1.2.0: one process for all of them.

Reads a job a line, and answers each with a line: ``wall_s`` of one call, or ``error``. What the
commands print goes to stderr. Keys of a job: ``words``, ``items``, ``folder`` (new), ``files``,
``size`` of the chunk (zyx), ``is_inside``. The first argument says whose commands they are.
"""

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

VOXEL_SIZE_NM = (40, 8, 8)
KINDS = {"segmentation": "segmentation", "truth": "segmentation", "affinity": "affinity"}
WARM = (4, 64, 64)  # of the first call, which imports and compiles


class Ours:
    """This package."""

    def __init__(self) -> None:
        """Set it up as its command line does."""
        from chunkflow_py.core import allocator

        allocator.keep_freed_memory()

    def chunk(self, name: str, array: NDArray[Any], *, is_inside: bool) -> Any:
        """Return a chunk."""
        from chunkflow_py.core.chunk import Chunk
        from chunkflow_py.core.geometry import BoundingBox

        size = array.shape[-3:]
        around = BoundingBox.from_size([-n for n in size], [3 * n for n in size])
        kind = KINDS.get(name, "image")
        return Chunk(array, (0, 0, 0), VOXEL_SIZE_NM, kind, around if is_inside else None)

    def task(self, items: dict[str, Any], size: tuple[int, ...]) -> Any:
        """Return a task; what is loaded is loaded whole."""
        from chunkflow_py.core.geometry import BoundingBox, Region
        from chunkflow_py.core.task import Task

        return Task(Region(BoundingBox.from_size((0, 0, 0), size)) if items else None, items)

    def command(self, words: list[str]) -> Callable[[Any], Any]:
        """Return what is called for a task."""
        from chunkflow_py.cli.command_line import read_line
        from chunkflow_py.core.outline import Outline

        (stage,) = read_line(words)
        stage.hooks.prepare(Outline())
        if hasattr(stage.body, "__enter__"):
            stage.body.__enter__()
        return stage.call  # type: ignore[union-attr]


class Peer:
    """chunkflow 1.2.0."""

    def chunk(self, name: str, array: NDArray[Any], *, is_inside: bool) -> Any:  # noqa: ARG002
        """Return a chunk, which knows of no volume."""
        from chunkflow.chunk import Chunk
        from chunkflow.lib.cartesian_coordinate import Cartesian

        kinds = {"affinity": "affinity_map"}
        kind = KINDS.get(name, "image")
        return Chunk(
            array,
            voxel_offset=Cartesian(0, 0, 0),
            voxel_size=Cartesian(*VOXEL_SIZE_NM),
            layer_type=kinds.get(kind, kind),
        )

    def task(self, items: dict[str, Any], size: tuple[int, ...]) -> Any:
        """Return a task; with a box it loads no PNGs."""
        from chunkflow.lib.cartesian_coordinate import BoundingBox, Cartesian

        box = BoundingBox(Cartesian(0, 0, 0), Cartesian(*size))
        return {"log": {"timer": {}}, **({"bbox": box} if items else {}), **items}

    def command(self, words: list[str]) -> Callable[[Any], Any]:
        """Return what is called for a task."""
        from chunkflow.flow.flow import main
        from chunkflow.lib.flow import state

        state.update(operators={}, mip=0, dry_run=False, verbose=0)
        work = main.commands[words[0]].main(words[1:], standalone_mode=False)
        return lambda task: list(work(iter([task])))


def measure(tool: Ours | Peer, job: dict[str, Any], *, size: tuple[int, ...]) -> float:
    """Return the seconds of one call on chunks of *size*."""
    places = {name: job[name] for name in ("files", "folder")}
    words = job["words"].format(**places, size=" ".join(map(str, size))).split()
    cut = (..., *(slice(0, extent) for extent in size))
    items = {}
    for item, name in job["items"].items():
        # A copy for each call, as some commands work in place.
        array = np.load(Path(job["files"]) / f"{name}.npy", mmap_mode="r")
        items[item] = tool.chunk(name, np.array(array[cut], order="C"), is_inside=job["is_inside"])
    task = tool.task(items, size)
    call = tool.command(words)
    start = perf_counter()
    call(task)
    return perf_counter() - start


def main() -> None:
    """Answer jobs until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tool = {"ours": Ours, "chunkflow": Peer}[sys.argv[1]]()
    warmed = set()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["words"] not in warmed and job["items"]:
                measure(tool, job, size=WARM)
            warmed.add(job["words"])
            found: dict[str, Any] = {"wall_s": measure(tool, job, size=tuple(job["size"]))}
        except (Exception, SystemExit) as error:  # noqa: BLE001  that one fails is a result
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), file=answers)


if __name__ == "__main__":
    main()
