"""Run this package on one chunk: wall time, time in the network, memory and its forecast.

Keys of the job besides those of `measure.job`: ``backend``, ``dtype`` (as `create_backend` takes
them), ``output_dtype``.
"""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from measure import job, network_file, random_image, report, timed

from chunkflow_py.core import allocator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.inference.engine import Engine
    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.network_memory import Activations
    from chunkflow_py.inference.patch_grid import PatchGrid

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


def forecast_bytes(
    asked: dict[str, Any], settings: EngineSettings, weights_and_maps: tuple[int, Activations]
) -> int:
    """Return the peak memory that is foretold once the network is loaded, before there is data."""
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.inference.memory_estimate import Workload, estimate_memory

    weights, maps = weights_and_maps
    size = Zyx(*asked["size"])
    backend = asked.get("backend", "torch")
    return estimate_memory(
        Workload(settings, maps, weights, size, size, backend=backend)
    ).host_bytes


def weights_and_maps(asked: dict[str, Any]) -> tuple[int, Activations]:
    """Return the bytes of the network's weights, and of its maps as a run without data tells."""
    import torch

    from chunkflow_py.inference.backends.fold_batch_norm import fold_batch_norm
    from chunkflow_py.inference.network_memory import Activations, peak_activations

    if asked["model"] == "identity":
        return 0, Activations(0, 1)
    network = import_module(asked["model"]).InstantiatedModel
    shape = (1, 1, *asked["patch"])
    fold_batch_norm(network, shape)
    maps = peak_activations(network, shape, dtype=getattr(torch, asked.get("dtype", "float32")))
    if maps is None:
        msg = f"the maps of {asked['model']} could not be counted"
        raise RuntimeError(msg)
    return sum(parameter.nbytes for parameter in network.parameters()), maps


def main() -> None:
    """Measure one run of the engine, the network loaded before, as for the peers."""
    allocator.keep_freed_memory()
    allocator.sleep_while_waiting()
    asked = job()
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend

    identity = asked["model"] == "identity"
    patch = Zyx(*asked["patch"])
    settings = EngineSettings(
        PatchGeometry(patch, patch, Zyx(*asked["overlap"])),
        num_output_channels=asked["channels"],
        output_dtype=asked.get("output_dtype", "float32"),
    )
    network = weights_and_maps(asked)
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
    expected = forecast_bytes(asked, settings, network)
    image = random_image(asked["size"])
    engine = Engine(backend, settings)
    box = BoundingBox.from_size((0, 0, 0), image.shape)
    _, result = timed(lambda: engine.run(image, box))
    more: dict[str, Any] = {
        "setup_s": setup,
        "forecast_bytes": expected,
        "forward_s": engine.forward_seconds,
        "patches": engine.patches_run,
        "profile": backend.profile,
    }
    if not identity:
        more["bare_forward_s"] = bare_forward_seconds(engine, image, settings.grid(box))
    engine.close()
    report({**result, **more})


if __name__ == "__main__":
    main()
