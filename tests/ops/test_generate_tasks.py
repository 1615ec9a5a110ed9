"""generate-tasks; sending to a queue is tested with the queues."""

from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.generate_tasks import command
from chunkflow_py.pipeline.task_source import Planner, TaskGenerator
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.tasks.checkerboard import checkerboard
from chunkflow_py.testing.peak_memory import peak_of
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec


def generate(line):
    """Return the body of a generate-tasks with these options."""
    return command.main(line.split(), standalone_mode=False).body


def boxes(line):
    """Return the boxes of the tasks as strings."""
    return [str(task) for task in generate(line)]


def test_raster_order_over_a_region():
    """Boxes come z slowest, x fastest."""
    expected = ["0-1_0-2_3-5", "0-1_0-2_5-7", "0-1_2-4_3-5", "0-1_2-4_5-7"]
    assert boxes("-c 1 2 2 -s 0 0 3 -r 1 4 7") == expected
    assert boxes("-c 1 2 2 -s 0 0 3 -z 1 4 4") == expected
    assert boxes("-c 1 2 2 -s 0 0 3 -g 1 2 2") == expected


def test_the_last_box_keeps_its_size_or_the_stop():
    """--respect-chunk-size reaches over the stop, --respect-stop cuts off at it."""
    assert boxes("-c 1 1 4 -z 1 1 6") == ["0-1_0-1_0-4", "0-1_0-1_4-8"]
    assert boxes("-c 1 1 4 -z 1 1 6 --respect-stop") == ["0-1_0-1_0-4", "0-1_0-1_4-6"]


def test_a_bounding_box_is_one_task_or_is_cut():
    """--bounding-box alone is one task; with --chunk-size it is the region."""
    assert boxes("-b -2-2_0-4_0-4") == ["-2-2_0-4_0-4"]
    assert boxes("-b -2-2_0-4_0-4 -c 2 4 4") == ["-2-0_0-4_0-4", "0-2_0-4_0-4"]


def test_a_bounding_box_may_have_a_time(tmp_path, monkeypatch):
    """All tasks of the region have its time; parts, masks and files of boxes go with it."""
    box = "--bounding-box t2_0-4_0-4_0-8"
    assert boxes(box) == ["t2_0-4_0-4_0-8"]
    two = ["t2_0-4_0-4_0-4", "t2_0-4_0-4_4-8"]
    assert boxes(f"{box} --chunk-size 4 4 4") == two
    assert boxes(f"{box} --chunk-size 4 4 4 --task-index-start 1") == two[1:]
    assert boxes(f"{box} --chunk-size 4 4 4 --task-index-stop 1") == two[:1]
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("0-1_0-1_5-6\n")
    assert boxes(f"{box} --chunk-size 4 4 4 --bbox-file a.csv") == two[1:]
    Path("a.csv").write_text("t1_0-2_0-2_0-2\nt0_0-2_0-2_0-2\n0-2_0-2_0-2\n")
    file = "--bbox-file a.csv"
    assert boxes(file) == ["t1_0-2_0-2_0-2", "t0_0-2_0-2_0-2", "0-2_0-2_0-2"]
    assert boxes(f"{file} --aligned-block-size 4 4 4")[0] == "t1_0-4_0-4_0-4"
    with pytest.raises(OptionError, match="such as t1_0-2_0-2_0-2, but --chunk-size can only"):
        boxes(f"{file} --chunk-size 4 4 4")


def test_alignment_grows_the_region():
    """The region grows to multiples of --aligned-block-size."""
    assert boxes("-c 1 1 8 -s 0 0 5 -r 1 1 9 -a 1 1 4") == ["0-1_0-1_4-12"]


def test_indexes_select_a_part():
    """--task-index-start and -stop select tasks by number; a stop beyond the end is the end."""
    line = "-c 1 1 1 -z 1 1 5"
    assert boxes(f"{line} -i 3") == boxes(line)[3:]
    assert boxes(f"{line} -p 2") == boxes(line)[:2]
    assert boxes(f"{line} -i 1 -p 99") == boxes(line)[1:]
    body = generate(f"{line} -i 1 -p 3")
    assert len(body) == 2


def test_a_part_is_checked_as_the_whole():
    """Write units and bounds of a new volume are those of the whole grid, in every job alike."""
    assert str(generate("-c 1 1 1 -z 1 1 5 -i 3").boxes.bounds) == "0-1_0-1_0-5"


