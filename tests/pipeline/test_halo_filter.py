"""Filters with a neighbourhood: filtering chunks is filtering the whole."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.ops.downsample import Downsampler
from chunkflow_py.ops.gaussian_filter import gaussian_filter
from chunkflow_py.ops.median_filter import median_filter
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.pipeline.halo_filter import HaloFilter
from chunkflow_py.volume import open_volume

SIZE = (12, 40, 48)
WHOLE = Chunk(
    np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8), (0, 0, 0), (40, 4, 4), "image"
)


def smooth(chunk: Chunk) -> Chunk:
    """Blur in 3D, then take medians."""
    return median_filter(gaussian_filter(chunk, 1, 0.5), (3, 3, 1))


SMOOTH = "gaussian-filter --sigma 1 --sigma-z 0.5 median-filter --size 3 3 1"


@pytest.mark.parametrize(
    ("task", "line", "expected"),
    [
        ("4 16 16", SMOOTH, smooth(WHOLE)),
        ("5 13 17", "gaussian-filter -s 3", gaussian_filter(WHOLE, 3)),
        ("4 16 16", "median-filter -m mirror -s 5 2 1", median_filter(WHOLE, (5, 2, 1), "mirror")),
        ("4 16 16", "median-filter -m constant", median_filter(WHOLE, mode="constant")),
        ("4 16 16", f"{SMOOTH} crop-margin", smooth(WHOLE)),
        (
            "4 16 16",
            f"downsample -f 1 2 2 {SMOOTH}",
            smooth(Downsampler(Zyx(1, 2, 2))(Task(items={"chunk": WHOLE})).chunk("chunk")),
        ),
    ],
)
def test_chunks_are_the_whole(tmp_path, caplog, task, line, expected) -> None:
    """With the margin that the line asks for, tasks return their boxes, and all of them the whole.

    Also behind another filter, before a crop, and where voxels have become larger.
    """
    save_h5(WHOLE, tmp_path / "whole.h5")
    tasks = f"generate-tasks -c {task} -s 0 0 0 -z 12 40 48 --respect-stop"
    load = f"load-h5 -f {tmp_path}/whole.h5 --expand-margin-size auto"
    block = "5 13 17" if task == "5 13 17" else "2 8 8"
    save = f"save-zarr -s {tmp_path}/out.zarr -c {block}"
    result = CliRunner().invoke(cli, f"{tasks} {load} {line} {save}".split())
    assert result.exit_code == 0, result.output
    volume = open_volume(f"zarr://{tmp_path}/out.zarr")
    assert np.array_equal(volume.read(volume.bounds).array, expected.array)
    assert "depends on how" not in caplog.text


def test_a_chunk_without_its_margin_is_told(caplog) -> None:
    """Once, with what is missing and how to get it."""
    part = WHOLE.cut(BoundingBox.parse("0-12_0-16_0-48"))
    body = HaloFilter(median_filter, Zyx(1, 0, 0), "median-filter")
    body(part)
    assert not caplog.text, "nothing is missing in z"
    body = HaloFilter(gaussian_filter, Zyx(0, 4, 4), "gaussian-filter")
    assert body(part).bbox == body(part).bbox == part.bbox
    assert caplog.text.count("needs the input 0-12_0-20_0-48 for the result 0-12_0-16_0-48") == 1
    assert "a margin of (0, 4, 4)" in caplog.text
    caplog.clear()
    empty = Chunk(np.zeros((0, 3, 4), np.uint8), (5, 6, 7))
    body = HaloFilter(median_filter, Zyx(1, 0, 0), "median-filter")
    assert body(empty).bbox == empty.bbox
    assert not caplog.text, "nothing is made of nothing"
