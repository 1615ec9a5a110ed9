"""Exact segmentation as steps of a run, whose workers are killed in each of them."""

import numpy as np
import pytest
from rigs.agglomeration import Volume

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec
from drills.killed_steps import kill_in_each_step, say

pytestmark = [pytest.mark.drill, pytest.mark.slow]

TOTALS = {
    "fragments": 8, "link": 8, "solve": 1, "contacts": 8, "level-1": 1, "cut": 1, "relabel": 8,
}  # fmt: skip


@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_killed_in_every_step(tmp_path, monkeypatch, method):
    """The segments are those of one task that is not disturbed, and the run is verified."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    edges = np.random.default_rng(0).choice([20, 90, 140, 200, 250], size=(3, 12, 16, 20))
    volume = Volume(edges.astype(np.uint8), FragmentOptions(method, 0.3, 0.5), (5, 0, -4))
    box, size_nm = volume.box, (40.0, 40.0, 40.0)
    spec = VolumeSpec(box, size_nm, np.dtype(np.uint8), 3, "affinity", Zyx(6, 8, 10))
    create_volume(spec, "zarr://affinity.zarr").write(
        Chunk(volume.affinity.array, box.start, size_nm, "affinity")
    )
    steps = say(
        "segment-affinity affinity.zarr zarr://segments.zarr --task-size 6 8 10 --threshold 0.6 "
        f"--min-size 5 --fragments {method} --aff-threshold-low 0.3 --show-steps"
    )
    say("submit --run r " + steps.replace("\\\n", " "))
    kill_in_each_step(TOTALS)
    _, _, expected = volume.segmented(tuple(box.size), 0.6, min_size=5)
    result = open_volume("segments.zarr")
    assert result.bounds == BoundingBox.from_size(box.start, box.size)
    np.testing.assert_array_equal(result.read(result.bounds).array, expected)
    say("verify r")
