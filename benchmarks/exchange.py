"""Tasks that exchange patches, beside one large task, tasks that do not, and chunkflow, in turn.

    python benchmarks/exchange.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

Counts are those of real workers (`exchange_counts.py`) with a network that counts. Times are those
of the FIB-25 network; the environment of chunkflow has to be there (`benchmarks/peers/build.py`),
and the S3 emulator (`tests/rigs/build.py`).
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from exchange_counts import chunkflow, digest_of_files, measure_counts, planned
from exchange_report import lines
from peers.build import python_of
from processes import ROOT, run_json
from recorded import Benchmark, add_run
from volumes import rigged
from volumes_cases import LATENCY_S

if TYPE_CHECKING:
    import argparse

    from records import Report
    from volumes import Rig

DATA = ROOT / "examples" / "fib25"
WORKERS = 8

Job = dict[str, Any]


def cases(*, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Return what is run, by name.

    Args:
        quick: fewer tasks and a smaller volume; nothing to be recorded.
    """
    # Tasks of 64x512x512 with patches of 20x256x256 and an overlap of 4x64x64, divided by 4 in z
    # and by 16 in y and x. 256 tasks are a slab of the checkerboard order for eight workers.
    counts = {
        "kind": "counts",
        "size": (32, 128, 128) if quick else (64, 256, 256),
        "task": (16, 32, 32),
        "patch": (5, 16, 16),
        "overlap": (1, 4, 4),
        "contestants": {
            "1 worker": {"workers": 1, "kills": 0, "exchange": "on"},
            "8 workers": {"workers": WORKERS, "kills": 0, "exchange": "on"},
            "8 workers, killed": {
                "workers": WORKERS,
                "kills": 4 if quick else 12,
                "exchange": "on",
            },
            "8 workers, no exchange": {"workers": WORKERS, "kills": 0, "exchange": "off"},
        },
        "rounds": 1,
    }
    small = (32, 120, 120)
    size = (64, 120, 120) if quick else (64, 240, 240)
    wall = {
        "kind": "time",
        "size": size,
        "task": small,
        "patch": (32, 64, 64),
        "overlap": (8, 16, 16),
        "latency_s": LATENCY_S,
        "contestants": {
            "one task": {"task": size, "exchange": "off"},
            "exchange": {"task": small, "exchange": "on"},
            "no exchange": {"task": small, "exchange": "off"},
            "exchange in a bucket": {"task": small, "exchange": "bucket"},
            "chunkflow": {"task": small, "grid": (1, 1, 1 if quick else 2)},
        },
    }
    return {"patches computed": counts, "FIB-25 network": wall}


# --- counts --------------------------------------------------------------------------------------


def count(rig: Rig, case: Job, contestant: str) -> Job:
    """Count the patches that the workers of a run compute."""
    folder = rig.folder / "counts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return measure_counts(folder, case, contestant)


# --- times ---------------------------------------------------------------------------------------


def pipeline_of(case: Job, task: tuple[int, ...], source: str, target: str) -> list[str]:
    """Return the arguments of our pipeline for tasks of one size."""
    size, patch, overlap = ([*map(str, each)] for each in (task, case["patch"], case["overlap"]))
    return [
        *("generate-tasks", "--volume-path", source, "--chunk-size", *size),
        *("load-precomputed", "--volume-path", source, "--expand-margin-size", "auto"),
        *("inference", "--framework", "pytorch", "--num-output-channels", "3"),
        *("--convnet-model", str(DATA / "unet_fib25_model.py")),
        *("--convnet-weight-path", str(DATA / "unet_fib25.pt"), "--output-dtype", "uint8"),
        *("--input-patch-size", *patch, "--output-patch-overlap", *overlap),
        *("save-precomputed", "--volume-path", target),
    ]


def pipeline_of_chunkflow(case: Job, source: str, target: str) -> list[str]:
    """Return the arguments for chunkflow, with the margin that its ``setup-env`` chooses.

    That is the overlap of patches, so that a task blends its border with patches beyond it. It runs
    the first tasks only, as all have the same number of patches.
    """
    grid = [*map(str, case["contestants"]["chunkflow"]["grid"])]
    size, patch, overlap = (
        [*map(str, case[key])] for key in ("task", "patch", "overlap")
    )  # fmt: skip
    return [
        *("generate-tasks", "-s", "0", "0", "0", "-g", *grid, "-c", *size),
        *("load-precomputed", "-v", source, "-e", *overlap),
        *("inference", "-f", "pytorch", "-m", str(DATA / "unet_fib25_model.py")),
        *("-w", str(DATA / "unet_fib25.pt"), "-s", *patch, "-v", *overlap, "-c", "3"),
        *("--mask-output-chunk", "crop-margin", "--crop-bbox", "save-precomputed", "-v", target),
    ]


