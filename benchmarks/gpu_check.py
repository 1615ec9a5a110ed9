"""Check a GPU machine: tests, errors against the CPU, speed; one JSON for `benchmarks/results`.

    make gpu-check        or    python benchmarks/gpu_check.py [--output FILE]

Needs pytest and the libraries of a plain `pip install .`; takes less than ten minutes on one GPU.
Where MONAI is installed too, its speed is measured with the same settings. It ends with 1 where
there is no CUDA device, a test fails, or a GPU computes other values than the CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import torch
from inference_gpu import SETTINGS, measure, measure_monai
from processes import RESULTS, ROOT, machine, say

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend
from chunkflow_py.inference.backend_comparison import compare, example_patches
from chunkflow_py.planning.doctor.machine_checks import gpu_system

TESTS = ROOT / "tests" / "gpu"
TESTS_LIMIT_S, LIMIT_S = 240, 540  # of the tests; of all: no setting is begun after that
MEASURED_S = 15  # about how long one setting is timed
LARGEST_ERROR = 1e-4  # of float32 against the CPU; values lie in [0, 1]
LIBRARIES = ("torch", "numpy", "pytest", "monai")


def run_tests() -> dict[str, Any]:
    """Return the counts of the tests, which failed, and why others were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-c", TESTS / "gpu.ini", TESTS]
        try:
            subprocess.run(
                [*command, f"--junitxml={file}"], check=False, cwd=ROOT, stdout=sys.stderr,
                timeout=TESTS_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"passed": 0, "failed": [f"the tests took more than {TESTS_LIMIT_S} s"]}
        if not file.exists():
            return {"passed": 0, "failed": ["pytest did not run; pip install pytest"]}
        return counted(file)


def counted(file: Path) -> dict[str, Any]:
    """Return what a report of pytest holds."""
    failed, skipped, passed = [], {}, 0
    for case in Xml.parse(file).iter("testcase"):
        name = "::".join((case.get("classname", "").rpartition(".")[2], case.get("name", "")))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None:
            skipped[name] = skip.get("message", "")
        else:
            passed += 1
    if not (passed or skipped or failed):
        failed.append("no test was found")
    return {"passed": passed, "failed": failed, "skipped": skipped}


def backend_of(device: str, patch: Zyx, **options: Any) -> Any:
    """Return the network that everything is measured with, with random weights."""
    return create_backend(
        "pytorch", model="rsunet", input_patch_size=patch, output_patch_size=patch, device=device,
        **options,
    )  # fmt: skip


