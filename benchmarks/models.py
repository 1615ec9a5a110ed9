"""Networks of other formats: inference compared with the package that trained them.

    python benchmarks/models.py [--quick]

nnU-Net: the same model folder, the same image, one fold, no mirror images, on the CPU, each run
once. The time is that of the whole command, from the file of the image to the file of the labels.
The memory is the proportional set size of all its processes together, read every 0.1 s. For the
growth of the memory, chunkflow_py also labels an image of twice the size along each axis.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from processes import ROOT, say
from table import Line, as_text, at_least, at_most

sys.path.insert(0, str(ROOT / "tests" / "inference"))

PEER = ROOT / ".rigs" / "nnunet" / "bin"
CASE = "patch 64, at most 64 features"
FASTER, SMALLER, GROWTH = 1.5, 0.5, 1.1  # limits


@dataclass(frozen=True)
class Measured:
    """Wall time in seconds and peak memory in bytes."""

    wall_s: float
    peak_bytes: int


def measured(*commands: list[str], folder: Path, **environment: str) -> Measured:
    """Run commands one after the other in *folder*; return their time and peak memory.

    Raises:
        SystemExit: a command failed.
    """
    import psutil

    start, peak = perf_counter(), 0
    for argv in commands:
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                argv, cwd=folder, env=os.environ | environment, stdout=log, stderr=log
            )
            root = psutil.Process(process.pid)
            while process.poll() is None:
                total = 0
                for each in (root, *_children(root)):
                    try:
                        total += each.memory_full_info().pss
                    except psutil.Error:
                        continue  # it has just ended
                peak = max(peak, total)
                sleep(0.1)
        if process.returncode:
            raise SystemExit((folder / "log.txt").read_text()[-4000:])
    return Measured(perf_counter() - start, peak)


def _children(root: object) -> list[object]:
    import psutil

    try:
        return root.children(recursive=True)  # type: ignore[attr-defined,no-any-return]
    except psutil.Error:
        return []


def write_inputs(folder: Path, size: int) -> None:
    """Write the model folder, and an image of *size* voxels along each axis as NIfTI."""
    import nibabel
    import nnunet_models as models

    arguments = models._arguments(3, "n_conv_per_stage") | {
        "n_stages": 4,
        "features_per_stage": [16, 32, 64, 64],
        "kernel_sizes": [[3, 3, 3]] * 4,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [2, 2, 2, 2],
        "n_conv_per_stage_decoder": [2, 2, 2],
    }
    architecture = models._architecture("PlainConvUNet", arguments)
    configuration = models._configuration([64, 64, 64], ["CTNormalization"], **architecture)
    models.CASES[CASE] = {
        "configuration": ("3d_fullres", configuration),
        "transpose_forward": [0, 1, 2],
        "dataset": {
            "channel_names": {"0": "CT"},
            "labels": {"background": 0, "soma": 1, "glia": 2},
        },
        "mirror": (0, 1, 2),
        "folds": ("0",),
    }
    models.write_folder(folder / "model", CASE)
    image = np.random.RandomState(1).randint(1, 256, (size,) * 3).astype(np.uint8)
    (folder / "images").mkdir()
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), folder / "images" / "case_0000.nii.gz")


def ours(folder: Path) -> Measured:
    """Convert the image, run the network in tasks; the labels are in labels.zarr."""
    command = [sys.executable, "-m", "chunkflow_py", "--quiet"]
    imported = [*command, "import-model", "model", "--output", "model.zip"]
    subprocess.run(imported, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    tasks = ["--chunk-size", "64", "64", "64"]
    return measured(
        [*command, "convert", "images/case_0000.nii.gz", "zarr://image.zarr", "--max-mip", "0"],
        [*command, "generate-tasks", "--volume-path", "zarr://image.zarr", *tasks,
         "load-zarr", "--store", "image.zarr", "--expand-margin-size", "auto",
         "inference", "--framework", "nnunet", "--convnet-model", "model.zip", "--no-mirror",
         "--device", "cpu", "--backend", "torch", "--output-dtype", "argmax",
         "save-zarr", "--store", "labels.zarr", *tasks],
        folder=folder,
    )  # fmt: skip


def nnunet(folder: Path) -> Measured:
    """Run nnUNetv2_predict_from_modelfolder; the labels are in labels/case.nii.gz."""
    argv = [
        str(PEER / "nnUNetv2_predict_from_modelfolder"), "-i", "images", "-o", "labels",
        "-m", "model", "-f", "0", "--disable_tta", "-device", "cpu", "-npp", "1", "-nps", "1",
        "--disable_progress_bar",
    ]  # fmt: skip
    names = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
    return measured(argv, folder=folder, **dict.fromkeys(names, str(folder)))


def different_labels(folder: Path) -> float:
    """Return the part of the voxels whose labels differ."""
    import nibabel
    import zarr

    theirs = np.asarray(nibabel.load(folder / "labels" / "case.nii.gz").dataobj).transpose()
    found = np.asarray(zarr.open_group(folder / "labels.zarr", mode="r")["0"])
    return float((found.reshape(theirs.shape) != theirs).mean())


def main() -> None:
    """Run the comparison, and print a table with its limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="128 and 256 voxels, not 256 and 512")
    size = 128 if parser.parse_args().quick else 256
    section = f"nnU-Net, {size} x {size} x {size}, {CASE}"
    with tempfile.TemporaryDirectory() as temporary:
        one, eight = Path(temporary) / "one", Path(temporary) / "eight"
        for folder, extent in ((one, size), (eight, 2 * size)):
            folder.mkdir()
            write_inputs(folder, extent)
        say(f"chunkflow_py, {size}³")
        mine = ours(one)
        say(f"nnU-Net, {size}³")
        theirs = nnunet(one)
        differ = different_labels(one)
        say(f"chunkflow_py, {2 * size}³")
        large = ours(eight)
    lines = [
        Line(section, "nnUNetv2_predict", f"{theirs.wall_s:.1f} s"),
        Line(section, "chunkflow_py", f"{mine.wall_s:.1f} s"),
        at_least(section, "times as fast", theirs.wall_s / mine.wall_s, FASTER, "x"),
        Line(section, "memory of nnUNetv2_predict", f"{theirs.peak_bytes / 1e9:.2f} GB"),
        at_most(
            section, "memory of chunkflow_py", mine.peak_bytes, SMALLER * theirs.peak_bytes, "GB",
        ),
        at_most(
            section, "memory where the volume grows eightfold",
            large.peak_bytes / mine.peak_bytes, GROWTH, "x",
        ),
        Line(section, "voxels with another label", f"{differ:.2%}"),
    ]  # fmt: skip
    print(as_text(lines))


if __name__ == "__main__":
    main()
