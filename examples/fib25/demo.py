"""Segment the neurons of the shipped electron microscopy volume, and score the result.

Run by `make demo`, or by hand from any folder; results go to demo-output/ beside the README.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py import Chunk

ROOT = Path(__file__).resolve().parents[2]
DATA = "examples/fib25"
OUT = "demo-output"
WORK = f"{OUT}/segmentation.segment"  # intermediate results of segment-affinity

# Slices that the network was not trained on, and the thresholds that are best for them.
REGION = "160-180_0-250_0-250"
SEGMENTS_AT, COMPONENTS_AT, CONNECTIVITY = 0.88, 0.86, 26

AFFINITIES = f"""
chunkflow --progress
  load-h5 --file-name {DATA}/raw.h5
  inference --framework pytorch --output-kind affinity --output-name affinity
    --convnet-model {DATA}/unet_fib25_model.py --convnet-weight-path {DATA}/unet_fib25.pt
    --input-patch-size 96 128 128 --output-patch-size 64 96 96 --output-patch-overlap 16 16 16
    --grid padded
  save-zarr --input-name affinity --store {OUT}/affinity.zarr
"""

SEGMENTS = f"""
chunkflow --quiet segment-affinity {OUT}/affinity.zarr precomputed://file://{OUT}/segmentation
  --task-size 50 128 128 --block-size 50 64 64 --processes 2 --threshold {SEGMENTS_AT}
"""

SCORES = f"""
chunkflow --quiet load-zarr --store {OUT}/affinity.zarr --output-name affinity
  connected-components --input-name affinity --output-name components
    --threshold {COMPONENTS_AT} --connectivity {CONNECTIVITY}
  load-precomputed --volume-path precomputed://file://{OUT}/segmentation
    --output-name segmentation
  load-h5 --file-name {DATA}/groundtruth.h5 --output-name groundtruth
  evaluate-segmentation --segmentation-name components --bbox {REGION} --relabel
  evaluate-segmentation --segmentation-name segmentation --bbox {REGION} --relabel
    --json {OUT}/score.json
"""

VIEW = f"""
chunkflow load-h5 --file-name {DATA}/raw.h5 --output-name raw
  load-zarr --store {OUT}/affinity.zarr --output-name affinity
  load-precomputed --volume-path precomputed://file://{OUT}/segmentation --output-name segmentation
  neuroglancer --inputs raw,affinity,segmentation --open
"""


def pasteable(command: str) -> str:
    """Return *command* with a backslash at each end of line, for a shell."""
    return " \\\n".join(command.strip().splitlines())


def run(command: str) -> None:
    """Print *command* as it would be typed, and run it in the top folder."""
    say(pasteable(command) + "\n")
    program = Path(sys.executable).parent
    search = os.pathsep.join([str(program), os.environ.get("PATH", "")])
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=os.environ | {"PATH": search}, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)


def say(text: str) -> None:
    """Print at once, so that the lines keep their order among those that a command prints."""
    print(text, flush=True)


def sweep(affinity: Chunk, truth: Chunk) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the scores of both methods at many thresholds, by method.

    Args:
        affinity: (3, z, y, x) in [0, 1].
        truth: (z, y, x) labels.
    """
    from chunkflow_py import BoundingBox, open_volume
    from chunkflow_py.ops.evaluate_segmentation import evaluate_segmentation
    from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean
    from chunkflow_py.segmentation.agglomeration.hierarchy import Segments, cut
    from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_hierarchy
    from chunkflow_py.segmentation.labels.components import connected_components
    from chunkflow_py.segmentation.labels.label_table import LabelTable, relabelled
    from chunkflow_py.store import open_store

    region = BoundingBox.parse(REGION)

    def score(labels: np.ndarray) -> dict[str, Any]:
        return evaluate_segmentation(affinity.with_array(labels), truth, region, relabel=True)

    def components() -> Iterator[tuple[str, dict[str, Any]]]:
        mean = affinity.array.mean(axis=0, dtype=np.float32)
        for connectivity in (6, 26):
            for step in (*range(60, 80, 4), *range(80, 92, 2), 95):
                labels = connected_components(mean, step / 100, connectivity)
                yield f"> {step / 100:.2f}, {connectivity}-connected", score(labels)

    def segments() -> Iterator[tuple[str, dict[str, Any]]]:
        hierarchy, table = (open_store(f"{WORK}/{name}") for name in ("hierarchy", "fragment-ids"))
        volume = open_volume(f"{WORK}/fragments.zarr")
        fragments = relabelled(volume.read(volume.bounds).array, LabelTable(table))
        merges, settings = read_hierarchy(hierarchy)
        for step in (0.3, 0.5, 0.7, 0.8, 0.83, 0.85, 0.87, 0.88, 0.89, 0.9, 0.91, 0.92, 0.95):
            segments = Segments(cut(merges, least_mean(step, settings.dtype)))
            yield f"{step:.2f}", score(segments(fragments))

    return {
        "connected components of the mean affinity": list(components()),
        "agglomeration, threshold": list(segments()),
    }


