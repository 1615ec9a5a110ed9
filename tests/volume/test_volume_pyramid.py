"""The coarser levels of a volume, in a line and as a phase of their own."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.outline import Outline
from chunkflow_py.core.task import Task
from chunkflow_py.errors import AlignmentError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.pyramid import PyramidOutput, level_factor

BOUNDS = BoundingBox((-16, 0, 32), (21, 50, 73))  # begins on blocks of all levels, ends on none
ODD = BoundingBox((5, -6, 7), (42, 44, 50))
BLOCK = Zyx(8, 8, 8)
SCHEMES = ["precomputed", "zarr"]


def created(url, bounds=BOUNDS, kind="image", dtype="uint8", **changes):
    """Create a volume with levels 0 to 3, fill level 0, and return its chunk."""
    settings = {"max_mip": 3, **changes}
    spec = VolumeSpec(bounds, (40, 4, 4), np.dtype(dtype), None, kind, BLOCK, **settings)
    volume = create_volume(spec, url)
    most = 4 if kind == "segmentation" else 255
    array = np.random.default_rng(0).integers(1, most, bounds.size).astype(dtype)
    chunk = Chunk(array, bounds.start, (40, 4, 4), kind)
    volume.write(chunk)
    return chunk


def check_levels(url, chunk, mips, factor=Zyx(2, 2, 2)):
    """Compare levels with what shrinking the whole volume at once gives."""
    for mip in range(1, max(mips) + 1):
        chunk = downsample(chunk, factor)
        if mip in mips:
            found = open_volume(url, mip)
            assert found.bounds == chunk.bbox
            np.testing.assert_array_equal(found.read(found.bounds).array, chunk.array)


def run(*words):
    """Run a line and return its result."""
    return CliRunner().invoke(cli, ["--quiet", *map(str, words)])


def upload(url, size, *options, bounds=BOUNDS):
    """Run a line that writes levels in tasks of a size."""
    box = ["-b", str(bounds)]
    return run(
        "generate-tasks", *box, "-c", *size, "load-volume", "-v", url,
        "downsample-upload", "-v", url, *options,
    )  # fmt: skip


# --- in a line ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("kind", "dtype"), [("image", "uint8"), ("segmentation", "uint64")])
def test_a_line_writes_the_levels_of_the_whole(tmp_path, scheme, kind, dtype):
    """Levels written task by task are those of the whole volume, for images and labels."""
    url = f"{scheme}://{tmp_path}/em"
    chunk = created(url, kind=kind, dtype=dtype)
    done = upload(url, (32, 32, 32), "--stop-mip", 3)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (1, 2))
    assert not open_volume(url, 3).read(open_volume(url, 3).bounds).array.any()


def test_a_later_start(tmp_path):
    """Levels before --start-mip are made on the way and not written."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url)
    done = upload(url, (32, 32, 32), "--start-mip", 2, "--stop-mip", 3)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (2,))
    assert not open_volume(url, 1).read(open_volume(url, 1).bounds).array.any()


def test_from_a_coarser_chunk(tmp_path):
    """A chunk of level 1 is the beginning of levels 2 and 3."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url)
    level = downsample(chunk)
    open_volume(url, 1, "r+").write(level)
    box = str(level.bbox)
    words = ["--mip", 1, "generate-tasks", "-b", box, "-c", 32, 32, 32, "load-volume", "-v", url]
    done = run(*words, "downsample-upload", "-v", url, "-p", 4)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (2, 3))


def test_levels_that_span_tasks_are_refused(tmp_path):
    """Before the first task, a level whose blocks two tasks share is named, with two remedies."""
    url = f"precomputed://{tmp_path}/em"
    created(url)
    done = upload(url, (32, 32, 32), "--stop-mip", 4)
    assert done.exit_code == 1
    assert "blocks of size (8, 8, 8) of mip 3 of" in done.output
    assert "the task boundary at 16 along z cuts blocks" in done.output
    assert "the task size must be a multiple of (64, 64, 64)" in done.output
    assert "give --stop-mip 3" in done.output
    assert f"chunkflow downsample-volume {url} --start-mip 3 --stop-mip 4" in done.output
    assert not open_volume(url, 1).read(open_volume(url, 1).bounds).array.any()


def test_tasks_of_a_queue_are_checked_one_by_one(tmp_path):
    """Where the tasks are not known before, each is checked when it comes."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url)
    body = PyramidOutput(url, stop_mip=3)
    body.prepare(Outline(None, None, True))
    box = BoundingBox.from_size(BOUNDS.start, (32, 32, 32))
    body(Task(Region(box), {"chunk": chunk.cut(box)}))
    cut = BoundingBox.from_size(BOUNDS.start, (16, 32, 32))
    with pytest.raises(AlignmentError, match="the task boundary at 0 along . cuts .* mip 2 of"):
        body(Task(Region(cut), {"chunk": chunk.cut(cut)}))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_are_not_written_by_a_line(tmp_path, scheme):
    """Levels in shards are refused in a line, even where tasks would fit."""
    url = f"{scheme}://{tmp_path}/em"
    created(url, shard_size=BLOCK * 2)
    done = upload(url, (64, 64, 64), "--stop-mip", 2)
    assert done.exit_code == 1
    assert "mip 1 of" in done.output
    assert "shards of (16, 16, 16)" in done.output
    assert "leave this command out" in done.output


