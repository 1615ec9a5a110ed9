"""Inference beside its limits and beside its peers, which run in turn with it on this machine.

    python benchmarks/inference.py [--rounds 3] [--threads N] [--quick] [--only NAME] [--write-docs]

Every measurement is a process of its own, so that peak memory and warm caches are its own. The
environments of the peers have to be there: `benchmarks/peers/build.py` makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from inference_report import lines
from page import write_between
from peers.build import python_of
from processes import HERE, RESULTS, ROOT, TIME_LIMIT_S, run_json, say
from recorded import NOTHING_RECORDED, add_run, new_report, read_json, selected, write_json
from table import as_markdown, as_text

PAGE = ROOT / "docs" / "benchmarks.md"

PATCH, OVERLAP = (20, 256, 256), (4, 64, 64)
MODELS = ("rsunet_28_80", "rsunet_16_96", "rsunet_8_48")
SHIPPED = ROOT / "examples" / "fib25"
VARIANTS = (
    ("torch", "float32"),
    ("openvino", "float32"),
    ("torch", "bfloat16"),
    ("openvino", "bfloat16"),
)
# A peer between two of ours: whatever disturbs the machine for a while disturbs all alike.
NETWORK_ORDER = (
    "ours torch float32",
    "chunkflow",
    "ours openvino float32",
    "monai",
    "ours openvino bfloat16",
    "ours torch bfloat16",
)
IDENTITY_ORDER = ("ours torch float32", "chunkflow", "monai")
LIBRARIES = ("torch", "numpy", "openvino")


def cases(*, quick: bool, smoke: bool) -> dict[str, dict[str, Any]]:
    """Return what is run: settings by name. Large chunks get a third of the rounds."""
    patch, overlap = ((20, 64, 64), (4, 16, 16)) if smoke else (PATCH, OVERLAP)
    small, large = ((36, 112, 112), (52, 112, 112)) if smoke else ((36, 448, 448), (64, 768, 768))
    blend = (36, 256, 256) if smoke else (128, 1024, 1024)
    shallow, deep = (
        ((40, 256, 256), (160, 256, 256)) if smoke else ((64, 1024, 1024), (256, 1024, 1024))
    )
    common = {"patch": patch, "overlap": overlap}
    result: dict[str, dict[str, Any]] = {}
    for model in MODELS:
        # Between the two others, so its large chunk would tell nothing new in ten more minutes.
        for size in (small,) if quick or model == MODELS[1] else (small, large):
            result[f"{model} {name_of(size)}"] = {
                "kind": "network",
                "model": model,
                "size": size,
                "channels": 3,
                "order": NETWORK_ORDER,
                "large": size == large,
                **common,
            }
    for channels in (1, 3):
        result[f"identity {name_of(blend)}, {channels} channel{'s' * (channels > 1)}"] = {
            "kind": "identity",
            "model": "identity",
            "size": blend,
            "channels": channels,
            "order": IDENTITY_ORDER,
            "large": False,
            **common,
        }
    for size in (shallow, deep):
        result[f"workspace {name_of(size)}, 3 channels, uint8"] = {
            "kind": "workspace",
            "model": "identity",
            "size": size,
            "channels": 3,
            "output_dtype": "uint8",
            "order": IDENTITY_ORDER[:1],
            "large": False,
            **common,
        }
    return result


def name_of(size: tuple[int, ...]) -> str:
    """Return a size as it stands in the table."""
    return "x".join(str(s) for s in size)


def rounds_of(case: dict[str, Any], rounds: int) -> int:
    """Return how often a case is run."""
    return max(1, rounds // 3) if case["large"] else rounds


# --- processes -----------------------------------------------------------------------------------


def run_contestant(contestant: str, case: dict[str, Any]) -> dict[str, Any]:
    """Run one contestant on one case."""
    if contestant in {"chunkflow", "monai"}:
        return run_json(python_of(contestant), f"run_{contestant}.py", case)
    _, backend, dtype = contestant.split()
    return run_json(
        sys.executable, "run_chunkflow_py.py", {**case, "backend": backend, "dtype": dtype}
    )


def measure_errors(*, smoke: bool) -> dict[str, Any]:
    """Return the error of each precision and backend, of random and of trained networks."""
    result = {}
    patch = (20, 64, 64) if smoke else PATCH
    for model in MODELS:
        job = {"model": model, "patch": patch, "variants": VARIANTS[1:]}
        name = f"{model}, random weights, random voxels"
        result[name] = run_json(sys.executable, "run_errors.py", job)
    job = {
        "path": str(SHIPPED / "unet_fib25_model.py"),
        "weights": str(SHIPPED / "unet_fib25.pt"),
        "image": str(SHIPPED / "raw.h5"),
        "patch": (48, 128, 128),
        "variants": VARIANTS[1:],
    }
    name = "the trained network of examples/fib25 on its image"
    result[name] = run_json(sys.executable, "run_errors.py", job)
    return {name: run.get("errors", run) for name, run in result.items()}


def measure_gpu() -> dict[str, Any]:
    """Return what `inference_gpu.py` reports, run where MONAI is."""
    python = python_of("monai")
    command = [str(python if python.exists() else sys.executable), str(HERE / "inference_gpu.py")]
    done = subprocess.run(
        [*command, "--json"], check=False, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    if done.returncode:
        return {"note": done.stderr.strip().splitlines()[-1][:200]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def forecast_minutes(
    chosen: dict[str, dict[str, Any]], rounds: int, arithmetic: dict[str, Any]
) -> float:
    """Return about how long the cases will take.

    From the machine's own speed of multiplication, of which peers reach some 0.45 in a network and
    this package some 0.75, bare forwards included; from measured speeds for the rest.
    """
    rate = arithmetic.get("operations_per_s", {}).get("float32", 2e11)
    seconds = 0.0
    for case in chosen.values():
        start = len(case["order"]) * 6.0
        sizes = zip(case["size"], case["patch"], case["overlap"], strict=True)
        patches = 1.0
        for size, patch, overlap in sizes:
            patches *= -(-(size - overlap) // (patch - overlap))
        if case["kind"] == "network":
            forward = arithmetic.get("operations", {}).get(case["model"], 6e11) / rate
            ours = patches + min(patches, 8)
            work = forward * (2 * patches / 0.4 + ours * (2 / 0.75 + 2 / 1.5))
        else:
            work = case["channels"] * patches * 0.015 * len(case["order"])
        seconds += rounds_of(case, rounds) * (start + work)
    return seconds / 60 + 2


# --- the whole -----------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for and return the report."""
    allowed = sorted(os.sched_getaffinity(0))
    if arguments.threads:
        os.sched_setaffinity(0, allowed[: arguments.threads])
    chosen = selected(cases(quick=arguments.quick, smoke=arguments.smoke), arguments.only)
    patch = next(iter(cases(quick=True, smoke=arguments.smoke).values()))["patch"]
    job = {"models": MODELS, "patch": patch}
    arithmetic = run_json(sys.executable, "run_arithmetic.py", job)
    report = new_report("inference.py", LIBRARIES, arguments.rounds, chosen, arithmetic=arithmetic)
    minutes = forecast_minutes(chosen, arguments.rounds, arithmetic)
    threads = report["machine"]["threads"]
    say(f"cases: {len(chosen)}, on {threads} threads: about {minutes:.0f} minutes")
    report["errors"] = measure_errors(smoke=arguments.smoke) if arguments.only in "errors" else {}
    report["gpu"] = measure_gpu() if arguments.only in "gpu" else {}
    # Large chunks last: what is interrupted has the rest.
    for name, case in sorted(chosen.items(), key=lambda item: item[1]["large"]):
        for number in range(rounds_of(case, arguments.rounds)):
            for contestant in case["order"]:
                add_run(report, name, contestant, number, run_contestant(contestant, case))
                if arguments.unfinished:
                    write_json(report, arguments.unfinished)
    return report


