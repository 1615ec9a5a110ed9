"""Inference on the CPU: what the engine costs beside the network, in time and in memory.

Run `python benchmarks/inference.py`; each line prints the measured ratio beside its limit, and
everything goes to benchmarks/results/inference.json. Each measurement runs in a process of its
own, so that peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

RESULTS = Path(__file__).parent / "results"
GB = 1e9


def machine() -> dict[str, str | int]:
    """Return what the figures depend on."""
    import numpy as np
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(": ")[2] if models else cpu
    return {
        "cpu": cpu,
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def measure(size: tuple[int, int, int], model: str, channels: int, threads: int) -> dict[str, Any]:
    """Run one chunk through the engine and return seconds and bytes."""
    import numpy as np
    import torch

    from chunkflow_py.geometry import BoundingBox, Zyx
    from chunkflow_py.inference.backends import create_backend
    from chunkflow_py.inference.engine import Engine, EngineSettings
    from chunkflow_py.inference.grid import PatchGeometry

    torch.set_num_threads(threads)
    patch = Zyx(20, 256, 256)
    settings = EngineSettings(
        PatchGeometry(patch, patch, Zyx(4, 64, 64)), num_output_channels=channels
    )
    backend = create_backend(
        "identity" if model == "identity" else "pytorch",
        model=None if model == "identity" else model,
        input_patch_size=patch,
        output_patch_size=patch,
        num_output_channels=channels,
        device="cpu",
        window=settings.window,
    )
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    engine = Engine(backend, settings)
    start = perf_counter()
    output = engine.run(image, BoundingBox.from_size((0, 0, 0), size))
    wall = perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    copied = np.empty_like(output)
    np.copyto(copied, output)
    start = perf_counter()
    np.copyto(copied, output)
    copy = perf_counter() - start
    return {
        "wall_s": wall,
        "forward_s": engine.forward_seconds,
        "outside_share": 1 - engine.forward_seconds / wall,
        "peak_bytes": peak,
        "input_bytes": image.nbytes,
        "output_bytes": output.nbytes,
        "patches": engine.patches_run,
        "megavoxels_per_s": image.size / wall / 1e6,
        "copyto_s": copy,
        "copyto_ratio": wall / copy,
        "machine": machine(),
    }


def in_own_process(**settings: Any) -> dict[str, Any]:
    """Run `measure` in a fresh interpreter."""
    command = [sys.executable, __file__, "--measure", json.dumps(settings)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure, print each line beside its limit, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(**arguments.measure)))
        return
    cases = {
        "rsunet": {"size": (64, 768, 768), "model": "rsunet", "channels": 3},
        "identity-1": {"size": (128, 1024, 1024), "model": "identity", "channels": 1},
        "identity-3": {"size": (128, 1024, 1024), "model": "identity", "channels": 3},
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        for name, case in cases.items():
            runs[name].append(in_own_process(threads=arguments.threads, **case))
    outside = median(run["outside_share"] for run in runs["rsunet"])
    walls = ", ".join(f"{run['wall_s']:.1f}" for run in runs["rsunet"])
    print(f"rsunet 64x768x768, {arguments.threads} threads: wall {walls} s")
    print(f"  outside of the forward: {outside:.1%} of the wall time (limit 10%)")
    run = max(runs["rsunet"], key=lambda r: r["peak_bytes"])
    limit = run["input_bytes"] + run["output_bytes"] + 1.5 * GB
    print(f"  peak memory {run['peak_bytes'] / GB:.2f} GB (limit {limit / GB:.2f} GB)")
    for name in ("identity-1", "identity-3"):
        speed = median(r["megavoxels_per_s"] for r in runs[name])
        ratio = median(r["copyto_ratio"] for r in runs[name])
        peak = max(r["peak_bytes"] for r in runs[name]) / GB
        print(f"{name} channel(s) 128x1024x1024: {speed:.0f} Mvoxel/s, {ratio:.1f} x the time of")
        print(f"  one numpy.copyto of the output; peak memory {peak:.2f} GB")
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / "inference.json"
    target.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
