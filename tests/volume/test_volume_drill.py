"""Many processes, bad networks and sudden deaths: every byte is what one calm process writes."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rigs.s3 import SEVERAL_FAULTS

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BLOCK, TASK = Zyx(8, 16, 16), Zyx(16, 32, 32)
BOUNDS = BoundingBox.from_size(Zyx(-5, 3, 1000), BLOCK * (10, 10, 10))  # 1,000 blocks
TASKS, PROCESSES = 125, 8
SHARDED = ["--shard-size", *TASK]

formats = pytest.mark.parametrize(
    ("scheme", "options"),
    [
        pytest.param("zarr", SHARDED, id="zarr-sharded"),
        pytest.param("precomputed", SHARDED, id="precomputed-sharded", marks=pytest.mark.long),
        pytest.param("precomputed", [], id="precomputed", marks=pytest.mark.long),
    ],
)
ministack = pytest.mark.parametrize("s3", ["ministack"], indirect=True)


def copy(scheme, options, source, target, first=0, end=TASKS):
    """Start a process that copies the tasks from *first* to *end*."""
    source, target = f"{scheme}://{source}", f"{scheme}://{target}"
    line = [
        "generate-tasks", "--volume-path", source, "--chunk-size", *TASK,
        "--task-index-start", first, "--task-index-stop", end,
        "load-volume", "--volume-path", source, "--no-fill-missing",
        "save-volume", "--volume-path", target, "--block-size", *BLOCK, *options,
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", *map(str, line)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def shares(scheme, options, source, target):
    """Start the processes, each with its share of the tasks."""
    ends = [TASKS * i // PROCESSES for i in range(PROCESSES + 1)]
    return [copy(scheme, options, source, target, *ends[i : i + 2]) for i in range(PROCESSES)]


def finish(process):
    """Wait until a process has done all its tasks."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said


def objects(place):
    """Return what is stored below *place*, keys and bytes."""
    store = open_store(Location.parse(place).store_url)
    keys = sorted(store.list())
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(keys, pool.map(store.get, keys), strict=True))


@pytest.fixture
def noise():
    """Voxels that do not shrink, in which no block is like another."""
    array = np.random.default_rng(4).integers(1, 256, BOUNDS.size, np.uint8)
    return Chunk(array, BOUNDS.start, (40, 4, 4), "image")


def written(scheme, options, noise, place, reference):
    """Write the volume at *place*, and by one process without faults at *reference*."""
    url = f"{scheme}://{place}"
    spec = VolumeSpec(BOUNDS, noise.voxel_size_nm, noise.dtype, None, "image", BLOCK * (5, 5, 5))
    create_volume(spec, url).write(noise)
    finish(copy(scheme, options, place, reference))
    np.testing.assert_array_equal(open_volume(f"{scheme}://{reference}").read(BOUNDS), noise)
    return objects(reference)


def differing(found, expected):
    """Return the keys of objects that differ, or that are missing on one side."""
    both = found.keys() | expected.keys()
    return {key for key in both if found.get(key) != expected.get(key)}


@pytest.mark.aws
@pytest.mark.drill
@ministack
@formats
def test_faults(scheme, options, noise, s3, tmp_path):
    """Of 1,000 blocks that 8 processes copy while requests fail, each is the right one.

    One request in ten gets a 503, one in ten is cut off, one in twenty is done but its answer lost,
    and one body in ten ends in the middle.
    """
    reference = f"{s3.url}/reference/em"
    expected = written(scheme, options, noise, tmp_path / "em", reference)
    with s3.faults(*SEVERAL_FAULTS) as faults:
        for process in shares(scheme, options, reference, f"{s3.url}/drill/em"):
            finish(process)
        injected = [entry["fault"] for entry in faults.log()]
    for kind in ("status", "reset", "reset_after", "truncate"):
        assert injected.count(kind) > 2
    assert differing(objects(f"{s3.url}/drill/em"), expected) == set()


def killed(process, count_stored):
    """Kill a process in the middle, and say how much was stored then."""
    deadline = time.monotonic() + 60
    while (stored := count_stored()) < 10:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return stored


def kill_one(scheme, options, noise, home, tmp_path):
    """Copy a volume below *home*; kill one of the processes in the middle and start it again.

    Returns:
        The objects that are there then, and those that should be.
    """
    expected = written(scheme, options, noise, tmp_path / "em", f"{home}/reference/em")
    drill = f"{home}/drill/em"
    store = open_store(Location.parse(drill).store_url)
    processes = shares(scheme, options, tmp_path / "em", drill)
    stored = killed(processes[0], lambda: sum(1 for _ in store.list()))
    assert stored < len(expected)
    processes[0] = copy(scheme, options, tmp_path / "em", drill, 0, TASKS // PROCESSES)
    for process in processes:
        finish(process)
    return objects(drill), expected


@formats
def test_killed(scheme, options, noise, tmp_path):
    """A process that is killed in the middle and started again leaves no trace in a folder."""
    assert differing(*kill_one(scheme, options, noise, tmp_path, tmp_path)) == set()


@pytest.mark.aws
@pytest.mark.drill
@ministack
@formats
def test_killed_in_cloud(scheme, options, noise, s3, tmp_path):
    """Nor in a bucket."""
    assert differing(*kill_one(scheme, options, noise, s3.url, tmp_path)) == set()