def documented(results: list[Path]) -> str:
    """Return machine, versions and table of each file of results."""
    parts = []
    for path in results:
        report = read_json(path)
        about = report["machine"]
        parts.append(
            f"\n### On {about['threads']} of {about['cores']} processors\n\n"
            f"`{report['command']}`\n\n"
            f"{about['processor']} ({', '.join(about['instructions'])}), "
            f"{about['memory_gb']} GB; Python {about['python']}, torch {about['torch']}, "
            f"OpenVINO {about['openvino']}, NumPy {about['numpy']}. Medians of {report['rounds']} "
            f"interleaved rounds; large chunks run in a third of the rounds, but at least in one. "
            f"Recorded in `benchmarks/results/{path.name}`.\n\n"
            f"{as_markdown(lines(report))}\n"
        )
    return "".join(parts) or NOTHING_RECORDED


def main() -> None:
    """Measure, print the table, and write the results of a whole run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of small chunks (default 3)")
    parser.add_argument("--threads", type=int, help="processors to use (default: all allowed)")
    parser.add_argument("--quick", action="store_true", help="one round, small chunks only")
    parser.add_argument("--only", default="", help="cases whose name holds this, errors, or gpu")
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--unfinished", type=Path, help="where what there is goes after each run")
    parser.add_argument("--write-docs", action="store_true", help="only rewrite docs/benchmarks.md")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does everything run?")
    arguments = parser.parse_args()
    if arguments.write_docs:
        write_between(PAGE, documented(sorted(RESULTS.glob("inference*.json"))))
        return
    if arguments.quick or arguments.smoke:
        arguments.rounds = 1
    report = measure(arguments)
    output = arguments.output
    if output is None and not (arguments.quick or arguments.smoke or arguments.only):
        threads = f"-threads-{arguments.threads}" if arguments.threads else ""
        output = RESULTS / f"inference{threads}.json"
    if output is not None:
        write_json(report, output)
        say(f"recorded in {output}")
        if output.parent == RESULTS:
            write_between(PAGE, documented(sorted(RESULTS.glob("inference*.json"))))
    print(as_text(lines(report)))


if __name__ == "__main__":
    main()