def errors(device: str, patch: Zyx, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the error of each setting against float32 on the CPU."""
    reference = backend_of("cpu", patch)
    batches = example_patches((1, 1, *patch))
    found: dict[str, Any] = {}
    for name, options in settings.items():
        try:
            backend = backend_of(device, patch, **options)
            found[name] = asdict(compare(backend, reference, batches))
        except Exception as error:  # noqa: BLE001  one setting less is no reason to lose the rest
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
    return found


def engine_output(device: str, patch: Zyx) -> np.ndarray:
    """Return what the engine makes of a small chunk."""
    settings = EngineSettings(PatchGeometry(patch, patch, patch // 4))
    size = patch * 2
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    engine = Engine(backend_of(device, patch), settings)
    try:
        return engine.run(image, BoundingBox.from_size((0, 0, 0), size))
    finally:
        engine.close()


def speeds(
    device: str, settings: dict[str, dict[str, Any]], *, smoke: bool, end: float
) -> dict[str, Any]:
    """Return how fast each setting is, until *end* on the monotonic clock."""
    size, patch, overlap = (64, 768, 768), Zyx(20, 256, 256), Zyx(4, 64, 64)
    if smoke:
        size, patch, overlap = (8, 48, 48), Zyx(8, 32, 32), Zyx(2, 16, 16)
    found: dict[str, Any] = {"size": size, "patch": patch, "overlap": overlap, "runs": {}}
    for name, options in settings.items():
        if monotonic() > end:
            found["runs"][name] = {"failed": "not measured: the time was up"}
            continue
        try:
            seconds = 0.1 if smoke else MEASURED_S
            run = measure(size, patch, overlap, torch.device(device), seconds=seconds, **options)
        except Exception as error:  # noqa: BLE001  one setting less is no reason to lose the rest
            run = {"failed": f"{type(error).__name__}: {error}"}
        else:
            run["monai_wall_s"] = monai_seconds(size, patch, overlap, device, run, options)
        say(f"{device} {name}: {json.dumps(run)}")
        found["runs"][name] = run
    return found


def monai_seconds(
    size: tuple[int, int, int],
    patch: Zyx,
    overlap: Zyx,
    device: str,
    run: dict[str, Any],
    options: dict[str, Any],
) -> float | str:
    """Return the seconds of MONAI for as many chunks as in *run*, or why there are none."""
    if not find_spec("monai"):
        return "not installed"
    try:
        return measure_monai(
            size, patch, overlap, torch.device(device), chunks=run["chunks"], **options
        )
    except Exception as error:  # noqa: BLE001  whatever MONAI raises, our own measurement stands
        return f"{type(error).__name__}: {error}"


def described(device: str) -> dict[str, Any]:
    """Return what is to be known of a device."""
    if device == "cpu":
        return {"name": "no GPU"}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
    }


def checked(devices: list[str], *, smoke: bool) -> dict[str, Any]:
    """Return the whole report."""
    start, seen = monotonic(), gpu_system()
    settings = dict(list(SETTINGS.items())[:2]) if smoke else SETTINGS
    patch = Zyx(8, 16, 16) if smoke else Zyx(16, 128, 128)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "devices": [described(device) for device in devices],
        "machine": machine(LIBRARIES)
        | {"cuda": seen.cuda, "driver": seen.driver, "cudnn": torch.backends.cudnn.version()},
        "tests": run_tests(),
        "errors": errors(devices[0], patch, settings),
    }
    expected = engine_output("cpu", patch)
    outputs = [engine_output(device, patch) for device in devices]
    report["engine_errors"] = [float(np.abs(each - expected).max()) for each in outputs]
    report["devices_agree"] = all(each.tobytes() == outputs[0].tobytes() for each in outputs)
    report["speed"] = speeds(devices[0], settings, smoke=smoke, end=start + LIMIT_S - 120)
    report["seconds"] = monotonic() - start
    report["problems"] = problems(report)
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """Return what is wrong, a sentence each."""
    found = [f"test {name} failed" for name in report["tests"]["failed"]]
    exact = report["errors"]["float32"]
    # Also where it is NaN, which is not below anything.
    if "failed" in exact or not exact["largest"] <= LARGEST_ERROR:
        found.append(f"float32 differs from the CPU: {exact}; at most {LARGEST_ERROR} is right")
    for device, error in zip(report["devices"], report["engine_errors"], strict=True):
        if not error <= LARGEST_ERROR:
            text = f"the engine on {device['name']} differs from the CPU by {error:.2g}"
            found.append(f"{text}; at most {LARGEST_ERROR} is right")
    models = {device["name"] for device in report["devices"]}
    if len(models) == 1 and not report["devices_agree"]:
        found.append("two devices of one model compute different bytes")
    plain = report["speed"]["runs"]["float32"]
    found += [f"float32 was not timed: {plain['failed']}"] if "failed" in plain else []
    return found


def main() -> int:
    """Check, print, record; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="file of the results (default: named after it)")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)  # on the CPU, tiny
    arguments = parser.parse_args()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count and not arguments.smoke:
        why = "finds none" if torch.version.cuda else "is built without CUDA"
        say(
            f"gpu-check needs a CUDA device, and PyTorch {torch.__version__} {why}; nothing was run"
        )
        return 1
    devices = ["cpu"] if arguments.smoke else [f"cuda:{index}" for index in range(count)]
    report = checked(devices, smoke=arguments.smoke)
    name = "-".join(report["devices"][0]["name"].split())
    output = arguments.output or RESULTS / f"gpu-{name}-{report['date']}.json"
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    say(f"recorded in {output}")
    for problem in report["problems"]:
        say(f"problem: {problem}")
    return int(bool(report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
