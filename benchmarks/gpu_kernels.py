"""What decides the time of a forward pass on a GPU: layout, choice of kernels, CUDA graphs.

    python benchmarks/gpu_kernels.py [--output FILE] [--limit SECONDS]

Times one patch of two networks, RSUNet and the one of FIB-25, with every combination of dtype,
memory layout, rule for choosing cuDNN's kernels, and CUDA graph. Then runs two neighbouring tasks
with and without an exchange of patches. Needs the libraries of a plain `pip install .`.

Each rule runs in a process of its own, because PyTorch remembers the kernel of a convolution, by
whichever rule it was chosen.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # also runs where the package is not installed

from processes import RESULTS, ROOT, machine, say
from torch.utils.flop_counter import FlopCounterMode

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend
from chunkflow_py.inference.backends.fold_batch_norm import fold_batch_norm
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.inference.models import create_model
from chunkflow_py.inference.patch_exchange import PatchExchange

if TYPE_CHECKING:
    from collections.abc import Callable

# name: dtype, TF32, whether the weights have the dtype too (otherwise autocast converts them)
DTYPES = {
    "float32": (torch.float32, False, False),
    "float32 with TF32": (torch.float32, True, False),
    "bfloat16": (torch.bfloat16, False, False),
    "float16": (torch.float16, False, False),
    "bfloat16 weights": (torch.bfloat16, False, True),
    "float16 weights": (torch.float16, False, True),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last_3d}
# name: cudnn.benchmark, cudnn.deterministic; the first is what `TorchCore` uses
KERNELS = {
    "deterministic": (False, True),
    "any": (False, False),
    "fastest deterministic": (True, True),
    "fastest": (True, False),
}
PROCESS_LIMIT_S = 90
REPEATS = 15


def networks(smoke: bool) -> dict[str, tuple[Callable[[], torch.nn.Module], Zyx]]:
    """Return what makes each network, and the size of its patch."""
    folder = ROOT / "examples" / "fib25"

    def rsunet() -> torch.nn.Module:
        return create_model("rsunet", 1, 3)

    def fib25() -> torch.nn.Module:
        network: torch.nn.Module = runpy.run_path(str(folder / "unet_fib25_model.py"))[
            "InstantiatedModel"
        ]
        network.load_state_dict(torch.load(folder / "unet_fib25.pt", weights_only=True))
        return network

    return {
        "RSUNet": (rsunet, Zyx(4, 32, 32) if smoke else Zyx(20, 256, 256)),
        "FIB-25": (fib25, Zyx(16, 48, 48) if smoke else Zyx(96, 128, 128)),
    }


def milliseconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of a call on the device."""
    times = []
    for _ in range(REPEATS):
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        else:
            start = perf_counter()
            call()
            times.append((perf_counter() - start) * 1000)
    return statistics.median(times)


