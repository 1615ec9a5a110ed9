"""evaluate-segmentation as an operator: regions, the table, the JSON file."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.ops.evaluate_segmentation import command, evaluate_segmentation

LINE = [
    *("create-chunk", "-s", "4", "4", "4", "-d", "uint32"),
    *("copy-var", "-t", "groundtruth"),
]


def chunk(array: object, offset: tuple[int, int, int] = (0, 0, 0)) -> Chunk:
    """Return labels at *offset*."""
    return Chunk(np.asarray(array), offset, (10, 10, 10), "segmentation")


def run(task: Task, *words: str) -> Task:
    """Run the operator with the options *words*."""
    return command.main([*words], standalone_mode=False).call(task)


def task() -> Task:
    """Return a task with a body of 8 x 4 x 4 voxels that is cut in halves along x."""
    halves = np.repeat([1, 2], 2) * np.ones((8, 4, 1), int)
    items = {"chunk": chunk(halves), "groundtruth": chunk(np.ones((8, 4, 4), np.uint8))}
    return Task(Region(BoundingBox((0, 0, 0), (8, 4, 4))), items)


def test_scores_go_into_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    """The scores are kept under the output's name and printed as a table."""
    scores = run(task(), "-o", "score")["score"]
    assert (scores["voi_split"], scores["voi_merge"], scores["voxels"]) == (1, 0, 128)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "chunk against groundtruth in 0-8_0-4_0-4"
    assert lines[2].split()[:6] == ["variation", "of", "information", "1.0000", "0.0000", "1.0000"]


def test_chunks_are_compared_where_both_lie() -> None:
    """Of chunks with different boxes it is the common part that counts."""
    ours, truth = chunk(np.ones((4, 4, 4), int)), chunk(np.ones((1, 4, 4, 4), int), (2, 0, 1))
    scores = evaluate_segmentation(ours, truth)
    assert (scores["bbox"], scores["voxels"]) == ("2-4_0-4_1-4", 24)


def test_region() -> None:
    """--bbox compares inside of a box only."""
    scores = run(task(), "--bbox", "0-8_0-4_0-2")["seg_score"]
    assert (scores["bbox"], scores["voi"]) == ("0-8_0-4_0-2", 0)


def test_relabel_is_done_inside_of_the_region() -> None:
    """Pieces that meet only outside of the box are two objects in it."""
    u_shape = np.zeros((3, 1, 3), int)
    u_shape[:, 0, [0, 2]] = u_shape[0, 0, 1] = 7
    ours = chunk(np.ones((3, 1, 3), int))
    plain = evaluate_segmentation(ours, chunk(u_shape), BoundingBox((1, 0, 0), (3, 1, 3)))
    anew = evaluate_segmentation(
        ours, chunk(u_shape), BoundingBox((1, 0, 0), (3, 1, 3)), relabel=True
    )
    assert (plain["bodies"], plain["voi"]) == (1, 0)
    assert (anew["bodies"], anew["voi_merge"]) == (2, 1)


@pytest.mark.parametrize(
    ("offset", "bbox", "words"),
    [
        ((9, 0, 0), None, "0-4_0-4_0-4.*9-13_0-4_0-4.*no voxel in common"),
        ((2, 0, 0), BoundingBox((0, 0, 0), (2, 4, 4)), "0-2_0-4_0-4.*with the box 2-4_"),
    ],
)
def test_nothing_in_common(
    offset: tuple[int, int, int], bbox: BoundingBox | None, words: str
) -> None:
    """Boxes that do not meet are refused with both of them."""
    labels = np.ones((4, 4, 4), int)
    with pytest.raises(GeometryError, match=words):
        evaluate_segmentation(chunk(labels), chunk(labels, offset), bbox)


def test_channels_are_refused() -> None:
    """An affinity map is no segmentation."""
    with pytest.raises(ChunkError, match="one channel"):
        evaluate_segmentation(chunk(np.ones((3, 2, 2, 2), int)), chunk(np.ones((2, 2, 2), int)))


def test_json(tmp_path: Path) -> None:
    """The scores are written by name into a file, or into one a box."""
    one, prefix = tmp_path / "scores.json", f"{tmp_path}/all/score_"
    expected = run(task(), "--json", str(one))["seg_score"]
    run(task(), "--json", prefix)
    assert json.loads(one.read_text()) == expected
    assert json.loads(Path(f"{prefix}0-8_0-4_0-4.json").read_text()) == expected


