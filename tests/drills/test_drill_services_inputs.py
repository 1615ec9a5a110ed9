"""Runs that cannot go well as they are: damaged input, tasks that cut blocks, no GPU."""

import numpy as np
import pytest
import zarr
from rigs.variants import gate_runs

from drills.invariants import check
from drills.rig import TASK

pytestmark = pytest.mark.drill
SLOW = pytest.mark.slow
GRID = (2, 2, 2)
EXTENT = tuple(count * size for count, size in zip(GRID, TASK))
NETWORK = ("inference", "--framework", "identity", "--num-output-channels", 1)
PATCHES = ("--input-patch-size", *TASK, "--output-patch-overlap", 0, 0, 0)


# --- damaged input -----------------------------------------------------------------------------


def truncate(data):
    """Return the first half."""
    return data[: len(data) // 2]


def flip(where):
    """Return what changes one bit, so many bytes from the end."""
    return lambda data: data[:-where] + bytes([data[-where] ^ 4]) + data[len(data) - where + 1 :]


def nothing(_):
    """Return no bytes at all, as a file system does after a crash."""
    return b""


SHARD = tuple(2 * extent for extent in TASK)
DAMAGES = {
    "block, truncated": (None, truncate),
    "block, empty": (None, nothing),
    "block, a bit": (None, flip(40)),
    "shard, its index": (SHARD, flip(20)),
    "shard, truncated": (SHARD, truncate),
    "shard, a block in it": (SHARD, flip(400)),
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(name, marks=() if name.endswith("a bit") else SLOW) for name in DAMAGES],
)
@pytest.mark.long
def test_damaged_input(make_drill, expected, tmp_path, what):
    """The tasks that need it fail and name it, also where what is missing is filled; no other."""
    shards, damage = DAMAGES[what]
    array = zarr.create_array(
        str(tmp_path / "in.zarr"),
        shape=EXTENT if shards is None else SHARD,
        chunks=TASK,
        shards=shards,
        dtype="u1",
        compressors=[zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
    )
    array[:] = np.random.default_rng(1).integers(1, 255, array.shape, np.uint8)
    drill = make_drill(GRID, source=tmp_path / "in.zarr", loading=("--fill-missing",))
    voxels = expected(drill)
    key = "c/0/0/0" if shards else "c/1/0/1"
    path = tmp_path / "in.zarr" / key
    path.write_bytes(damage(path.read_bytes()))
    drill.submit()
    drill.work("--max-failures", 1)
    assert drill.wait() == [1]
    dead = {number for number, record in drill.records().items() if record.state == "dead"}
    if shards is None:
        assert dead == {5}
    else:
        assert len(dead) == (1 if what.endswith("a block in it") else drill.tasks)
    for number in dead:
        reason = drill.records()[number].reason
        assert key in reason
        assert "damaged" in reason
    check(drill, voxels, dead=dead)


@pytest.mark.parametrize("fills", gate_runs([True, False], True))
@pytest.mark.long
def test_a_missing_input_block(make_drill, expected, tmp_path, fills):
    """Filled as asked, it is counted in the record of its task and in the status; else it fails."""
    array = zarr.create_array(str(tmp_path / "in.zarr"), shape=EXTENT, chunks=TASK, dtype="u1")
    array[:] = np.random.default_rng(1).integers(1, 255, EXTENT, np.uint8)
    (tmp_path / "in.zarr" / "c/1/0/1").unlink()
    loading = ("--fill-missing",) if fills else ("--no-fill-missing",)
    drill = make_drill(GRID, source=tmp_path / "in.zarr", loading=loading)
    drill.submit()
    drill.work("--max-failures", 1)
    assert drill.wait() == [0 if fills else 1]
    records = drill.records()
    (stage,) = drill.status()["stages"]
    if fills:
        found = {number: record.missing_blocks for number, record in records.items()}
        assert found == {number: int(number == 5) for number in range(drill.tasks)}
        assert stage["missing_blocks"] == 1
        assert "1 missing blocks read as the fill value" in drill.must("status", drill.url)
        check(drill, expected(drill))
    else:
        assert [number for number, record in records.items() if record.state == "dead"] == [5]
        assert "c/1/0/1" in records[5].reason
        assert stage["missing_blocks"] == 0


# --- tasks that cut what is stored ---------------------------------------------------------------


@pytest.mark.parametrize("place", gate_runs(["first", "last"], "last"))
@pytest.mark.parametrize("kind", ["zarr", "precomputed"])
def test_tasks_that_are_smaller_than_a_block(make_drill, tmp_path, place, kind):
    """Whichever output it is, it is refused before anything is sent, with a size that works."""
    drill = make_drill(GRID)
    drill.create_output()
    other = f"{kind}://{tmp_path}/other"
    drill.must(
        *("create-volume", "-v", other, "-z", *EXTENT, "-d", "uint8", "-s", 40, 4, 4),
        *("-b", 8, 32, 16, "-t", "segmentation"),
    )
    one, two = (other, drill.output) if place == "first" else (drill.output, other)
    done = drill.call(
        *("submit", "--run", drill.url, "--queue", drill.queue_url, *drill.source_words),
        *(*drill.line_words(one), "save-volume", "-v", two),
    )
    assert done.returncode in (1, 2)
    sentence = done.stderr.strip().splitlines()[-1]
    assert "(8, 16, 16)" in sentence
    assert "(8, 32, 16)" in sentence
    assert other in sentence
    assert not drill.home.exists()
    assert not (tmp_path / "queue.sqlite").exists()


# --- no GPU --------------------------------------------------------------------------------------


@pytest.fixture
def without_gpu(make_drill):
    """A drill whose processes see no GPU, with a network that wants one."""
    middle = (*NETWORK, *PATCHES, "--device", "cuda", "threshold", "-t", 0.4)
    return make_drill(GRID, middle=middle, variables={"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.long
def test_no_gpu_at_submission(without_gpu):
    """A line that asks for a GPU where there is none is refused, and nothing is sent."""
    drill = without_gpu
    drill.create_output()
    done = drill.call(
        *("submit", "--run", drill.url, "--queue", drill.queue_url, *drill.source_words),
        *drill.line_words(drill.output),
    )
    assert done.returncode == 2
    assert "--device cuda cannot be used" in done.stderr
    assert not drill.home.exists()


@SLOW
def test_no_gpu_at_work(without_gpu, expected):
    """A worker without a GPU takes no task of a run that asks for one: never the CPU in silence."""
    drill = without_gpu
    drill.submit()
    worker = drill.work()
    assert drill.wait() == [2]
    assert "--device cuda cannot be used" in worker.said()
    assert not drill.calls()
    assert not drill.records()
    assert drill.counts().waiting == drill.tasks
    assert drill.counts().leased == 0