def report(scores: dict[str, list[tuple[str, dict[str, Any]]]]) -> None:
    """Print both sweeps and the two best cases side by side."""
    head = f"{'VOI split':>10}{'merge':>8}{'sum':>8}   {'Rand split':>10}{'merge':>8}{'error':>8}"
    keys = ("voi_split", "voi_merge", "voi", "rand_split", "rand_merge", "adapted_rand_error")

    def row(name: str, score: dict[str, Any]) -> str:
        cells = [f"{score[key]:.3f}" for key in keys]
        return f"  {name:<48}{cells[0]:>10}{cells[1]:>8}{cells[2]:>8}   " + (
            f"{cells[3]:>10}{cells[4]:>8}{cells[5]:>8}"
        )

    best = []
    for method, rows in scores.items():
        say(f"{method:<50}{head}")
        for name, score in rows:
            say(row(name, score))
        say("")
        name, score = min(rows, key=lambda item: item[1]["voi"])
        best.append((f"{method.split(',', maxsplit=1)[0]}, {name}", score))
    say(f"{'each at its best threshold':<50}{head}")
    for name, score in best:
        say(row(name.replace("connected components of the mean affinity,", "components"), score))
    before, after = (score["voi"] for _, score in best)
    say(
        f"\nVariation of information, split + merge: {after:.3f} bits against {before:.3f} of "
        f"connected components, {after / before:.2f} of it (0 is perfect).\n"
        f"These are slices 160 to 180, which the network was not trained on. The thresholds were "
        f"chosen\non these same slices, so both are best cases; see {DATA}/README.md."
    )


def colours(segmentation: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return one colour a label (n, 3), so that a segment looks like the body that it covers.

    The largest segment of a body takes its colour; any other gets one of its own.
    """
    rng = np.random.default_rng(5)
    of_truth = rng.uniform(0.25, 1, (int(truth.max()) + 1, 3))
    of_segments = rng.uniform(0.25, 1, (int(segmentation.max()) + 1, 3))
    pairs, counts = np.unique(
        np.stack([segmentation.ravel(), truth.ravel()]), axis=1, return_counts=True
    )
    painted: set[int] = set()
    taken: set[int] = set()
    for segment, body in pairs[:, np.argsort(-counts)].T:
        if segment not in painted and body not in taken:
            of_segments[segment] = of_truth[body]
            taken.add(body)
        painted.add(segment)  # by the body that it covers most, or not at all
    of_truth[0] = of_segments[0] = 0
    return of_segments, of_truth


def figure(path: Path, raw: Chunk, affinity: Chunk, segmentation: Chunk, truth: Chunk) -> None:
    """Draw one section (z, y, x chunks over the same box) in four panels."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    from chunkflow_py.segmentation.labels.components import renumber

    z = 170
    at = z - raw.voxel_offset.z
    grey, sections = raw.array[at], (segmentation.array[at], renumber(truth.array[at]))
    luts = colours(*sections)
    shade = 0.35 + 0.65 * grey[..., None] / 255
    panels = {
        "raw": np.repeat(grey[..., None], 3, axis=-1),
        "affinity (x, y, z as red, green, blue)": affinity.array[:, at].transpose(1, 2, 0),
        "segmentation": luts[0][sections[0]] * shade,
        "ground truth": luts[1][sections[1]] * shade,
    }
    drawing, axes = pyplot.subplots(1, 4, figsize=(14, 3.9), layout="constrained")
    for axis, (title, image) in zip(axes, panels.items(), strict=True):
        axis.imshow(np.clip(image, 0, 1) if image.dtype != np.uint8 else image)
        axis.set_title(title, fontsize=10)
        axis.set_axis_off()
    drawing.suptitle(f"FIB-25, slice {z}, {grey.shape[1] * raw.voxel_size_nm[2] / 1000:g} µm wide")
    drawing.savefig(path, dpi=100)
    pyplot.close(drawing)


def main() -> None:
    """Run the pipeline, then report scores."""
    begin = time.perf_counter()
    out = ROOT / OUT
    for name in ("affinity.zarr", "segmentation", Path(WORK).name):
        shutil.rmtree(out / name, ignore_errors=True)
    say("From raw electron microscopy to neurons (1 to 2 minutes). To run these commands yourself,")
    say(
        "run `. .venv/bin/activate` in this folder first. Affinities between neighbouring voxels:\n"
    )
    run(AFFINITIES)
    say("\nSegments, task by task; the size of the tasks does not change a byte of the result:\n")
    run(SEGMENTS)
    say("\nScores against ground truth, of connected components and of the segments:\n")
    run(SCORES)

    from chunkflow_py import open_volume
    from chunkflow_py.ops.load_h5 import load_h5

    os.chdir(ROOT)
    raw, truth = load_h5(f"{DATA}/raw.h5"), load_h5(f"{DATA}/groundtruth.h5")
    stored = [open_volume(f"{OUT}/affinity.zarr"), open_volume(f"file://{OUT}/segmentation")]
    affinity, segmentation = (volume.read(volume.bounds) for volume in stored)
    if segmentation.ndim == 4:
        segmentation = segmentation.with_array(segmentation.array[0])

    say("\nIs that good? The same affinities, segmented in two ways at many thresholds:\n")
    report(sweep(affinity, truth))
    figure(out / "figure.png", raw, affinity, segmentation, truth)
    say(
        f"\nLeft in {out}:\n"
        "  affinity.zarr   OME-Zarr, (c, z, y, x) float32, channels x, y, z\n"
        "  segmentation    Neuroglancer precomputed\n"
        "  segmentation.segment   fragments and hierarchy, for other thresholds\n"
        "  figure.png      raw, affinity, segmentation and ground truth of one section\n"
        "  score.json      the scores of the segmentation\n"
        "To see them in the browser (Ctrl-C ends it):\n\n"
        f"{pasteable(VIEW)}\n\n"
        f"Done in {time.perf_counter() - begin:.0f} s."
    )


if __name__ == "__main__":
    main()