def test_one_json_file_for_several_tasks_is_refused(tmp_path: Path) -> None:
    """Several tasks would overwrite one file, which is found before the first of them."""
    target = tmp_path / "scores.json"
    grid = ["generate-tasks", "-s", "0", "0", "0", "-z", "8", "4", "4", "-c", "4", "4", "4"]
    line = [*grid, *LINE, "evaluate-segmentation", "--json", str(target)]
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 2
    assert "2 tasks" in result.output
    assert not target.exists()


def test_results_are_the_only_thing_on_stdout() -> None:
    """On a line the table goes to stdout and the timings to stderr."""
    result = CliRunner().invoke(cli, [*LINE, "evaluate-segmentation", "--count-zero"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("chunk against groundtruth in 0-4_0-4_0-4\n")
    assert "elapsed" in result.stderr
    assert "elapsed" not in result.stdout


def test_a_dry_run_writes_no_scores(tmp_path: Path) -> None:
    """--dry-run computes and prints, and leaves no file behind."""
    line = (
        "create-chunk -d uint32 create-chunk -d uint32 -o groundtruth "
        f"evaluate-segmentation -j {tmp_path}/scores.json"
    )
    for words, there in ((f"--dry-run {line}", False), (line, True)):
        assert CliRunner().invoke(cli, words.split()).exit_code == 0
        assert (tmp_path / "scores.json").exists() == there


# --- a volume in tasks ----------------------------------------------------------------------------


def test_tables_of_tasks_add_up_to_the_volume(tmp_path: Path) -> None:
    """sum-scores of any tasks, doubled and in any order, is the score of the volume at once."""
    rng = np.random.default_rng(0)
    domain = BoundingBox((0, 0, 0), (8, 12, 10))
    ours, truth = (chunk(rng.integers(0, 4, (8, 6, 5)).repeat(2, 1).repeat(2, 2)) for _ in "ab")
    expected = evaluate_segmentation(ours, truth, per_class=True, ignore_bodies=[3])
    for number, size in enumerate([(8, 12, 10), (3, 5, 4), (1, 12, 7)]):
        boxes = list(BoxGrid.covering(domain, Zyx(*size), respect_stop=True)) * 2
        random.Random(number).shuffle(boxes)
        url = str(tmp_path / str(number))
        stage = command.main(["--table-path", url], standalone_mode=False)
        for box in boxes:
            # With a margin, which must not be counted.
            loaded = box.grow((1, 1, 1)).intersection(domain)
            items = {"chunk": ours.cut(loaded), "groundtruth": truth.cut(loaded)}
            done = stage.call(Task(Region(box), items))
            assert done.written[0].url.endswith(f"{box}.npz")
        words = ["sum-scores", url, "--json", "--per-class", "--ignore-truth-labels", "3"]
        result = CliRunner().invoke(cli, words)
        found = json.loads(result.stdout)
        assert found.pop("tasks") == len(set(boxes))
        assert found.pop("coverage") == 1
        assert found == {key: value for key, value in expected.items() if key != "bbox"}
    table = CliRunner().invoke(cli, words[:2]).stdout.splitlines()
    assert table[0] == "16 tasks, all of the volume"
    assert table[-1] == f"4 segments, 3 bodies, {np.count_nonzero(truth.array)} voxels"


def test_tasks_without_truth_are_part_of_the_volume(tmp_path: Path) -> None:
    """A task in which nothing is labelled stores its table and has no scores."""
    zeros = chunk(np.zeros((2, 2, 2), int))
    done = run(Task(None, {"chunk": zeros, "groundtruth": zeros}), "--table-path", str(tmp_path))
    assert done["seg_score"] is None
    assert len(done.written) == 1


def test_what_is_no_part_of_a_volume_is_refused(tmp_path: Path) -> None:
    """Regions of their own, and tasks that overlap, have no table that adds up."""
    tables = ["--table-path", str(tmp_path / "t")]
    for option in ("--relabel", "--bbox=0-2_0-2_0-2"):
        result = CliRunner().invoke(cli, [*LINE, "evaluate-segmentation", *tables, option])
        assert result.exit_code == 2
        assert "leave out" in result.output
    grid = ["generate-tasks", "-s", "0", "0", "0", "-z", "8", "4", "4", "-c", "4", "4", "4"]
    line = [*grid, "adjust-bbox", "-c", *"000111", *LINE, "evaluate-segmentation"]
    result = CliRunner().invoke(cli, [*line, *tables])
    assert "overlap" in result.output
    result = CliRunner().invoke(cli, ["--dry-run", *LINE, "evaluate-segmentation", *tables])
    assert result.exit_code == 0
    assert not (tmp_path / "t").exists()