def test_levels_that_do_not_exist(tmp_path):
    """A level that the volume has not is named, with how to have it; so is a missing volume."""
    url = f"precomputed://{tmp_path}/em"
    with pytest.raises(VolumeNotFoundError, match="check the path"):
        PyramidOutput(url).prepare(Outline())
    created(url, max_mip=1)
    with pytest.raises(VolumeNotFoundError, match=r"has no mip 2.*--max-mip 4.*--stop-mip 2"):
        PyramidOutput(url).prepare(Outline())


def test_a_volume_that_the_line_creates(tmp_path):
    """What create-volume of the same line will make is checked by what it says."""
    url = f"precomputed://{tmp_path}/em"
    box = BoundingBox((0, 0, 0), (64, 64, 64))
    create = [
        "create-volume", "-v", url, "--volume-size", 64, 64, 64, "--voxel-offset", 0, 0, 0,
        "--voxel-size", 40, 4, 4, "--data-type", "uint8", "--block-size", 8, 8, 8,
        "--channel-num", 1,
    ]  # fmt: skip
    tasks = ["generate-tasks", "-b", str(box), "-c", 32, 32, 32]
    chunks = ["create-chunk", "--size", 32, 32, 32, "--pattern", "random"]
    save = ["save-volume", "-v", url]
    end = ["downsample-upload", "-v", url, "--stop-mip"]
    done = run(*tasks, *create, "--max-mip", 2, *chunks, *save, *end, 4)
    assert done.exit_code == 1
    assert "has no mip 3" in done.output
    done = run(*tasks, *create, "--max-mip", 3, *chunks, *save, *end, 4)
    assert done.exit_code == 1
    assert "blocks of size (8, 8, 8) of mip 3" in done.output
    assert not (tmp_path / "em").exists()


def test_the_factor_is_that_of_the_volume(tmp_path):
    """Another factor than that between the levels is refused; the right one is named."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url, factor=Zyx(1, 2, 2))
    assert level_factor(open_volume(url), open_volume(url, 1)) == Zyx(1, 2, 2)
    with pytest.raises(VolumeError, match=r"give --factor 1 2 2"):
        PyramidOutput(url, stop_mip=3).prepare(Outline())
    done = upload(url, (32, 32, 32), "--stop-mip", 3, "--factor", 1, 2, 2)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (1, 2), Zyx(1, 2, 2))


def test_no_level_to_write():
    """Levels that end before they begin are a usage error."""
    with pytest.raises(OptionError, match="--start-mip 1 and --stop-mip 1 .* must name levels"):
        PyramidOutput("em", stop_mip=1)
    with pytest.raises(OptionError, match="give --start-mip 4"):
        PyramidOutput("em", chunk_mip=3, start_mip=2)
    done = run("create-chunk", "downsample-upload")
    assert done.exit_code == 2
    assert "--volume-path" in done.output


def test_two_writers_of_one_level_are_refused(tmp_path):
    """A saver and a pyramid that write the same level of a volume exclude each other."""
    url = f"precomputed://{tmp_path}/em"
    created(url)
    done = run("create-chunk", "save-volume", "-v", url, "-m", 1, "downsample-upload", "-v", url)
    assert done.exit_code == 2
    assert "save-volume and downsample-upload both write to" in done.output
    assert "at mip 1, so one would overwrite the output of the other" in done.output


# --- as a phase of its own ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shards", [None, BLOCK * 2])
@pytest.mark.parametrize(("kind", "dtype"), [("image", "uint8"), ("segmentation", "uint64")])
def test_the_phase_makes_the_levels_of_the_whole(tmp_path, scheme, shards, kind, dtype):
    """All levels, with or without shards, at odd bounds, are those of the whole volume."""
    url = f"{scheme}://{tmp_path}/em"
    chunk = created(url, ODD, kind, dtype, shard_size=shards)
    done = run("downsample-volume", url)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (1, 2, 3))


@pytest.mark.parametrize("size", [(8, 8, 8), (16, 8, 24)])
def test_the_phase_in_small_tasks(tmp_path, size):
    """The size of its tasks changes nothing; one that cuts blocks is refused."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url, ODD, factor=Zyx(1, 2, 3))
    done = run("downsample-volume", url, "--task-size", *size, "--stop-mip", 3)
    assert done.exit_code == 0, done.output
    check_levels(url, chunk, (1, 2), Zyx(1, 2, 3))
    done = run("downsample-volume", "--task-size", 12, 8, 8, url)
    assert done.exit_code == 1
    assert "use the task size (16, 8, 8)" in done.output


