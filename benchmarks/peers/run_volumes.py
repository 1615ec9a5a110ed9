"""Write or read a volume by one of the field's libraries, as their users call them.

Keys of the job besides those of `measure_volumes`: ``contestant``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from measure import job, report
from measure_volumes import Contestant, measure
from numpy.typing import NDArray


class TensorStore:
    """Drivers zarr3 and neuroglancer_precomputed over the driver file."""

    def create(self, folder: Path, job: dict[str, Any]) -> Any:
        """Make a volume; without gzip, which it writes into shards only."""
        import tensorstore

        make = self._zarr if job["format"] in {"zarr", "sharded"} else self._precomputed
        return tensorstore.open(
            make(job) | self._place(folder, job), context=_context(job), create=True
        ).result()

    def open(self, folder: Path, job: dict[str, Any]) -> Any:
        """Open a volume."""
        import tensorstore

        return tensorstore.open(self._place(folder, job), context=_context(job)).result()

    def write(self, volume: Any, image: NDArray[np.uint8]) -> None:
        """Write all voxels, and wait until they are committed."""
        image = image.T[..., None] if volume.rank == 4 else image
        volume.write(image, can_reference_source_data_indefinitely=True).result()

    def read(self, volume: Any) -> NDArray[np.uint8]:
        """Return all voxels."""
        found: NDArray[np.uint8] = volume.read(order="F" if volume.rank == 4 else "C").result()
        return found[..., 0].T if found.ndim == 4 else found

    @staticmethod
    def _place(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
        zarr = job["format"] in {"zarr", "sharded"}
        return {
            "driver": "zarr3" if zarr else "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{folder}/{'0/' if zarr else ''}"},
        }

    @staticmethod
    def _zarr(job: dict[str, Any]) -> dict[str, Any]:
        codecs: list[dict[str, Any]] = [
            {"name": "bytes"},
            {"name": "zstd", "configuration": {"level": job["level"]}},
        ]
        chunk = job["block"]
        if job["format"] == "sharded":
            inner = {"chunk_shape": chunk, "codecs": codecs}
            codecs, chunk = [{"name": "sharding_indexed", "configuration": inner}], job["shard"]
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        shape = {"shape": job["size"], "data_type": "uint8", "fill_value": 0}
        return {"metadata": {**shape, "chunk_grid": grid, "codecs": codecs}}

    @staticmethod
    def _precomputed(job: dict[str, Any]) -> dict[str, Any]:
        return {
            "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
            "scale_metadata": {
                "key": "0",
                "size": job["size"][::-1],
                "chunk_size": job["block"][::-1],
                "resolution": [8, 8, 8],
                "encoding": "raw",
            },
        }


def _context(job: dict[str, Any]) -> Any:
    import tensorstore

    return tensorstore.Context(
        {
            "data_copy_concurrency": {"limit": job["threads"]},
            "file_io_concurrency": {"limit": job.get("file_threads", job["threads"])},
            "file_io_sync": job["sync"],
        }
    )


class Zarr:
    """zarr-python 3 over a local store, with its own codec pipeline or that of zarrs."""

    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"

    def create(self, folder: Path, job: dict[str, Any]) -> Any:
        """Make an array."""
        import zarr
        from zarr.codecs import ZstdCodec

        self._configure(job)
        return zarr.create_array(
            f"{folder}/0",
            shape=job["size"],
            chunks=job["block"],
            shards=job["shard"] if job["format"] == "sharded" else None,
            dtype="uint8",
            fill_value=0,
            compressors=ZstdCodec(level=job["level"]),
        )

    def open(self, folder: Path, job: dict[str, Any]) -> Any:
        """Open an array."""
        import zarr

        self._configure(job)
        return zarr.open_array(f"{folder}/0", mode="r")

    def write(self, volume: Any, image: NDArray[np.uint8]) -> None:
        """Write all voxels."""
        volume[...] = image

    def read(self, volume: Any) -> NDArray[np.uint8]:
        """Return all voxels."""
        found: NDArray[np.uint8] = volume[...]
        return found

    def _configure(self, job: dict[str, Any]) -> None:
        import zarr

        threads = {"threading.max_workers": job["threads"]}
        if "zarrs" in self.pipeline:
            import zarrs  # noqa: F401  (registers its pipeline)

        zarr.config.set({"codec_pipeline.path": self.pipeline, **threads})


class Zarrs(Zarr):
    """zarr-python 3 with the codec pipeline of zarrs."""

    pipeline = "zarrs.ZarrsCodecPipeline"


class CloudVolume:
    """CloudVolume, in one process or (its only way to use several cores) in as many as threads."""

    def __init__(self, processes: int = 1) -> None:
        """Set the number of processes."""
        self.processes = processes

    def create(self, folder: Path, job: dict[str, Any]) -> Any:
        """Make a volume."""
        from cloudvolume import CloudVolume as Library

        about = Library.create_new_info(
            num_channels=job.get("channels", 1),
            layer_type="image",
            data_type="uint8",
            encoding="raw",
            resolution=(8, 8, 8),
            voxel_offset=(0, 0, 0),
            chunk_size=job["block"][::-1],
            volume_size=job["size"][::-1],
        )
        volume = Library(f"file://{folder}", info=about, **self._how(job))
        volume.commit_info()
        return volume

    def open(self, folder: Path, job: dict[str, Any]) -> Any:
        """Open a volume."""
        from cloudvolume import CloudVolume as Library

        return Library(f"file://{folder}", **self._how(job))

    def write(self, volume: Any, image: NDArray[np.uint8]) -> None:
        """Write all voxels."""
        volume[...] = image.T[..., None]

    def read(self, volume: Any) -> NDArray[np.uint8]:
        """Return all voxels."""
        return np.asarray(volume[...])[..., 0].T

    def _how(self, job: dict[str, Any]) -> dict[str, Any]:
        compress = "gzip" if job["format"] == "gzip" else False
        return {"compress": compress, "progress": False, "parallel": self.processes}


CONTESTANTS: dict[str, type[Contestant]] = {
    "tensorstore": TensorStore,
    "zarrs": Zarrs,
    "zarr": Zarr,
    "cloud-volume": CloudVolume,
}


def main() -> None:
    """Measure one contestant."""
    asked = job()
    name, _, processes = asked["contestant"].partition(" x ")
    kind: Any = CONTESTANTS[name]
    contestant = kind(int(processes)) if processes else kind()
    if asked["operation"] == "create":
        contestant.create(Path(asked["folder"]), asked)
        report({})
        return
    report(measure(contestant, asked))


if __name__ == "__main__":
    main()
