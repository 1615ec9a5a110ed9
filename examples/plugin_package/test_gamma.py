"""The operator as a function, and as a command in a pipeline."""

import shlex

import numpy as np
import pytest
from chunkflow_gamma.gamma import gamma

from chunkflow_py import Chunk
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.pipeline import Pipeline


def test_powers() -> None:
    """Black and white do not change; a power below 1 brightens other values."""
    chunk = Chunk(np.array([[[0, 64, 255]]], np.uint8), voxel_offset=(1, 2, 3))
    bright = gamma(chunk, 0.5)
    assert bright.array.tolist() == [[[0, 128, 255]]]
    assert bright.voxel_offset == chunk.voxel_offset


def test_floats_are_refused() -> None:
    """Floats have no largest value to scale by."""
    with pytest.raises(ChunkError, match="unsigned integers, got float32"):
        gamma(Chunk(np.zeros((1, 1, 1), np.float32)))


def test_in_a_pipeline() -> None:
    """The installed command takes its options."""
    operators = read_line(
        shlex.split("create-chunk --size 2 4 4 gamma --power 2 --output-name dark")
    )
    (task,) = Pipeline(operators).run()
    assert task["dark"].array.shape == (2, 4, 4)
