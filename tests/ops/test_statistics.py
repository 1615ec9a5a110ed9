"""statistics of a chunk."""

import numpy as np
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.ops.statistics import command, statistics


def test_of_an_image():
    """Each channel has count, mean, deviation and extremes; floats as well."""
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    first, second = statistics(Chunk(np.stack([array, array * 2])))["channels"]
    assert (first["count"], first["mean"], first["max"]) == (24, 11.5, 23)
    assert second["percentiles"]["50"] == 23
    (real,) = statistics(Chunk(array / 8))["channels"]
    assert (real["min"], real["mean"]) == (0, 11.5 / 8)
    assert abs(real["percentiles"]["95"] - np.percentile(array / 8, 95)) < 0.2
    (wide,) = statistics(Chunk(array.astype(np.uint32) * 100_000, kind="image"))["channels"]
    assert (wide["max"], wide["mean"]) == (2_300_000, 1_150_000)
    for value in (np.float32(0.25), np.float32(-1e20)):  # which is not changed by 1
        (flat,) = statistics(Chunk(np.full((1, 1, 3), value)))["channels"]
        assert (flat["std"], flat["percentiles"]["50"]) == (0, value)


def test_of_a_segmentation(capsys):
    """Objects are counted without 0, with the smallest and the largest label."""
    array = np.array([[[0, 7, 7, 2**40]]], np.uint64)
    expected = {"objects": 2, "min_id": 7, "max_id": 2**40, "background": 1}
    assert statistics(Chunk(array)) == expected
    task = Task(None, {"chunk": Chunk(array, kind="segmentation")})
    stage = command.main(["-o", "found"], standalone_mode=False)
    assert stage.call(task)["found"] == expected
    assert f"2 objects with labels 7 to {2**40}, 1 voxels are 0" in capsys.readouterr().out
    empty = statistics(Chunk(np.zeros((1, 2, 2), np.uint32)))
    assert (empty["objects"], empty["max_id"], empty["background"]) == (0, None, 4)


def test_on_a_line():
    """The table goes to the standard output."""
    result = CliRunner().invoke(cli, ["create-chunk", "-s", "4", "4", "4", "statistics"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("chunk in 0-4_0-4_0-4\n")
    assert result.stdout.splitlines()[2].split()[:2] == ["0", "64"]
