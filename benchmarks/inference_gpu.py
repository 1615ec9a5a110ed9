"""Inference on a GPU: time outside of the network, how busy the GPU is, and MONAI beside it.

    python benchmarks/inference_gpu.py [--json] [--device cuda] [--smoke]

Needs PyTorch and NumPy only, and MONAI to compare with it. Without a GPU it says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # also runs where the package is not installed

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend
from chunkflow_py.inference.models import create_model

CHUNKS = 10
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32 with TF32": {"tf32": True},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float16, compiled": {"dtype": "float16", "compile": True},
}


def busy_share(spans: list[tuple[float, float]]) -> float:
    """Return which part of the time from the first start to the last end some span covers.

    Args:
        spans: (start, end) of pieces of work, which may overlap, in any order.
    """
    if not spans:
        return 0.0
    covered, reached = 0.0, min(start for start, _ in spans)
    first = reached
    for start, end in sorted(spans):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered / (reached - first)


def wait(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_chunks(engine: Engine, image: np.ndarray, count: int) -> float:
    """Return the seconds of *count* chunks, each begun while the one before is finished."""
    box = BoundingBox.from_size((0, 0, 0), image.shape)
    start = perf_counter()
    pending = engine.start(image, box)
    for _ in range(count - 1):
        following = engine.start(image, box)
        pending.result()
        pending = following
    pending.result()
    wait(engine.backend.device)
    return perf_counter() - start


def bare_forward(engine: Engine, shape: tuple[int, ...], count: int = 20) -> float:
    """Return the seconds of one forward of a batch that is on the device already."""
    batch = torch.rand(shape, device=engine.backend.device)
    with torch.inference_mode():
        engine.backend(batch)
        wait(batch.device)
        start = perf_counter()
        for _ in range(count):
            engine.backend(batch)
        wait(batch.device)
    return (perf_counter() - start) / count


def measure(
    size: tuple[int, int, int],
    patch: Zyx,
    overlap: Zyx,
    device: torch.device,
    *,
    seconds: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return seconds, shares and memory of ten chunks with one setting of the backend.

    Args:
        size: of a chunk.
        patch: of the network.
        overlap: of the patches.
        device: where the network runs.
        seconds: about how long to measure; at least two chunks, at most ten (default: ten).
        options: of the backend.

    The time and the share outside of the forward are measured without a profiler; the busy share,
    the union of everything the GPU did, in a second run with one, which can only lower it.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    settings = EngineSettings(PatchGeometry(patch, patch, overlap))
    backend = create_backend(
        "pytorch",
        model="rsunet",
        input_patch_size=patch,
        output_patch_size=patch,
        device=str(device),
        window=settings.window,
        **options,
    )
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    engine = Engine(backend, settings)
    run_chunks(engine, image, 2)  # compiles, captures, allocates
    chunks = CHUNKS
    if seconds is not None:
        chunks = max(2, min(CHUNKS, int(2 * seconds / run_chunks(engine, image, 2))))
    before, patches = engine.forward_seconds, engine.patches_run
    wall = run_chunks(engine, image, chunks)
    forward, patches = engine.forward_seconds - before, engine.patches_run - patches
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run_chunks(engine, image, chunks)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if event.device_type.name == device.type.upper()
    ]
    result = {
        "wall_s": wall,
        "chunks": chunks,
        "mvoxel_per_s": chunks * image.size / wall / 1e6,
        "wall_over_bare_forward": wall / (patches * bare_forward(engine, (1, 1, *patch))),
        "outside_share": 1 - forward / wall,
        "busy_share": busy_share(spans),
        "profile": backend.profile,
    }
    if device.type == "cuda":
        result["device_bytes"] = torch.cuda.max_memory_reserved(device)
    engine.close()
    return result


def measure_monai(
    size: tuple[int, int, int],
    patch: Zyx,
    overlap: Zyx,
    device: torch.device,
    *,
    chunks: int = CHUNKS,
    **options: Any,
) -> float:
    """Return the seconds of some chunks with MONAI, everything on the device.

    cuDNN chooses its kernels as in a new process; those of an engine of ours are deterministic.
    """
    from monai.inferers import sliding_window_inference

    dtype = getattr(torch, options.get("dtype", "float32"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bool(
        options.get("tf32")
    )
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False
    network: Any = create_model("rsunet", 1, 3).eval().to(device)
    if options.get("compile"):
        network = torch.compile(network)
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))
    share = [o / p for o, p in zip(overlap, patch, strict=True)]

    def run() -> None:
        inputs = image.to(device)[None, None].float() / 255
        output = sliding_window_inference(
            inputs, tuple(patch), 1, network, overlap=share, mode="gaussian"
        )
        output.float().cpu().numpy()

    low = dtype != torch.float32
    with torch.inference_mode(), torch.autocast(device.type, dtype if low else None, enabled=low):
        run()
        wait(device)
        start = perf_counter()
        for _ in range(chunks):
            run()
        wait(device)
    return perf_counter() - start


def main() -> None:
    """Measure every setting and print it, as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does everything run?")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    report: dict[str, Any] = {"note": "no CUDA device"}
    if device.type != "cuda" or torch.cuda.is_available():
        size, patch, overlap = (64, 768, 768), Zyx(20, 256, 256), Zyx(4, 64, 64)
        if arguments.smoke:
            size, patch, overlap = (20, 48, 48), Zyx(20, 32, 32), Zyx(4, 16, 16)
        gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if gpu else "no GPU"
        report = {"device": name, "torch": torch.__version__, "size": size, "runs": []}
        for title, options in SETTINGS.items():
            try:
                run = measure(size, patch, overlap, device, **options)
                if find_spec("monai"):
                    run["monai_wall_s"] = measure_monai(size, patch, overlap, device, **options)
            except Exception as error:  # noqa: BLE001  one setting less is no reason to lose the rest
                print(f"{title}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            report["runs"].append({"name": title, **run})
    if arguments.json:
        print(json.dumps(report))
        return
    if "note" in report:
        print(f"{report['note']}: not measured")
        return
    print(f"{report['device']}, torch {report['torch']}")
    for run in report["runs"]:
        print(
            f"{run['name']}: {run['wall_s']:.3f} s for {CHUNKS} chunks, outside of the forward "
            f"{run['outside_share']:.1%} (limit 5%), GPU busy {run['busy_share']:.1%} (limit 95%), "
            f"MONAI {run.get('monai_wall_s', float('nan')):.3f} s"
        )


if __name__ == "__main__":
    main()
