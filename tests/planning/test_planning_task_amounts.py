"""What a plan counts before a run is what the run then reads, writes and computes."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigs.command_line import say

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.command_parts import operators_of
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.planning.task_amounts import middle_tasks, patches_of, reads_of, total, writes_of
from chunkflow_py.run.step_pipeline import worker_pipeline
from chunkflow_py.tasks.task_plan import GridPlan
from chunkflow_py.volume import open_volume

sizes = st.builds(Zyx, *[st.integers(1, 12)] * 3)
NETWORK = "inference --framework identity --input-patch-size 8 16 16 --num-output-channels 2 "
NETWORK += "--output-patch-overlap 2 4 4"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with an image of 24 x 48 x 48 voxels in blocks of 8 x 16 x 16."""
    monkeypatch.chdir(tmp_path)
    image = "create-chunk --size 24 48 48 --pattern random --voxel-offset 4 0 8"
    say(f"--quiet {image} save-zarr --store image.zarr --chunk-size 8 16 16")


def pipeline_of(line):
    """Return a line, checked."""
    source, *rest = read_line(shlex.split(line))
    pipeline = worker_pipeline(list(operators_of(rest)), source)
    pipeline.check()
    return pipeline


@given(sizes, sizes, sizes, st.booleans())
def test_a_grid_is_counted_by_its_axes(size, stride, region, respect_stop):
    """The sum over a grid, axis by axis, is the sum over its boxes, cut off by a volume or not."""
    grid = BoxGrid.covering(
        BoundingBox.from_size((3, 0, -2), region),
        size,
        stride.low(size),
        respect_stop=respect_stop,
    )
    bounds = BoundingBox((4, 0, 0), (9, 9, 9))

    def measure(box):
        return box.intersection(bounds).size

    one_by_one = sum(measure(box).product() for box in grid)
    assert total(grid, measure) == pytest.approx(one_by_one)
    assert total(list(grid), measure) == pytest.approx(one_by_one)


@pytest.mark.parametrize("tasks", ["8 16 16", "16 32 24"])
@pytest.mark.parametrize("halo", ["gaussian-filter --sigma 1 --sigma-z 0.5", NETWORK])
def test_a_run_reads_writes_and_computes_what_was_counted(tasks, halo):
    """Bytes, blocks and patches of all tasks are exact, with margins and cut off at the faces."""
    pipeline = pipeline_of(
        f"generate-tasks -v zarr://image.zarr --chunk-size {tasks} --respect-stop "
        f"load-zarr --store image.zarr -e auto {halo} save-zarr --store out.zarr"
    )
    (read,), (written,) = reads_of(pipeline), writes_of(pipeline)
    network = next((stage.body for stage in pipeline.operators if stage.name == "inference"), None)
    run, engines = [], []
    for task in pipeline.run():
        assert task.outcome is None, task.outcome
        run += [stored for stored in task.written if stored.size is not None]
        engines.append(getattr(network, "engine", None))
    loader = pipeline.operators[0].body
    assert loader.traffic.needed_bytes == read.total_bytes
    assert loader.traffic.decoded_bytes <= read.block_bytes
    assert len(run) == written.requests
    there = open_volume("zarr://out.zarr")
    stored = there.bounds.size.product() * (there.channels or 1) * there.dtype.itemsize
    assert written.total_bytes == written.volume_bytes == stored
    assert read.volume_bytes == 24 * 48 * 48
    assert read.amplification > 1
    if network is not None:
        (patches,) = patches_of(pipeline)
        assert engines[0].patches_run == patches.computed
        assert patches.recomputation > 1


def test_one_task_computes_nothing_twice():
    """Without faces of tasks the patches are the ideal, and no voxel is read twice."""
    pipeline = pipeline_of(
        f"generate-tasks -v zarr://image.zarr --chunk-size 24 48 48 load-zarr --store image.zarr "
        f"{NETWORK} save-zarr --store out.zarr"
    )
    (read,), (patches,) = reads_of(pipeline), patches_of(pipeline)
    assert (read.amplification, read.block_amplification) == (1, 1)
    assert (patches.computed, patches.recomputation) == (patches.ideal, 1)
    assert (read.task_requests, read.requests) == (27, 27)


def test_shards_are_asked_where_their_blocks_are():
    """Reading a shard costs its index beside its blocks; writing one is a single request."""
    image = "create-chunk --size 16 32 32 --pattern random"
    blocks = "--chunk-size 8 16 16 --shard-size 16 32 32"
    say(f"--quiet {image} save-zarr --store shards.zarr {blocks}")
    pipeline = pipeline_of(
        "generate-tasks -v zarr://shards.zarr --chunk-size 16 32 32 load-zarr --store shards.zarr "
        f"save-zarr --store out.zarr {blocks}"
    )
    (read,), (written,) = reads_of(pipeline), writes_of(pipeline)
    assert read.requests == 8 + 2
    assert written.requests == 1
    assert (written.unit, written.unit_is_fixed) == (Zyx(16, 32, 32), True)


def test_files_are_one_a_task():
    """A line without tasks reads its file whole, and writes one."""
    say("--quiet load-zarr --store image.zarr save-h5 -f image.h5")
    stages = list(operators_of(read_line(shlex.split("load-h5 -f image.h5 save-h5 -f out.h5"))))
    from chunkflow_py.pipeline.pipeline import Pipeline

    pipeline = Pipeline(stages)
    pipeline.check()
    (read,), (written,) = reads_of(pipeline), writes_of(pipeline)
    assert read.total_bytes == written.total_bytes == 24 * 48 * 48
    assert (read.requests, written.requests, read.block_bytes) == (0, 1, None)


def test_tasks_of_the_middle_are_found_at_once():
    """However many there are; a few are all taken, those of the middle first."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(4000, 4000, 4000))
    half = 32_000_000_000
    assert middle_tasks(GridPlan(grid), 3) == [half, half + 1, half + 2]
    part = GridPlan(grid, indexes=range(1000, 4_000_001_000))
    assert middle_tasks(part, 2) == [2_000_001_000, 2_000_001_001]
    assert middle_tasks(GridPlan(grid, indexes=range(7, 11)), 9) == [9, 10, 7, 8]
