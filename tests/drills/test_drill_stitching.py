"""Labels of a whole volume as stages of a run, whose workers are killed in each of them."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.ops.connected_components import connected_components
from chunkflow_py.segmentation.labels.numbering import Numbering
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.protocol import VolumeSpec
from drills.killed_steps import kill_in_each_step, say

pytestmark = [pytest.mark.drill, pytest.mark.slow]

SIZE = Zyx(12, 16, 20)
TASKS = "generate-tasks -v mask.zarr -c 6 8 10"
LINE = f"""
submit --run r --stage label
    {TASKS} load-volume -v mask.zarr connected-components --global-ids
    save-volume -v zarr://parts.zarr
then --stage link
    {TASKS} link-labels -v parts.zarr -l links
then --stage solve
    generate-tasks --roi-size 1 1 1 -c 1 1 1 solve-labels -l links -t table
then --stage relabel
    {TASKS} load-volume -v parts.zarr relabel -t table save-volume -v labels.zarr
then --stage shrink
    {TASKS} load-volume -v labels.zarr
    downsample-upload -v labels.zarr --chunk-mip 0 --start-mip 1 --stop-mip 2
"""
TOTALS = {"label": 8, "link": 8, "solve": 1, "relabel": 8, "shrink": 8}


def test_killed_in_every_stage(tmp_path, monkeypatch):
    """A worker dies in each stage, with what it has written; the bytes are those of the whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mask = (np.random.default_rng(0).random(SIZE) < 0.4).astype(np.uint8)
    box = BoundingBox.from_size((0, 0, 0), SIZE)
    size_nm = (40.0, 4.0, 4.0)
    spec = VolumeSpec(box, size_nm, mask.dtype, None, "segmentation", Zyx(6, 8, 10))
    create_volume(spec, "zarr://mask.zarr").write(Chunk(mask, (0, 0, 0), size_nm, "segmentation"))
    say(
        "create-volume -v zarr://labels.zarr -z 12 16 20 -s 40 4 4 -d uint64 -b 3 4 5 "
        "-t segmentation --max-mip 1"
    )
    say(LINE)
    kill_in_each_step(TOTALS)
    expected = connected_components(Chunk(mask), None, 6, Numbering(is_global=True))
    volume = open_volume("labels.zarr")
    np.testing.assert_array_equal(volume.read(volume.bounds).array, expected.array)
    coarse = open_volume("labels.zarr", 1)
    np.testing.assert_array_equal(
        coarse.read(coarse.bounds).array, downsample(expected, Zyx(2, 2, 2), "mode").array
    )
    say("verify r")
