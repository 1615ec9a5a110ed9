"""Annotations of a whole volume as steps of a run, whose workers are killed in each of them."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec
from drills.killed_steps import kill_in_each_step, say

pytestmark = [pytest.mark.drill, pytest.mark.slow]

SIZE = Zyx(24, 32, 40)
LINE = """
submit --run {run} --stage save
    generate-tasks -v map.zarr -c {size} load-volume -v map.zarr
    --expand-margin-size auto detect-points --min-distance 1 save-annotations -p {parts}
then --stage merge
    generate-tasks --roi-size 1 1 1 -c 1 1 1
    merge-annotations -p {parts} -a {target} --limit 20 --cell-size 4 4 4
"""


def files(folder):
    """Return the content of each file below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_killed_in_each_step(tmp_path, monkeypatch):
    """A worker dies in each step; the bytes are those of one task that nobody kills."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    noise = np.random.default_rng(0).random(SIZE).astype(np.float32)
    box = BoundingBox.from_size((0, 0, 0), SIZE)
    spec = VolumeSpec(box, (40.0, 4.0, 4.0), noise.dtype, None, "probability", Zyx(12, 16, 20))
    create_volume(spec, "zarr://map.zarr").write(Chunk(noise, (0, 0, 0), (40, 4, 4), "probability"))
    say(LINE.format(run="r", size="12 16 20", parts="parts", target="all"))
    kill_in_each_step({"save": 8, "merge": 1})
    say("verify r")
    say(LINE.format(run="whole", size="24 32 40", parts="whole-parts", target="whole-all"))
    say("work whole --threads 1")
    assert len(files(tmp_path / "all")) > 3
    assert files(tmp_path / "all") == files(tmp_path / "whole-all")
