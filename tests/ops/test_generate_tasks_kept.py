"""generate-tasks where a mask or boxes of interest say which tasks there are."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.generate_tasks import command
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.tasks.task_plan import ListPlan, plan_from_json
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec


def generate(line):
    """Return the body of a generate-tasks with these options."""
    return command.main(line.split(), standalone_mode=False).body


def boxes(line):
    """Return the boxes of the tasks as strings."""
    return [str(task) for task in generate(line)]


def run(line):
    """Run a whole line."""
    return CliRunner().invoke(cli, line.split())


def store(url, values, voxel_size_nm, start=(0, 0, 0)):
    """Create a volume of these voxels."""
    values = np.asarray(values, np.uint8)
    bounds = BoundingBox.from_size(start, values.shape)
    spec = VolumeSpec(bounds, voxel_size_nm, values.dtype, None, None, Zyx(2, 2, 2))
    create_volume(spec, url).write(Chunk(values, start, voxel_size_nm))
    return url


@pytest.fixture
def mask(tmp_path):
    """Create a mask of 1×2×4 voxels of (40, 32, 32) nm of which the second and last are set."""
    return store(f"zarr://{tmp_path}/mask", [[[0, 1, 0, 0], [0, 0, 0, 2]]], (40, 32, 32))


GRID = "-z 2 8 16 -c 1 4 4 --voxel-size 40 8 8"


def test_tasks_outside_of_the_mask_are_left_out(mask, caplog):
    """Those in which it is zero make no task, their number is told, and the grid stays whole."""
    caplog.set_level("INFO")
    body = generate(f"-z 1 8 16 -c 1 4 4 --voxel-size 40 8 8 --mask {mask}")
    assert [str(task) for task in body] == ["0-1_0-4_4-8", "0-1_4-8_12-16"]
    assert len(body) == 2
    assert "6 of 8 boxes are outside the mask and are omitted" in caplog.text
    assert "outside mask" not in caplog.text
    assert body.boxes == BoxGrid(Zyx(0, 0, 0), Zyx(1, 4, 4), Zyx(1, 4, 4), Zyx(1, 2, 4))
    assert list(body.plan) == [1, 7]
    assert plan_from_json(*body.plan.to_json()) == body.plan


def test_a_task_that_a_voxel_of_the_mask_touches_is_kept(mask):
    """The boxes need not lie on the voxels of the mask."""
    line = f"-s 0 0 7 -r 1 4 13 -c 1 1 1 --voxel-size 40 8 8 --mask {mask}"
    assert [box[-3:] for box in boxes(line)] == ["7-8"] * 4


def test_the_voxel_size_is_that_of_the_volume(mask, tmp_path):
    """--mask with --volume-path needs no --voxel-size."""
    volume = store(f"zarr://{tmp_path}/em", np.ones((1, 8, 16)), (40, 8, 8))
    assert boxes(f"-v {volume} -c 1 4 8 --mask {mask}") == ["0-1_0-4_0-8", "0-1_4-8_8-16"]
    coarser = boxes(f"-v {volume} -c 1 4 4 --mask {mask} --voxel-size 40 16 16")
    assert coarser == ["0-1_0-4_0-4", "0-1_0-4_4-8"]


def test_a_mask_without_a_voxel_size_is_refused(mask):
    """How large the voxels of the boxes are must be known."""
    result = run(f"generate-tasks -z 1 8 16 -c 1 4 4 --mask {mask} create-chunk")
    assert result.exit_code == 2
    assert "give --voxel-size, or --volume-path" in " ".join(result.output.split())


def test_another_level_of_the_mask(tmp_path):
    """--mask-mip chooses it, and a level that is not there is one sentence."""
    mask = store(f"zarr://{tmp_path}/mask", [[[1]]], (40, 32, 32))
    result = run(f"generate-tasks {GRID} --mask {mask} --mask-mip 3 create-chunk")
    assert result.exit_code == 1
    assert "has no mip 3; it has mip 0" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("where", ["empty", "elsewhere"])
def test_no_tasks_left_is_an_error(tmp_path, where):
    """A mask that is zero where the tasks are ends the line before it begins."""
    values, start = ([[[0, 0]]], (0, 0, 0)) if where == "empty" else ([[[1]]], (9, 9, 9))
    mask = store(f"zarr://{tmp_path}/mask", values, (40, 32, 32), start)
    result = run(f"generate-tasks {GRID} --mask {mask} create-chunk")
    assert result.exit_code == 2
    assert "no tasks are left" in result.output
    assert "is zero in all 16 boxes" in " ".join(result.output.split())


def test_tasks_where_the_mask_ends_are_told(mask, caplog):
    """A mask that is smaller than the region counts as empty around it, and that is a warning."""
    assert boxes(f"{GRID} --mask {mask}") == ["0-1_0-4_4-8", "0-1_4-8_12-16"]
    assert "8 of 16 tasks are completely outside mask" in caplog.text


@pytest.mark.parametrize("order", ["raster", "morton", "hilbert"])
def test_parts_are_counted_among_the_tasks_that_are_left(tmp_path, order):
    """Jobs that share a masked grid by --task-index make each task once, and no empty one."""
    values = np.random.default_rng(3).integers(0, 2, (3, 4, 5))
    mask = store(f"zarr://{tmp_path}/mask", values, (1, 1, 1))
    line = f"-z 3 4 5 -c 1 1 1 --voxel-size 1 1 1 --mask {mask} --order {order}"
    whole = boxes(line)
    assert len(set(whole)) == len(whole) == values.sum()
    assert boxes(f"{line} -i 3 -p 9") + boxes(f"{line} -i 9") == whole[3:]
    with pytest.raises(
        OptionError, match=f"the plan has {len(whole)} tasks, 0 to {len(whole) - 1}"
    ):
        len(generate(f"{line} -i {len(whole)}"))


def test_a_queue_and_a_file_get_the_tasks_that_are_left(mask, tmp_path):
    """What is left out is neither sent nor written."""
    line = f"generate-tasks {GRID} --mask {mask}"
    result = run(f"{line} -q sqlite://{tmp_path}/queue -f {tmp_path}/tasks.npy")
    assert result.exit_code == 0, result.output
    queue = open_queue(f"sqlite://{tmp_path}/queue")
    bodies = {message.body for message in queue.receive(10, 60)}
    queue.close()
    assert bodies == {"0-1_0-4_4-8", "0-1_4-8_12-16"}
    rows = np.load(tmp_path / "tasks.npy").tolist()
    assert rows == [[0, 0, 4, 1, 4, 8], [0, 4, 12, 1, 8, 16]]
    again = boxes(f"--bbox-file {tmp_path}/tasks.npy")
    assert again == ["0-1_0-4_4-8", "0-1_4-8_12-16"]


def test_a_queue_is_made_unless_that_is_switched_off(tmp_path):
    """--no-create-queue takes only one that exists."""
    line = f"generate-tasks -c 1 1 1 -z 1 1 3 -q sqlite://{tmp_path}/queue"
    result = run(f"{line} --no-create-queue")
    assert result.exit_code == 1
    assert "does not exist" in result.output
    assert run(line).exit_code == 0
    assert run(f"{line} --no-create-queue").exit_code == 0


@pytest.fixture
def regions(tmp_path):
    """Return a function that writes boxes to a file."""

    def written(*texts):
        path = tmp_path / "roi.json"
        path.write_text(json.dumps(texts))
        return path

    return written


def test_boxes_of_interest_choose_those_of_the_grid(regions, caplog):
    """With --chunk-size the tasks are the boxes of the grid that touch one, each once."""
    caplog.set_level("INFO")
    path = regions("0-1_3-5_0-4", "0-1_2-3_11-12", "0-1_0-1_0-1")
    body = generate(f"-z 1 8 16 -c 1 4 4 --bbox-file {path}")
    assert [str(task) for task in body] == ["0-1_0-4_0-4", "0-1_0-4_8-12", "0-1_4-8_0-4"]
    assert f"3 of 8 boxes of the grid overlap boxes of {path}" in caplog.text
    assert str(body.boxes.bounds) == "0-1_0-8_0-16"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ["0-4_4-8_-4-0", "0-4_4-8_4-8"]),
        ("-a 1 1 2", ["2-6_5-9_-2-2", "2-6_5-9_6-10"]),
        ("-a 1 1 2 --respect-stop", ["2-3_5-6_-2-2", "2-3_5-6_6-8"]),
        ("-s 2 5 0 -r 3 6 9", ["2-6_5-9_4-8"]),
    ],
)
def test_the_grid_lies_on_whole_write_units(regions, more, expected):
    """Without a region it is the hull of the boxes, grown to multiples of chunks or blocks."""
    path = regions("2-3_5-6_-1-0", "2-3_5-6_6-7")
    assert boxes(f"-c 4 4 4 --bbox-file {path} {more}") == expected


def test_the_grid_is_that_of_the_volume(regions, tmp_path, caplog):
    """With --volume-path it begins where the volume does; boxes outside of it are told."""
    volume = store(f"zarr://{tmp_path}/em", np.ones((2, 6, 6)), (1, 1, 1), (1, 1, 1))
    path = regions("0-4_1-2_3-4", "50-51_0-1_0-1")
    assert boxes(f"-v {volume} -c 2 2 2 --bbox-file {path}") == ["1-3_1-3_3-5"]
    assert f"1 of the 2 boxes of {path} are outside the grid 1-3_1-7_1-7" in caplog.text


def test_boxes_that_are_all_outside_are_an_error(regions):
    """As where they are counted in voxels of another level."""
    path = regions("50-51_0-1_0-1", "60-61_0-1_0-1")
    result = run(f"generate-tasks -z 2 2 2 -c 2 2 2 --bbox-file {path} create-chunk")
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert "no tasks are left: all 2 boxes" in words
    assert "the first box is 50-51_0-1_0-1" in words


def test_without_a_chunk_size_each_box_is_a_task(regions, caplog):
    """In the order of the file, as it is; a box that comes again is one task, and told."""
    caplog.set_level("INFO")
    path = regions("9-12_0-1_0-7", "-1-2_3-4_5-6", "9-12_0-1_0-7")
    body = generate(f"--bbox-file {path}")
    assert [str(task) for task in body] == ["9-12_0-1_0-7", "-1-2_3-4_5-6"]
    assert f"1 of the 3 boxes in {path} are duplicates and are ignored" in caplog.text
    assert isinstance(body.plan, ListPlan)
    assert list(map(str, body.boxes)) == ["9-12_0-1_0-7", "-1-2_3-4_5-6"]
    assert boxes(f"--bbox-file {path} -i 1") == ["-1-2_3-4_5-6"]
    assert len(generate(f"--bbox-file {path} -i 1").boxes) == 2


def test_boxes_that_are_tasks_can_be_grown_to_blocks(regions):
    """--aligned-block-size takes whole write units; what then is the same is one task."""
    path = regions("1-2_0-1_0-7", "3-4_2-3_5-6", "5-6_0-1_0-1")
    assert boxes(f"--bbox-file {path} -a 4 4 8") == ["0-4_0-4_0-8", "4-8_0-4_0-8"]


def test_boxes_of_interest_and_a_mask(regions, mask, caplog):
    """Tasks touch both, whether they are of a grid or of the file."""
    caplog.set_level("INFO")
    path = regions("0-1_0-4_0-8", "0-1_0-8_8-16", "0-1_0-1_0-1")
    more = f"--bbox-file {path} --mask {mask} --voxel-size 40 8 8"
    assert boxes(f"-z 1 8 16 -c 1 4 4 {more}") == ["0-1_0-4_4-8", "0-1_4-8_12-16"]
    assert "4 of 6 boxes are outside the mask and are omitted" in caplog.text
    assert boxes(more) == ["0-1_0-4_0-8", "0-1_0-8_8-16"]
    assert "1 of 3 boxes are outside the mask and are omitted" in caplog.text


@pytest.mark.parametrize("more", ["-b 0-1_0-1_0-1", "-s 0 0 0", "-z 1 1 1", "-g 1 1 1"])
def test_a_region_without_a_chunk_size_is_refused(regions, more):
    """Where the boxes of the file are the tasks, there is no grid to lay out."""
    result = run(f"generate-tasks --bbox-file {regions('0-1_0-1_0-1')} {more}")
    assert result.exit_code == 2
    assert "are the tasks; give --chunk-size" in " ".join(result.output.split())


def test_a_file_of_nonsense_ends_with_2(regions):
    """What is wrong in the file is a usage error, before the first task."""
    result = run(f"generate-tasks --bbox-file {regions('nonsense')} create-chunk")
    assert result.exit_code == 2
    assert "item 0 of" in result.output
    result = run("generate-tasks --bbox-file nowhere.csv create-chunk")
    assert result.exit_code == 2


def test_tasks_that_share_write_units_are_refused_by_what_saves_them(regions, tmp_path):
    """Boxes that overlap, or cut a block, are told before the first task, with what works."""
    volume = store(f"zarr://{tmp_path}/em", np.ones((4, 4, 4)), (1, 1, 1))
    for texts, words in [
        (["0-2_0-2_0-2", "0-2_0-2_1-4"], "overlap"),
        (["0-2_0-2_0-2", "0-2_0-2_2-3"], "nearest aligned box is 0-2_0-2_2-4"),
    ]:
        line = f"generate-tasks --bbox-file {regions(*texts)} load-zarr -f {tmp_path}/em"
        result = run(f"{line} save-zarr -s {tmp_path}/out -c 2 2 2 --shape 4 4 4")
        assert result.exit_code != 0
        assert words in " ".join(result.output.split()), result.output
        assert volume
