"""Where tests kill a process that reads and writes volumes, and what it leaves."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

PATCHES = ["-s", 16, 32, 32, "-v", 0, 8, 8]
BOUNDS = BoundingBox(Zyx(0, 0, 0), Zyx(16, 64, 64))


@pytest.fixture
def em(tmp_path):
    """Return a volume of random voxels, in 16 blocks."""
    voxels = np.random.default_rng(0).integers(1, 255, BOUNDS.size, np.uint8)
    spec = VolumeSpec(BOUNDS, (40.0, 4.0, 4.0), voxels.dtype, None, "image", Zyx(16, 16, 16))
    create_volume(spec, f"zarr://{tmp_path}/em").write(Chunk(voxels))
    return tmp_path / "em"


def blocks(place):
    """Return the blocks that are stored."""
    store = open_store(str(place))
    return {key: store.get(key) for key in store.list("0/c/")}


def copy(em, out, *more, **environment):
    """Copy the volume, as one task."""
    line = ["load-zarr", "-f", em, *more, "save-zarr", "-s", out, "-c", 16, 16, 16, "-p", 1]
    return subprocess.run(
        [sys.executable, "-m", "chunkflow_py", "--ahead", "0", *map(str, line)],
        env=os.environ | {f"CHUNKFLOW_{name}": value for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_killed_between_two_blocks(em, tmp_path):
    """A process that is killed in the middle of a write leaves whole blocks, and not all."""
    done = copy(em, tmp_path / "out", FAILPOINT="mid-write:kill@5")
    assert done.returncode == -signal.SIGKILL
    left = blocks(tmp_path / "out")
    assert 1 <= len(left) < 16
    assert left.items() <= blocks(em).items()


def test_without_atomic_writes_there_are_torn_blocks(em, tmp_path):
    """The same, with the safeguard taken away, leaves a block that no reader should ever see."""
    out = tmp_path / "out"
    done = copy(em, out, FAILPOINT="mid-write:kill@1", UNSAFE="atomic-write")
    assert done.returncode == -signal.SIGKILL
    whole = blocks(em)
    torn = {key for key, data in blocks(out).items() if data != whole[key]}
    assert torn
    assert all(whole[key].startswith(data) for key, data in blocks(out).items())


@pytest.mark.parametrize(
    ("point", "more"),
    [
        ("mid-read", []),
        ("mid-inference", ["inference", "--framework", "identity", "-c", 1, *PATCHES]),
        ("mid-write", []),
    ],
)
def test_what_a_point_raises_fails_the_task(em, tmp_path, point, more):
    """Reading, the network and writing each pass the point that is named after them."""
    done = copy(em, tmp_path / "out", *more, FAILPOINT=f"{point}:raise@2")
    assert done.returncode == 1
    assert f"fail point {point}" in done.stderr
