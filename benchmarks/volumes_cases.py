"""What the benchmark of volumes runs: settings by name, and the lines of commands.

| kind    | what                                    | contestants                                 |
|---------|-----------------------------------------|---------------------------------------------|
| storage | one volume written or read at once      | this package, libraries, with sync and not  |
| line    | load, infer, save, task by task         | this package, with lanes or not, chunkflow  |
| convert | image files to OME-Zarr with levels     | this package, tifffile with dask and zarr   |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 2
BLOCK = (64, 128, 128)
LATENCY_S = 0.05
ZSTD_LEVEL = 3
PROGRAM = "ours"
SYNCED = "ours, on the disk"
# A peer between two of ours: whatever disturbs the machine for a while disturbs all alike.
_WRITERS = {
    "zarr": (SYNCED, "tensorstore, on the disk", PROGRAM, "tensorstore", "zarrs", "zarr"),
    "raw": (SYNCED, "tensorstore, on the disk", PROGRAM, "tensorstore", "cloud-volume"),
    "gzip": (SYNCED, "cloud-volume", PROGRAM, "cloud-volume x 2"),
}
_READERS = {
    "zarr": ("tensorstore", PROGRAM, "zarrs", "zarr"),
    "raw": ("tensorstore", PROGRAM, "cloud-volume"),
    "gzip": ("cloud-volume", PROGRAM, "cloud-volume x 2"),
}
_WRITERS["sharded"], _READERS["sharded"] = _WRITERS["zarr"], _READERS["zarr"]
FORMATS = {
    "zarr": "zarr v3, zstd",
    "sharded": "zarr v3, zstd, sharded",
    "raw": "precomputed, raw",
    "gzip": "precomputed, gzip",
}
# Whose volume all contestants read.
WRITERS_OF_WHAT_IS_READ = {
    "zarr": "tensorstore",
    "sharded": "tensorstore",
    "raw": "cloud-volume",
    "gzip": "cloud-volume",
}
CHECKERS = {"zarr": "zarr", "sharded": "zarr", "raw": "cloud-volume", "gzip": "cloud-volume"}
LANES, NO_LANES = "ours", "ours --ahead 0"
TWO_PROCESSES = "ours, on the disk, --processes 2"
HALF = "ours, on the disk, half of the pages"
CONVERT_PEER = "tifffile, dask, zarr"


def cases(*, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Return what is run: settings by name.

    Args:
        quick: an eighth of the voxels, one repeat fewer minutes; nothing to be recorded.
    """
    result = {}
    size = (256, 512, 512) if quick else (512, 1024, 1024)
    for kind, title in FORMATS.items():
        for operation in ("write", "read"):
            result[f"{operation} {title}"] = {
                "kind": "storage",
                "operation": operation,
                "format": kind,
                "size": size,
                "block": BLOCK,
                "shard": (128, 256, 256) if quick else (128, 512, 512),
                "level": ZSTD_LEVEL,
                "threads": THREADS,
                "order": (_WRITERS if operation == "write" else _READERS)[kind],
            }
    return {**result, **_line_cases(quick=quick), **_convert_cases(quick=quick)}


def _convert_cases(*, quick: bool) -> dict[str, dict[str, Any]]:
    # Half of the pages are seven tasks, which fill all stages of the pipeline.
    size = (448, 256, 256) if quick else (448, 1536, 1536)
    common = {
        "kind": "convert",
        "size": size,
        "block": (32, 64, 64),
        "factor": (1, 2, 2),
        "levels": 2,
        "threads": THREADS,
    }
    return {
        "convert TIFF pages": {
            **common,
            "file": "pages",
            "order": (SYNCED, CONVERT_PEER, PROGRAM, TWO_PROCESSES, HALF),
        },
        "convert OME-TIFF": {
            **common,
            "file": "image.ome.tif",
            "order": (SYNCED, CONVERT_PEER, PROGRAM, TWO_PROCESSES),
        },
    }


def _line_cases(*, quick: bool) -> dict[str, dict[str, Any]]:
    task = (64, 256, 256) if quick else (64, 512, 512)
    # 2 x 2 x 2 tasks
    common = {"kind": "line", "size": tuple(2 * n for n in task), "task": task, "channels": 1}
    # The geometry of chunkflow, patches counted from the chunk's corner: the same work for both.
    same = ("--framework", "identity", "-s", "20", "256", "256", "-v", "4", "64", "64")
    whole = ("--framework", "identity", "-s", "16", "256", "256", "-v")
    rows: dict[str, dict[str, Any]] = {}
    for channels in (1, 3):
        rows[f"line on local disk, identity, {channels} channel{'s' * (channels > 1)}"] = {
            "place": "disk",
            "inference": same,
            "channels": channels,
            "order": (LANES, "chunkflow", NO_LANES),
        }
    # Without overlap identity takes about as long as the 16 blocks of a task behind 50 ms.
    for name, overlap in (("equal lanes", "0 0 0"), ("a longer network", "12 128 128")):
        rows[f"line on a bucket, identity, {name}"] = {
            "place": "bucket",
            "inference": (*whole, *overlap.split()),
            "equal": name == "equal lanes",
            "order": (LANES, NO_LANES),
        }
    rows["line on local disk, RSUNet"] = {
        "place": "disk",
        "network": "rsunet_8_48",
        "inference": ("-s", "20", "256", "256", "-v", "4", "64", "64"),
        "channels": 3,
        "order": (LANES,),
    }
    return {name: {**common, **row} for name, row in rows.items()}


def line_of(
    case: dict[str, Any], contestant: str, source: str, target: str, models: Path
) -> list[str]:
    """Return the words of the command line, without ``chunkflow``.

    Args:
        case: settings.
        contestant: who is to run it.
        source: URL of the volume to read.
        target: URL of the volume to write.
        models: folder of the networks.
    """
    ours = contestant != "chunkflow"
    inference = [*case["inference"], "-c", str(case["channels"])]
    save = ["save-precomputed", "-v", target]
    if "network" in case:
        inference += ["-m", str(models / f"{case['network']}.py"), "-f", "pytorch"]
    margin = ["--expand-margin-size", "auto"] if "network" in case else []
    if not margin:
        inference += ["--mask-output-chunk", *(["--grid", "chunk"] if ours else [])]
    if ours:
        inference += ["--output-dtype", "uint8"]
    return [
        *(["--ahead", "0"] if contestant == NO_LANES else []),
        *("generate-tasks", "-v", source, "-c", *map(str, case["task"])),
        *("load-precomputed", "-v", source, *margin),
        *("inference", *inference),
        *save,
    ]


def lines_before(case: dict[str, Any], source: str, copy: str, target: str) -> list[list[str]]:
    """Return the lines that copy *source* and create *target*, which is alike."""
    block, size = [*map(str, BLOCK)], [*map(str, case["size"])]
    about = ["-d", "uint8", "-s", "8", "8", "8", "-c", str(case["channels"])]
    return [
        ["load-precomputed", "-v", source, "save-precomputed", "-v", copy, "--block-size", *block],
        ["create-info", "-v", target, "-z", *size, "-b", *block, *about],
    ]
