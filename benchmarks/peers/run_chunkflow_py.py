"""Run this package on one chunk: wall time, time in the network, memory and its forecast.

Keys of the job besides those of `measure.job`: ``backend``, ``dtype`` (as `create_backend` takes
them), ``output_dtype``.
"""

from __future__ import annotations

from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from measure import job, network_file, random_image, report, timed

from chunkflow_py import allocator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.inference.engine import Engine
    from chunkflow_py.inference.grid import PatchGrid

BARE_FORWARDS = 8
"""Forwards measured beside a run at most: those of the largest chunk alone would take minutes."""


def bare_forward_seconds(engine: Engine, image: NDArray[np.uint8], grid: PatchGrid) -> float:
    """Return the mean seconds of a forward of the run's own first patches, and nothing else."""
    import torch

    patches = list(islice(grid.patches(grid.cover), BARE_FORWARDS))
    seconds = 0.0
    with torch.inference_mode():
        for patch in patches:
            source = image[grid.input_box(patch).slices()]
            batch = torch.from_numpy(source)[None, None].float() / 255
            start = perf_counter()
            engine.backend(batch)
            seconds += perf_counter() - start
    return seconds / len(patches)


def main() -> None:
    """Measure one run of the engine, the network loaded before, as for the peers."""
    allocator.keep_freed_memory()
    asked = job()
    from chunkflow_py.geometry import BoundingBox, Zyx
    from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend

    identity = asked["model"] == "identity"
    patch = Zyx(*asked["patch"])
    settings = EngineSettings(
        PatchGeometry(patch, patch, Zyx(*asked["overlap"])),
        num_output_channels=asked["channels"],
        output_dtype=asked.get("output_dtype", "float32"),
    )
    image = random_image(asked["size"])
    start = perf_counter()
    backend = create_backend(
        "identity" if identity else "pytorch",
        model=None if identity else network_file(asked["model"]),
        input_patch_size=patch,
        output_patch_size=patch,
        num_output_channels=asked["channels"],
        device="cpu",
        window=settings.window,
        backend=asked.get("backend", "torch"),
        dtype=asked.get("dtype", "float32"),
    )
    setup = perf_counter() - start
    engine = Engine(backend, settings)
    box = BoundingBox.from_size((0, 0, 0), image.shape)
    _, result = timed(lambda: engine.run(image, box))
    more: dict[str, Any] = {
        "setup_s": setup,
        "forward_s": engine.forward_seconds,
        "patches": engine.patches_run,
        "profile": backend.profile,
    }
    if not identity:
        more["bare_forward_s"] = bare_forward_seconds(engine, image, settings.grid(box))
    report({**result, **more})


if __name__ == "__main__":
    main()
