"""Write or read a volume by this package, set up as its command line does it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import job, report
from measure_volumes import measure

from chunkflow_py.core import allocator

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

URLS = {
    "zarr": "zarr3://",
    "sharded": "zarr3://",
    "raw": "precomputed://",
    "gzip": "precomputed://",
}


class Ours:
    """Volumes of this package."""

    def create(self, folder: Path, job: dict[str, Any]) -> Any:
        """Make a volume."""
        from chunkflow_py.core.geometry import BoundingBox, Zyx
        from chunkflow_py.volume import create_volume
        from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

        kind = job["format"]
        zarr = kind in {"zarr", "sharded"}
        spec = VolumeSpec(
            bounds=BoundingBox.from_size(Zyx(0, 0, 0), Zyx(*job["size"])),
            voxel_size_nm=(8.0, 8.0, 8.0),
            dtype=np.dtype("uint8"),
            channels=None if zarr else 1,
            kind="image",
            block_size=Zyx(*job["block"]),
            encoding="zstd" if zarr else "raw",
            shard_size=Zyx(*job["shard"]) if kind == "sharded" else None,
        )
        settings = {} if zarr else {"compress": kind == "gzip"}
        opening = VolumeOptions(parallel=job["threads"])
        return create_volume(spec, f"{URLS[kind]}{folder}", opening=opening, **settings)

    def open(self, folder: Path, job: dict[str, Any]) -> Any:
        """Open a volume."""
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.protocol import VolumeOptions

        opening = VolumeOptions(parallel=job["threads"])
        # The array itself: what libraries write is no image of OME-Zarr.
        path = folder / "0" if job["format"] in {"zarr", "sharded"} else folder
        return open_volume(f"{URLS[job['format']]}{path}", opening=opening)

    def write(self, volume: Any, image: NDArray[np.uint8]) -> None:
        """Write all voxels."""
        from chunkflow_py.core.chunk import Chunk

        volume.write(Chunk(image, (0, 0, 0), (8.0, 8.0, 8.0), "image"))

    def read(self, volume: Any) -> NDArray[np.uint8]:
        """Return all voxels."""
        found: NDArray[np.uint8] = volume.read(volume.bounds).array
        return found[0] if found.ndim == 4 else found


def main() -> None:
    """Measure; without sync the disk is not waited for, as the libraries that do not."""
    allocator.keep_freed_memory()
    asked = job()
    if not asked["sync"]:
        os.fsync = lambda _: None
    report(measure(Ours(), asked))


if __name__ == "__main__":
    main()
