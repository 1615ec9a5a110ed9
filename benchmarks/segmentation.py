"""Segmentation of affinities: segment-affinity compared with waterz, and the growth of its graph.

    python benchmarks/segmentation.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

The affinities are those of the FIB-25 network, repeated to the size of the case.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import ROOT, run_json, say
from recorded import Benchmark, add_run
from segmentation_report import lines

if TYPE_CHECKING:
    import argparse

    from records import Report

Job = dict[str, Any]

DATA = ROOT / "examples" / "fib25"
THRESHOLD = 0.9  # the best one for these affinities, see docs/labels.md
FILES = {"unet_fib25_model.py", "unet_fib25.pt", "raw.h5"}


def cases(*, quick: bool = False) -> dict[str, Job]:
    """Return what is run, by name.

    Args:
        quick: a small volume; nothing to be recorded.
    """
    # Tasks of a power of two of the volume: level 1 has eight boxes, level 2 is the whole.
    size, task = ((64, 128, 128), (16, 32, 32)) if quick else ((256, 1024, 1024), (64, 256, 256))
    contestants: dict[str, Job] = {
        "waterz": {"script": "run_segment_waterz.py", "processes": 1},
        "1 process": {"script": "run_segment_ours.py", "processes": 1},
        "2 processes": {"script": "run_segment_ours.py", "processes": 2},
    }
    return {
        "repeated FIB-25 affinities": {
            "size": size,
            "task": task,
            "threshold": THRESHOLD,
            "contestants": contestants,
        }
    }


def predicted(folder: Path) -> Path:
    """Return the affinities of the shipped image, (3, 100, 250, 250) uint8, as an npy file."""
    import numpy as np

    from chunkflow_py import open_volume, predict

    contents = b"".join((DATA / name).read_bytes() for name in sorted(FILES))
    path = folder / f"affinity-{hashlib.sha256(contents).hexdigest()[:8]}.npy"
    if not path.exists():
        say("computing the affinities of the shipped image")
        image = open_volume(str(DATA / "raw.h5"))
        affinity = predict(
            image.read(image.bounds), DATA / "unet_fib25_model.py",
            weights=DATA / "unet_fib25.pt", patch_size=(32, 64, 64), overlap=(8, 16, 16),
            grid="padded", output_kind="affinity",
        )  # fmt: skip
        np.save(path, np.rint(np.asarray(affinity) * 255).astype(np.uint8))
    return path


def repeated(folder: Path, size: tuple[int, ...], task: tuple[int, ...]) -> Path:
    """Return a zarr volume of the affinities, repeated along each axis, uint8."""
    import numpy as np

    from chunkflow_py import BoundingBox, Chunk, open_volume
    from chunkflow_py.cli.main import main

    path = folder / f"affinity-{'-'.join(map(str, size))}.zarr"
    if path.exists():
        return path
    pattern = np.load(predicted(folder))
    say(f"writing {path.name}")
    making = folder / "making.zarr"
    shutil.rmtree(making, ignore_errors=True)
    sys.argv[1:] = [
        "--quiet", "create-volume", "--volume-path", f"zarr://{making}", "--volume-size",
        *map(str, size), "--data-type", "uint8", "--channel-num", "3", "--voxel-size", "10", "10",
        "10", "--block-size", *map(str, task),
    ]  # fmt: skip
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    volume = open_volume(str(making), mode="r+")
    for start in range(0, size[0], task[0]):
        box = BoundingBox((start, 0, 0), (min(start + task[0], size[0]), *size[1:]))
        places = [np.arange(a, b) % n for a, b, n in zip(
            box.start, box.stop, pattern.shape[1:], strict=True
        )]  # fmt: skip
        part = pattern[:, places[0]][:, :, places[1]][:, :, :, places[2]]
        volume.write(Chunk(part, voxel_offset=box.start))
    making.rename(path)
    return path


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run the cases of the report, and add their runs."""
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in report["cases"].items():
        source = repeated(folder, tuple(case["size"]), tuple(case["task"]))
        for number in range(arguments.rounds):
            for contestant, how in case["contestants"].items():
                job = {"source": str(source), "folder": str(folder), **case, **how}
                del job["contestants"]
                add_run(
                    report, name, contestant, number, run_json(sys.executable, how["script"], job)
                )


BENCHMARK = Benchmark(
    name="segmentation",
    script="segmentation.py",
    purpose=__doc__,
    libraries=("numpy", "numba", "connected-components-3d", "waterz"),
    cases=cases,
    lines=lines,
    fills="for the volumes; 6 GB",
    quick="one round, a small volume",
)

if __name__ == "__main__":
    BENCHMARK.run(measure)