def time_it(rig: Rig, case: Job, contestant: str) -> Job:
    """Run the FIB-25 network on the volume."""
    source, output = rig.folder / "source", rig.folder / "target"
    shutil.rmtree(output, ignore_errors=True)
    block = ["--block-size", *map(str, case["task"])]
    if not source.exists():
        image = ("--file-name", str(DATA / "raw.h5"), "--voxel-offset", "0", "0", "0")
        cut = ("--cutout-start", "0", "0", "0", "--cutout-size", *map(str, case["size"]))
        save = ("save-precomputed", "--volume-path", f"file://{source}", *block)
        chunkflow("load-h5", *image, *cut, *save)
    urls = (f"file://{source}", f"file://{output}")
    how = case["contestants"][contestant]
    pipeline = pipeline_of(case, how["task"], *urls)
    estimate = {} if how.get("exchange", "off") == "off" else planned(pipeline, 1)
    size = ("--volume-size", *map(str, case["size"]), "--voxel-size", "10", "10", "10")
    info = ("--data-type", "uint8", "--channel-num", "3", *block)
    chunkflow("create-info", "--volume-path", f"file://{output}", *size, *info)
    if contestant == "chunkflow":
        line = pipeline_of_chunkflow(case, *urls)
        return run_json(python_of("chunkflow"), "run_line_chunkflow.py", {"line": line})
    job = {"line": pipeline, "folder": str(rig.folder)}
    with ExitStack() as stack:
        requests: Any = None
        if how["exchange"] == "bucket":
            if rig.faults is None:
                return {"error": "the S3 emulator is not there; make rigs"}
            how = how | {"exchange": f"s3://{_bucket(rig)}/parts"}
            requests = stack.enter_context(rig.faults({"type": "latency", "s": case["latency_s"]}))
        job["exchange"] = how["exchange"]
        found = run_json(sys.executable, "run_exchange_ours.py", job, environment=rig.variables)
        if "error" in found:
            return found
        if requests is not None:
            found["requests"] = _by_method(requests.log())
    return {**found, **estimate, "digest": digest_of_files(output)}


def _bucket(rig: Rig) -> str:
    """Return the name of a new bucket."""
    from rigs.s3 import make_bucket  # type: ignore[import-not-found]

    rig.faults.set()
    return str(make_bucket(rig.endpoint))


def _by_method(log: list[Job]) -> dict[str, int]:
    """Return the number of requests by method."""
    found: dict[str, int] = {}
    for request in log:
        method = "LIST" if "list-type" in request["path"] else request["method"]
        found[method] = found.get(method, 0) + 1
    return found


def geometry_of(case: Job) -> Job:
    """Return the numbers of patches and tasks of a case, by the package's own geometry.

    Returns:
        ``distinct``: patches of the volume; ``apart``: patches of all tasks, each for itself;
        ``tasks``.
    """
    from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
    from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid

    patch, overlap, task = (Zyx(*case[key]) for key in ("patch", "overlap", "task"))
    domain = BoundingBox.from_size((0, 0, 0), case["size"])
    grid = PatchGrid(PatchGeometry(patch, patch, overlap), domain)
    tasks = BoxGrid.covering(domain, task)
    return {
        "distinct": grid.count(domain).product(),
        "apart": sum(grid.count(box).product() for box in tasks),
        "tasks": len(tasks),
    }


# --- the whole -----------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run the cases of the report, and add their runs."""
    for case in report["cases"].values():
        case["geometry"] = geometry_of(case)
    with rigged(arguments.folder) as rig:
        os.sched_setaffinity(0, rig.processors)
        for name, case in report["cases"].items():
            run = count if case["kind"] == "counts" else time_it
            for number in range(min(arguments.rounds, case.get("rounds", arguments.rounds))):
                for contestant in case["contestants"]:
                    add_run(report, name, contestant, number, run(rig, case, contestant))
    shutil.rmtree(arguments.folder)


BENCHMARK = Benchmark(
    name="exchange",
    script="exchange.py",
    purpose=__doc__,
    libraries=("numpy", "torch", "obstore"),
    cases=cases,
    lines=lines,
    fills="for volumes and runs; 1 GB, removed",
    quick="one round, small volumes",
)

if __name__ == "__main__":
    BENCHMARK.run(measure)