@pytest.mark.parametrize("order", ["raster", "morton", "hilbert"])
def test_tasks_are_numbered_in_their_order(order, tmp_path):
    """Numbers count along the curve, in a line, a part of it and a file."""
    line = f"-c 1 2 2 -s -1 0 3 -z 3 5 6 --respect-stop --order {order}"
    whole = boxes(line)
    assert sorted(whole) == sorted(boxes("-c 1 2 2 -s -1 0 3 -z 3 5 6 --respect-stop"))
    assert boxes(f"{line} -i 5 -p 9") == whole[5:9]
    path = tmp_path / "tasks.npy"
    list(generate(f"{line} -i 2 -f {path}"))
    written = [BoundingBox(Zyx.of(row[:3]), Zyx.of(row[3:])) for row in np.load(path).tolist()]
    assert list(map(str, written)) == whole[2:]


def test_orders_differ():
    """The curves are what they are called."""
    line = "-c 1 1 1 -z 1 4 4 --order"
    cells = {order: boxes(f"{line} {order}")[:5] for order in ("raster", "morton", "hilbert")}
    assert cells["raster"][4] == "0-1_1-2_0-1"
    assert cells["morton"][2:] == ["0-1_1-2_0-1", "0-1_1-2_1-2", "0-1_0-1_2-3"]
    assert cells["hilbert"][1:3] == ["0-1_0-1_1-2", "0-1_1-2_1-2"]


def test_checkerboard_is_an_order_for_sending_only(tmp_path, caplog):
    """Numbers, files and the order in one process are raster; a queue gets the parts in colours."""
    line = "-c 1 1 1 -z 3 4 5 -i 7 -p 55"
    raster = boxes(line)
    with caplog.at_level("INFO"):
        assert boxes(f"{line} --order checkerboard") == raster
    assert "runs its tasks in raster order; checkerboard order is for" in caplog.text
    paths = [tmp_path / name for name in ("raster.npy", "checkerboard.npy")]
    for path, options in zip(paths, ("", "--order checkerboard"), strict=True):
        list(generate(f"{line} {options} -f {path}"))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    address = f"sqlite://{tmp_path}/queue.sqlite"
    list(generate(f"{line} --order checkerboard -q {address}"))
    with closing(open_queue(address)) as queue:
        sent = [message.body for message in queue.receive(100, lease_s=60)]
    plan = generate(line).plan
    assert sent == [plan.text(number) for number in checkerboard(plan)]
    assert sent != raster
    assert sorted(sent) == sorted(raster)


def test_disbatch_makes_the_task_of_its_number(monkeypatch):
    """--disbatch makes the one task whose number stands in the environment."""
    monkeypatch.setenv("DISBATCH_REPEAT_INDEX", "3")
    assert boxes("-c 1 1 1 -z 1 1 5 -d") == ["0-1_0-1_3-4"]


def test_a_file_holds_the_boxes_and_no_task_runs(tmp_path):
    """--file-path writes start and stop of every box, and nothing runs."""
    path = tmp_path / "tasks.npy"
    args = f"generate-tasks -c 2 2 2 -s -1 0 0 -z 2 4 3 --respect-stop -f {path}".split()
    result = CliRunner().invoke(cli, [*args, "create-chunk", "-s", "2", "2", "2"])
    assert result.exit_code == 0, result.output
    assert f"wrote 4 tasks to {path}" in result.stderr
    rows = np.load(path)
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        [-1, 0, 0, 1, 2, 2], [-1, 0, 2, 1, 2, 3], [-1, 2, 0, 1, 4, 2], [-1, 2, 2, 1, 4, 3],
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [path]


def test_a_dry_run_writes_no_file(tmp_path):
    """With --dry-run no file is written."""
    path = tmp_path / "tasks.npy"
    args = f"--dry-run generate-tasks -c 2 2 2 -f {path}".split()
    assert CliRunner().invoke(cli, args).exit_code == 0
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    """A target that is a folder's child of a file ends with 1, and no traceback."""
    (tmp_path / "file").write_text("")
    args = f"generate-tasks -c 2 2 2 -f {tmp_path}/file/tasks.npy".split()
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 1
    assert "Error: cannot" in result.output


TEN_MILLION = TaskGenerator(Planner(Zyx(1, 1, 1), (Zyx(0, 0, 0), Zyx(100, 400, 250), None)))


@pytest.mark.long
def test_ten_million_tasks_take_no_memory():
    """Memory does not grow with the number of tasks, be they many or passed many."""

    def pass_many():
        tasks = iter(TEN_MILLION)
        assert sum(1 for _ in islice(tasks, 30_000)) == 30_000

    assert len(TEN_MILLION) == 10_000_000
    assert peak_of(pass_many).traced < 1_000_000  # a list of 30,000 tasks takes 20 million


