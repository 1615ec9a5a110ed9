"""map_scale: thresholds and the integers in which maps are stored."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.map_scale import check_threshold, full_scale
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.ops.threshold import threshold
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.segmentation.peaks import detect_peaks
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

# Every option that is compared with voxels: in their unit, or a part of what stands for 1.
UNIT = {
    "threshold --threshold",
    "connected-components --threshold",
    "adjust-pre --img-threshold",
    "save-volume --intensity-threshold",
    "save-precomputed --intensity-threshold",
    "save-zarr --intensity-threshold",
}
PART = {
    "agglomerate --threshold",
    "agglomerate --aff-threshold-low",
    "agglomerate --aff-threshold-high",
    "agglomerate --interior-threshold",
    "cut-hierarchy --threshold",
    "fragment-affinity --aff-threshold-high",
    "fragment-affinity --aff-threshold-low",
    "measure-contacts --max-threshold",
    "detect-points --threshold-rel",
    "detect-pre-synapses --threshold-rel",
    "detect-post-synapses --threshold-rel",
}
NO_MAP = {  # numbers of voxels, lengths, overlaps, grey values; of a network's own float output
    "aggregate-skeleton-fragments --dust-threshold",
    "aggregate-skeleton-fragments --tick-threshold",
    "detect-duplicate-post --distance-threshold",
    "evaluate-segmentation --iou-threshold",
    "inference --mask-myelin-threshold",
    "mask-out-objects --dust-size-threshold",
    "mesh --dust-threshold",
    "skeletonize --dust-threshold",
    "skeletonize --soma-acceptance-threshold",
    "skeletonize --soma-detection-threshold",
    "stretch-intensity --max-threshold",
    "stretch-intensity --min-threshold",
}


def test_every_threshold_is_known():
    """A new threshold is in the unit of the voxels, a part of the full scale, or not of a map."""
    found = {
        f"{name} {option}"
        for name in catalog.names()
        for param in catalog.load(name).params
        for option in param.opts
        if "threshold" in option and option.startswith("--")
    }
    assert found == UNIT | PART | NO_MAP


def stored(dtype, kind, channels=None):
    """Store a map and return its URL."""
    url = f"zarr://mem://scale-{np.dtype(dtype)}-{kind}-{channels}"
    size = (2, 4, 4) if channels is None else (channels, 2, 4, 4)
    chunk = Chunk(np.full(size, 3, dtype), kind=kind)
    spec = VolumeSpec(chunk.bbox, (1, 1, 1), chunk.dtype, channels, kind, chunk.size)
    create_volume(spec, url, overwrite=True).write(chunk)
    return url, chunk


@pytest.mark.parametrize("kind", ["probability", "affinity"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
@pytest.mark.parametrize("words", sorted(UNIT - {"adjust-pre --img-threshold"}))
def test_a_fraction_of_1_is_refused_on_integers(words, dtype, kind):
    """Refused before the first task; the value in the message is accepted."""
    channels = 3 if kind == "affinity" else None
    if channels and words.startswith("threshold"):
        channels = 1
    url, _ = stored(dtype, kind, channels)
    command, option = words.split()
    if command.startswith("save"):
        command += " --volume-path file://unused" if "zarr" not in command else " --store unused"

    def check(value):
        line = read_line(f"load-volume -v {url} {command} {option} {value}".split())
        pipeline = Pipeline(line)
        problems: list[ChunkflowError] = []
        pipeline.check(problems)
        return [str(each) for each in problems]

    top = np.iinfo(dtype).max
    (said,) = [each for each in check("0.5") if "stands for 1" in each]
    assert f"{option} 0.5 is compared with {kind} values of type {dtype}" in said
    value = re.search(rf"write {option} ([0-9.]+)$", said)[1]
    assert float(value) == top * 0.5
    for good in (value, "0", "1", "2"):
        assert not [each for each in check(good) if "stands for 1" in each]


def test_what_the_refused_value_means():
    """The suggested value gives the same result as the fraction in a map of floats."""
    rng = np.random.default_rng(0)
    p = rng.integers(0, 256, (4, 5, 6)).astype(np.uint8)
    for t in (0.1, 0.3, 0.5, 0.7, 0.999):
        with pytest.raises(OptionError, match="stands for 1") as caught:
            threshold(Chunk(p, kind="probability"), t)
        value = float(str(caught.value).rpartition(" ")[2])
        ours = threshold(Chunk(p, kind="probability"), value)
        exact = threshold(Chunk(p / 255, kind="probability"), t)
        np.testing.assert_array_equal(ours.array, exact.array)


def test_chunks_are_checked_where_the_line_knows_nothing():
    """Maps from a file or from Python are checked by the operator itself."""
    chunk = Chunk(np.ones((2, 3, 4), np.uint8), kind="probability")
    synapses = Synapses(np.zeros((1, 3), np.int64))
    for words in (
        "threshold -t 0.5",
        "connected-components -t 0.5",
        "adjust-pre --img-threshold 0.5",
    ):
        (stage,) = read_line(words.split())
        with pytest.raises(OptionError, match="0.5 of full scale, write --[a-z-]+ 127.5"):
            stage.call(Task(items={"chunk": chunk, "syns": synapses}))


@pytest.mark.parametrize("kind", ["image", "segmentation", None])
def test_other_integers_are_compared_as_they_are(kind):
    """0.5 separates the zeros of a mask, of labels and of an image from the rest."""
    mask = Chunk(np.array([[[0, 1, 2]]], np.uint8), kind=kind)
    assert threshold(mask, 0.5).array.tolist() == [[[0, 1, 1]]]
    check_threshold(0.5, "float32", "probability")


def test_parts_of_the_full_scale():
    """detect-points finds the same peaks in a map of any type: its threshold is a part of 1."""
    rng = np.random.default_rng(1)
    grey = rng.permutation(255)[:216].reshape(6, 6, 6)
    for dtype in ("uint8", "uint16", "int16", "float32"):
        scaled = (grey / 255 * full_scale(dtype)).astype(dtype)
        points = detect_peaks(Chunk(scaled, kind="probability"), 1, 0.6)
        exact = detect_peaks(Chunk((grey / 255).astype(np.float32)), 1, 0.6)
        assert {*map(tuple, points.positions)} == {*map(tuple, exact.positions)}