def test_the_phase_goes_on(tmp_path):
    """With --resume what is stored stays and what is missing is made; without, all is made."""
    url = f"precomputed://{tmp_path}/em"
    chunk = created(url)
    sizes = ["--task-size", 8, 8, 8, "--stop-mip", 2]
    assert run("downsample-volume", url, *sizes).exit_code == 0
    level = open_volume(url, 1, "r+")
    first, second, *_ = BoxGrid.covering(level.bounds, BLOCK)
    level.write(Chunk(np.full(BLOCK, 7, np.uint8), first.start))
    store = open_store(Location.parse(url).store_url)
    x, y, z = (slice(second.start[a], second.stop[a]) for a in (2, 1, 0))
    key = next(
        k for k in store.list()
        if k.endswith(f"/{x.start}-{x.stop}_{y.start}-{y.stop}_{z.start}-{z.stop}.gz")
        or k.endswith(f"/{x.start}-{x.stop}_{y.start}-{y.stop}_{z.start}-{z.stop}")
    )  # fmt: skip
    store.delete(key)
    assert run("downsample-volume", url, *sizes, "--resume").exit_code == 0
    wanted = downsample(chunk)
    level = open_volume(url, 1)
    assert (level.read(first).array == 7).all()
    np.testing.assert_array_equal(level.read(second).array, wanted.cut(second).array)
    assert run("downsample-volume", url, *sizes).exit_code == 0
    check_levels(url, chunk, (1,))


def test_the_phase_without_levels(tmp_path):
    """A volume without coarser levels, and a level too many, are told as such."""
    url = f"precomputed://{tmp_path}/em"
    created(url, max_mip=1)
    done = run("downsample-volume", url, "--stop-mip", 4)
    assert done.exit_code == 1
    assert "has no mip 2, only mip 0, 1; create the volume with create-volume --max-mip 3" in (
        done.output
    )
    done = run("downsample-volume", url, "--start-mip", 3, "--stop-mip", 3)
    assert done.exit_code == 2
    assert "4 to make one level" in done.output
    created(f"precomputed://{tmp_path}/one", max_mip=0)
    assert "has no mip 1" in run("downsample-volume", f"precomputed://{tmp_path}/one").output


def test_a_failing_phase_tells_all(tmp_path):
    """Every task that failed is listed, the others are done, no coarser level is begun; exit 1."""
    url = f"precomputed://{tmp_path}/em"
    created(url)
    folder = next(p for p in (tmp_path / "em").iterdir() if p.name.startswith("4_4_40"))
    bad = sorted(folder.iterdir())[:2]
    for path in bad:
        path.write_bytes(b"torn")
    done = run("downsample-volume", url, "--task-size", 8, 8, 8)
    assert done.exit_code == 1
    assert done.output.count("load failed on task") in (1, 2)
    assert "tasks failed, and the others are done" in done.output
    level = open_volume(url, 1)
    assert level.read(level.bounds).array.any()
    assert not open_volume(url, 2).read(open_volume(url, 2).bounds).array.any()
