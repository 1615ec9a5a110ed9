"""Measure how far each precision and backend is from torch in float32, on the same patches.

Keys of the job: ``model``, ``patch``, ``variants`` (pairs of backend and dtype), ``weights``
(optional), ``image`` (optional: an HDF5 file with ``main``; random voxels otherwise).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from measure import job, network_file, random_image, report

from chunkflow_py.core import allocator

if TYPE_CHECKING:
    from chunkflow_py.inference.backends.backend_protocol import Backend

PATCHES = 2


def patches_of(asked: dict[str, Any]) -> list[torch.Tensor]:
    """Return patches (1, 1, z, y, x) of the image, one behind the other along z, in [0, 1]."""
    z, y, x = asked["patch"]
    if asked.get("image"):
        import h5py

        with h5py.File(asked["image"]) as file:
            image = np.asarray(file["main"])
    else:
        image = random_image([PATCHES * z, y, x])
    return [
        torch.from_numpy(np.ascontiguousarray(image[k * z : (k + 1) * z, :y, :x])).float()[
            None, None
        ]
        / np.iinfo(image.dtype).max
        for k in range(PATCHES)
    ]


def main() -> None:
    """Report largest, 99.9th percentile and mean of the absolute difference by variant."""
    allocator.keep_freed_memory()
    asked = job()
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.inference import create_backend
    from chunkflow_py.inference.backend_comparison import compare

    patches = patches_of(asked)
    size = Zyx(*asked["patch"])

    def network(backend: str, dtype: str) -> Backend:
        return create_backend(
            "pytorch",
            model=asked.get("path") or network_file(asked["model"]),
            weights=asked.get("weights"),
            input_patch_size=size,
            output_patch_size=size,
            num_output_channels=3,
            device="cpu",
            backend=backend,
            dtype=dtype,
        )

    reference = network("torch", "float32")
    errors = {}
    for backend, dtype in asked["variants"]:
        try:
            with torch.inference_mode():
                found = compare(network(backend, dtype), reference, patches)
        except Exception as error:  # noqa: BLE001  a backend that is not installed is a result
            errors[f"{backend} {dtype}"] = {"error": f"{type(error).__name__}: {error}"}
            continue
        errors[f"{backend} {dtype}"] = asdict(found)
    report({"errors": errors})


if __name__ == "__main__":
    main()
