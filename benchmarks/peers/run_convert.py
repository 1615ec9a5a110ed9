"""Copy image files to OME-Zarr with levels: by this package, or by tifffile, dask and zarr.

Keys of the job: ``contestant``; ``source``: an OME-TIFF or a folder of TIFF pages; ``target``: the
folder of the new volume; ``block`` and ``factor``, zyx; ``levels`` above level 0; ``threads``;
``processes``; ``sync``: whether this package waits for the disk. With the contestant ``check``, a
checksum of level 0 and the shapes of all levels are reported.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from measure import job, memory_bytes, report

MARGIN_S = 0.05


def convert_ours(asked: dict[str, Any]) -> None:
    """Run ``chunkflow convert``."""
    from chunkflow_py.cli.main import cli
    from chunkflow_py.core import allocator

    allocator.keep_freed_memory()
    if not asked["sync"]:
        os.fsync = lambda _: None
    words = ["--quiet", "convert", asked["source"], f"zarr://{asked['target']}"]
    words += ["--voxel-size", "1000", "500", "500", "--max-mip", str(asked["levels"])]
    words += ["--block-size", *map(str, asked["block"]), "--factor", *map(str, asked["factor"])]
    words += ["--processes", str(asked["processes"])]
    cli(words, standalone_mode=False)


def convert_with_libraries(asked: dict[str, Any]) -> None:
    """Decode each page once and write slabs of whole blocks; each level from the next finer one."""
    import dask
    import dask.array as da
    import numpy as np
    import tifffile
    import zarr

    block, factor = asked["block"], asked["factor"]
    source = Path(asked["source"])
    if source.is_dir():
        store = tifffile.TiffSequence(sorted(map(str, source.glob("*.tif")))).aszarr()
    else:
        store = tifffile.imread(source, aszarr=True)
    group = zarr.create_group(asked["target"])
    with dask.config.set(scheduler="threads", num_workers=asked["threads"]):
        image = da.from_zarr(zarr.open_array(store, mode="r"))
        for level in range(asked["levels"] + 1):
            if level:
                fine = da.from_zarr(group[str(level - 1)])
                slabs = fine.rechunk((block[0] * factor[0], -1, -1))
                image = da.coarsen(np.mean, slabs, dict(enumerate(factor))).astype(np.uint16)
            array = group.create_array(
                str(level), shape=image.shape, chunks=tuple(block), dtype=image.dtype
            )
            da.store(image.rechunk((block[0], -1, -1)), array, lock=False)


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a checksum of level 0, and the shape of each level, as zarr-python reads them."""
    import zarr

    group = zarr.open_group(asked["target"], mode="r")
    shapes = [group[str(level)].shape for level in range(asked["levels"] + 1)]
    checksum, finest, step = 0, group["0"], asked["block"][0]
    for start in range(0, finest.shape[0], step):
        checksum = zlib.crc32(finest[start : start + step].tobytes(), checksum)
    return {"checksum": checksum, "shapes": shapes}


class PeakMemory:
    """Watches the resident memory of this process and its children together."""

    def __enter__(self) -> PeakMemory:
        """Start to watch."""
        self.bytes, self._ended = 0, Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; a short peak of a single process counts, too."""
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, memory_bytes("VmHWM"))

    def _watch(self) -> None:
        while not self._ended.wait(MARGIN_S):
            self.bytes = max(self.bytes, sum(map(_resident, _family(os.getpid()))))


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = map(int, task.read_text().split())
        except OSError:  # the thread has ended
            continue
        found += [each for child in children for each in _family(child)]
    return found


def _resident(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):  # shared pages are counted once
                return int(line.split()[1]) * 1024
    except OSError:  # the process has ended
        pass
    return 0


def main() -> None:
    """Convert, and report seconds, peak memory and stored bytes."""
    asked = job()
    if asked["contestant"] == "check":
        report(check(asked))
        return
    convert = convert_ours if asked["contestant"].startswith("ours") else convert_with_libraries
    start = perf_counter()
    with PeakMemory() as peak:
        convert(asked)
    seconds = perf_counter() - start
    stored = sum(path.stat().st_size for path in Path(asked["target"]).rglob("*") if path.is_file())
    report({"wall_s": seconds, "peak_bytes": peak.bytes, "stored_bytes": stored})


if __name__ == "__main__":
    main()