def test_a_file_of_a_million_boxes_takes_little_memory(tmp_path):
    """Boxes are streamed to the file."""
    path = tmp_path / "tasks.npy"
    region = (Zyx(0, 0, 0), Zyx(10, 400, 250), None)
    body = TaskGenerator(Planner(Zyx(1, 1, 1), region), file_path=str(path))
    assert peak_of(lambda: list(body)).traced < 25_000_000  # the file has 48 million bytes
    rows = np.load(path, mmap_mode="r")
    assert rows.shape == (1_000_000, 6)
    assert rows[-1].tolist() == [9, 399, 249, 10, 400, 250]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "give --chunk-size, --bounding-box"),
        ("-b 0-1_0-1_0-1 -s 0 0 0", "leave out the --roi options"),
        ("-c 1 1 1 -i 1", "the plan has 1 tasks, 0 to 0"),
        ("-c 1 1 1 -z 1 1 9 -i 5 -p 5", "6 selects one task"),
        ("-c 1 1 1 -d", "DISBATCH_REPEAT_INDEX, which is not set"),
        ("-c 1 1 1 -d -i 2", "leave out --task-index-start"),
        ("-c 1 1 1 -f tasks.txt", "use tasks.txt.npy"),
        ("-c 0 1 1", "x>=1"),
        ("-c 1 1 1 -s 0 0 0 -r 2 2 2 -z 1 1 1", "leave --roi-stop or --roi-size out"),
        ("-c 1 1 1 -b nonsense", "is not a box"),
    ],
)
def test_bad_options_end_with_2(line, words, monkeypatch):
    """Options that do not fit together are a usage error of one sentence."""
    monkeypatch.delenv("DISBATCH_REPEAT_INDEX", raising=False)
    result = CliRunner().invoke(cli, ["generate-tasks", *line.split()])
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


@pytest.mark.parametrize("value", ["x", "-1", "9"])
def test_bad_disbatch_numbers_are_refused(value, monkeypatch):
    """A number that is none, or that no task has, is refused with both."""
    monkeypatch.setenv("DISBATCH_REPEAT_INDEX", value)
    with pytest.raises(OptionError, match=value):
        generate("-c 1 1 1 -z 1 1 9 -d")


@pytest.fixture
def volume(tmp_path):
    """Create a precomputed volume of 10×20×30 voxels from (1, 2, 3) on."""
    pytest.importorskip("cloudvolume")
    spec = VolumeSpec(
        BoundingBox.from_size((1, 2, 3), (10, 20, 30)), (40, 4, 4), np.dtype(np.uint8), 1,
        "image", Zyx(5, 10, 10),
    )  # fmt: skip
    create_volume(spec, f"precomputed://file://{tmp_path}/em")
    return f"precomputed://file://{tmp_path}/em"


def test_the_bounds_of_a_volume_are_the_region(volume):
    """Without a region the tasks cover the volume; a start or a size narrows it."""
    body = generate(f"-v {volume} -c 10 10 30")
    assert [str(task) for task in body] == ["1-11_2-12_3-33", "1-11_12-22_3-33"]
    assert boxes(f"-v {volume} -c 10 10 30 -s 1 12 3") == ["1-11_12-22_3-33"]
    assert boxes(f"-v {volume} -c 5 10 10 -z 5 10 10") == ["1-6_2-12_3-13"]
    assert boxes(f"-v {volume} -b 0-5_0-5_0-5 -m 7") == ["0-5_0-5_0-5"]


def test_the_lines_level_is_the_default(volume):
    """Without --mip of its own the command takes that of the line."""
    args = f"--mip 3 generate-tasks -v {volume} -c 1 1 1 create-chunk".split()
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 1
    assert "has no mip 3; it has mip 0" in result.output


def test_a_missing_volume_is_one_sentence():
    """A volume that is not there ends with 1 before any task."""
    result = CliRunner().invoke(
        cli, ["generate-tasks", "-v", "nowhere", "-c", "1", "1", "1", "create-chunk"]
    )
    assert result.exit_code == 1
    assert "nowhere does not exist" in result.output


def test_a_part_that_does_not_exist_in_a_volume_ends_with_2(volume):
    """The number of a task beyond a volume's last is a usage error as well."""
    result = CliRunner().invoke(cli, f"generate-tasks -v {volume} -c 10 20 30 -i 1".split())
    assert result.exit_code == 2
    assert "the plan has 1 tasks, 0 to 0" in result.output