@torch.inference_mode()
def variant(
    network: torch.nn.Module, patch: torch.Tensor, dtype: str, layout: str
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the times of one combination without and with a graph, and its output."""
    device = patch.device
    precision, tf32, weights = DTYPES[dtype]
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    network.to(memory_format=LAYOUTS[layout], dtype=precision if weights else torch.float32)
    found: dict[str, Any] = {"dtype": dtype, "layout": layout}
    low = precision is not torch.float32 and not weights
    with torch.autocast(device.type, precision, enabled=low):
        source = patch.to(precision if weights else torch.float32)
        source = source.clone(memory_format=LAYOUTS[layout])
        for _ in range(3):
            output = network(source)
        found["ms"] = milliseconds(lambda: network(source), device)
        output = output.float().clone()
        if device.type == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replayed = network(source)
            graph.replay()
            found["graph_ms"] = milliseconds(graph.replay, device)
            found["graph_same_bytes"] = bool(torch.equal(replayed.float(), output))
    return found, output


def variants(kernels: str, device: torch.device, *, smoke: bool) -> dict[str, Any]:
    """Return the times of all combinations with one rule for choosing kernels."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = KERNELS[kernels]
    found: dict[str, Any] = {}
    for name, (made, size) in networks(smoke).items():
        network = made().eval()
        fold_batch_norm(network, (1, 1, *size))
        generator = torch.Generator().manual_seed(0)
        patch = torch.rand((1, 1, *size), generator=generator)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            exact = network(patch)
        network, patch, exact = network.to(device), patch.to(device), exact.to(device)
        rows: list[dict[str, Any]] = []
        # A processor that emulates bfloat16 would take minutes.
        for dtype, layout in product(["float32"] if smoke else DTYPES, LAYOUTS):
            try:
                row, output = variant(network, patch, dtype, layout)
            except RuntimeError as error:
                message = str(error).partition("\n")[0]
                row = {"dtype": dtype, "layout": layout, "failed": message}
            else:
                row["error"] = float((output - exact).abs().max())
            rows.append(row)
        found[name] = {"patch": size, "flops": counter.get_total_flops(), "rows": rows}
    return found


def exchange(device: torch.device, *, smoke: bool) -> list[dict[str, Any]]:
    """Return the times of two neighbouring tasks with and without an exchange, three rounds."""
    size = (8, 96, 48) if smoke else (64, 1536, 768)
    patch, overlap = (
        (Zyx(8, 32, 32), Zyx(2, 16, 16)) if smoke else (Zyx(20, 256, 256), Zyx(4, 64, 64))
    )
    settings = EngineSettings(PatchGeometry(patch, patch, overlap))
    backend = create_backend(
        "pytorch", model="rsunet", input_patch_size=patch, output_patch_size=patch,
        device=str(device), dtype="float32" if device.type == "cpu" else "float16",
    )  # fmt: skip
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    box = BoundingBox.from_size((0, 0, 0), size)
    middle = size[1] // 2
    targets = {
        "low": BoundingBox(box.start, Zyx(size[0], middle, size[2])),
        "high": BoundingBox(Zyx(0, middle, 0), box.stop),
    }
    engine, grid, rows = Engine(backend, settings), settings.grid(box), []
    try:
        results = {}
        for number in range(4):
            for shared in (False, True):
                parts = PatchExchange(LocalParts(), (patch, 3), engine.device)
                before = engine.forward_seconds, engine.patches_run, engine.patches_found
                start = perf_counter()
                runs = []
                for name, target in targets.items():
                    others = {key: each for key, each in targets.items() if key != name}
                    task = parts.task(name, target, b"same", others, grid) if shared else None
                    runs.append(
                        engine.start(image, box, output_box=target, grid=grid, exchange=task)
                    )
                outputs = [run.result() for run in runs]
                wall = perf_counter() - start
                forward = engine.forward_seconds - before[0]
                row = {
                    "shared": shared,
                    "wall_s": wall,
                    "forward_s": forward,
                    "outside_share": 1 - forward / wall,
                    "patches_run": engine.patches_run - before[1],
                    "patches_found": engine.patches_found - before[2],
                }
                results[shared] = [each.tobytes() for each in outputs]
                if number:  # the first round compiles, captures and allocates
                    say(f"exchange: {json.dumps(row)}")
                    rows.append(row)
        rows.append({"same_bytes": results[False] == results[True]})
    finally:
        engine.close()
    return rows


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="file of the results (default: named after it)")
    parser.add_argument("--kernels", choices=KERNELS, help=argparse.SUPPRESS)  # one process's part
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)  # on the CPU, tiny
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.smoke:
        say("gpu_kernels needs a CUDA device; nothing was run")
        return 1
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    if arguments.kernels:
        print(json.dumps(variants(arguments.kernels, device, smoke=arguments.smoke)))
        return 0
    today = datetime.now(UTC).date().isoformat()
    report: dict[str, Any] = {
        "date": today,
        "device": name,
        "machine": machine(("torch", "numpy")) | {"cudnn": torch.backends.cudnn.version()},
        "exchange": exchange(device, smoke=arguments.smoke),
        "kernels": {},
    }
    for kernels in KERNELS:
        command = [sys.executable, __file__, "--kernels", kernels, *["--smoke"] * arguments.smoke]
        try:
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, timeout=PROCESS_LIMIT_S
            )
        except subprocess.SubprocessError as error:
            report["kernels"][kernels] = {"failed": str(error)}
            continue
        report["kernels"][kernels] = json.loads(done.stdout)
        say(f"kernels, {kernels}: measured")
    output = arguments.output or RESULTS / f"gpu-kernels-{'-'.join(name.split())}-{today}.json"
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    say(f"recorded in {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
