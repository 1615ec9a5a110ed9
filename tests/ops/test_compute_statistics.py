"""compute-statistics, sum-statistics, and what reads them."""

import json
import random

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.normalization import read_foreground
from chunkflow_py.ops.compute_statistics import command


def run(*words, code=0):
    """Run a line and return what it prints to the standard output."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


@pytest.fixture
def raw(tmp_path):
    """Return the path of an image of two channels, 10 x 12 x 14 voxels at an offset."""
    path = tmp_path / "raw.h5"
    array = np.random.default_rng(0).normal(120, 30, (2, 10, 12, 14)).clip(0, 255).astype("u1")
    with h5py.File(path, "w") as file:
        file["main"] = array
        file["voxel_offset"] = (5, 0, 0)
    return path, array


def count(raw, target, size, *more):
    """Count a volume in tasks of extent *size*."""
    grid = ["-s", 5, 0, 0, "-z", 10, 12, 14, "-c", *size, "--respect-stop"]
    run("generate-tasks", *grid, "load-h5", "-f", raw, *more, "-s", target)


def test_tasks_add_up_to_the_volume(raw, tmp_path):
    """Any tasks give the statistics that NumPy gives of all voxels; the file feeds inference."""
    path, array = raw
    said = set()
    for number, size in enumerate([(10, 12, 14), (3, 5, 4), (1, 12, 7)]):
        count(path, tmp_path / f"s{number}", size, "compute-statistics")
        said.add(run("sum-statistics", tmp_path / f"s{number}", "--json", "-p", "1,50")
                 .partition('"counted"')[0])  # fmt: skip
    assert len(said) == 1
    (text,) = said
    channels = json.loads(text.rstrip(", ") + "}")["channels"]
    for channel, found in zip(array.astype(float), channels, strict=True):
        assert found["count"] == channel.size
        np.testing.assert_allclose([found["mean"], found["std"]], [channel.mean(), channel.std()])
        assert found["percentiles"] == dict(
            zip(("1", "50"), np.percentile(channel, (1, 50)), strict=True)
        )
    file = tmp_path / "statistics.json"
    table = run("sum-statistics", tmp_path / "s1", "-o", file).splitlines()
    assert table[0] == "48 tasks, all of the volume; uint8 voxels"
    assert table[2].split()[:2] == ["0", "1680"]
    run("load-h5", "-f", path, "inference", "--framework", "identity", "-c", 2, "-s", 4, 8, 8,
        "-v", 1, 2, 2, "--num-input-channels", 2, "--normalize", "zscore",
        "--normalize-statistics", file, "save-h5", "-f", tmp_path / "n.h5")  # fmt: skip
    with h5py.File(tmp_path / "n.h5") as result:
        np.testing.assert_allclose(
            np.std(result["main"], axis=(1, 2, 3), dtype=float), 1, atol=1e-3
        )


def test_contrast_by_levels_does_not_depend_on_the_chunks(raw, tmp_path):
    """normalize-contrast --levels gives the same bytes for any tasks, as without on the whole."""
    path, _ = raw
    levels = tmp_path / "levels"
    count(path, levels, (3, 5, 4), "compute-statistics")
    for mode in ("--per-section", "--whole"):
        contrast = ["normalize-contrast", "-l", 0.02, "-u", 0.05, mode]
        whole = tmp_path / f"whole{mode}.h5"
        run("load-h5", "-f", path, *contrast, "save-h5", "-f", whole)
        parts = tmp_path / f"parts{mode}" / "p_"
        grid = ["-s", 5, 0, 0, "-z", 10, 12, 14, "-c", 4, 6, 7, "--respect-stop"]
        run("generate-tasks", *grid, "load-h5", "-f", path, *contrast, "--levels", levels,
            "save-h5", "-f", parts)  # fmt: skip
        with h5py.File(whole) as file:
            expected = file["main"][:]
        files = list(parts.parent.iterdir())
        assert len(files) == 12
        for name in files:
            box = BoundingBox.parse(name.stem.removeprefix("p_"))
            with h5py.File(name) as file:
                assert np.array_equal(file["main"], expected[:, *box.slices((5, 0, 0))])


@pytest.mark.parametrize("margins", [((2, 1), (0, 3), (4, 0)), ((9, 0), (0, 11), (6, 7))])
def test_the_foreground_is_the_box_of_all_voxels_but_zeros(margins, tmp_path):
    """Found by tasks of any size, across channels; tasks with zeros only do not count."""
    array = np.zeros((2, 10, 12, 14), "f4")
    (z, y, x) = (slice(a, size - b) for (a, b), size in zip(margins, (10, 12, 14), strict=True))
    array[0, z.start, y.start, x.start] = np.nan
    array[1, z.stop - 1, y.stop - 1, x.stop - 1] = -2
    path = tmp_path / "raw.h5"
    with h5py.File(path, "w") as file:
        file["main"], file["voxel_offset"] = array, (5, 0, 0)
    for number, size in enumerate([(10, 12, 14), (3, 5, 4)]):
        target = tmp_path / f"s{number}"
        count(path, target, size, "compute-statistics", "--range", -2, 2)
        box = f"{z.start + 5}-{z.stop + 5}_{y.start}-{y.stop}_{x.start}-{x.stop}"
        assert f"all voxels other than 0 lie in {box} (z, y and x)" in run("sum-statistics", target)
        file = tmp_path / f"{number}.json"
        run("sum-statistics", target, "-o", file)
        assert "foreground" not in json.loads(file.read_text())
        text = run("sum-statistics", target, "-o", file, "--foreground", code=1)
        assert "cannot be left out of the statistics; count only this box" in text


def test_statistics_of_the_foreground_are_those_of_its_box(tmp_path):
    """As NumPy computes them from the box, with the zeros that lie inside of it."""
    array = np.zeros((2, 10, 12, 14), "i2")
    box = (slice(None), slice(2, 9), slice(0, 7), slice(5, 14))
    array[box] = np.random.default_rng(1).integers(-3, 40, array[box].shape)
    array[0, 2:9, 0, 5], array[0, 8, 6, 13] = 1, 1
    path, file = tmp_path / "raw.h5", tmp_path / "file.json"
    with h5py.File(path, "w") as made:
        made["main"], made["voxel_offset"] = array, (5, 0, 0)
    count(path, tmp_path / "s", (3, 5, 4), "compute-statistics")
    printed = run("sum-statistics", tmp_path / "s", "-o", file, "--foreground")
    assert "0-7_5-14 (z, y and x); the statistics are those of this box" in printed
    assert read_foreground(str(file)) == BoundingBox((7, 0, 5), (14, 7, 14))
    for channel, found in zip(array[box], json.loads(file.read_text())["channels"], strict=True):
        assert found["count"] == channel.size
        np.testing.assert_allclose([found["mean"], found["std"]], [channel.mean(), channel.std()])
        assert (found["min"], found["max"]) == (channel.min(), channel.max())
    (tmp_path / "s" / "8-11_0-5_4-8.npz").unlink()
    text = run("sum-statistics", tmp_path / "s", "--foreground", code=1)
    assert "run compute-statistics for all tasks of generate-tasks --roi-start 7 0 5" in text


def test_inside_a_mask_no_zeros_are_left_out(tmp_path):
    """The zeros outside of the box were not counted."""
    array = np.zeros((10, 12, 14), "u1")
    mask = array.copy()
    mask[2:9, :7, 5:] = 1
    array[2:9, :7, 5:] = np.random.default_rng(1).integers(0, 9, (7, 7, 9))
    array[2, 0, 5] = array[8, 6, 13] = 9
    for name, values in (("raw", array), ("mask", mask)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as made:
            made["main"], made["voxel_offset"] = values, (5, 0, 0)
    load = ("load-h5", "-f", tmp_path / "mask.h5", "--output-name", "mask")
    count(tmp_path / "raw.h5", tmp_path / "s", (3, 5, 4), *load, "compute-statistics", "-m", "mask")
    run("sum-statistics", tmp_path / "s", "-o", tmp_path / "file.json", "--foreground")
    (found,) = json.loads((tmp_path / "file.json").read_text())["channels"]
    np.testing.assert_allclose(found["std"], array[mask > 0].std())
    assert found["count"] == mask.sum()


def test_an_image_of_zeros_or_older_counts_have_no_foreground(raw, tmp_path):
    """The foreground is then left out of the file."""
    path, _ = raw
    count(path, tmp_path / "new", (10, 12, 14), "compute-statistics")
    (part,) = (tmp_path / "new").iterdir()
    with np.load(part) as found:
        older = {name: found[name] for name in found.files if name != "foreground"}
    (tmp_path / "old").mkdir()
    np.savez(tmp_path / "old" / part.name, **older)
    zeros = tmp_path / "zeros.h5"
    with h5py.File(zeros, "w") as file:
        file["main"], file["voxel_offset"] = np.zeros((10, 12, 14), "u1"), (5, 0, 0)
    count(zeros, tmp_path / "none", (10, 12, 14), "compute-statistics")
    for name in ("old", "none"):
        run("sum-statistics", tmp_path / name, "-o", tmp_path / "file.json")
        assert read_foreground(str(tmp_path / "file.json")) is None
        text = run("sum-statistics", tmp_path / name, "--foreground", code=1)
        assert "do not include the bounding box of all voxels other than 0" in text


@pytest.mark.parametrize("box", ["3-2_0-1_0-1", "whole", 7, [0, 1], "0-1_0-1"])
def test_a_foreground_that_is_no_box_is_refused(box, tmp_path):
    """In one sentence, with the form that is right."""
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"version": 1, "channels": [{}], "foreground": box}))
    with pytest.raises(OptionError, match=r"must be a box such as 3-128_0-512_40-480"):
        read_foreground(str(file))


def test_margins_and_duplicates_are_counted_once(tmp_path):
    """A task counts its own box, however often, and says what it has stored."""
    stage = command.main(["-s", str(tmp_path)], standalone_mode=False)
    array = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
    domain = BoundingBox.parse("0-4_0-4_0-4")
    boxes = [BoundingBox.parse(f"0-4_0-4_{x}-{x + 2}") for x in (0, 2)]
    tasks = [Task(Region(b), {"chunk": Chunk(array, domain=domain)}) for b in boxes]
    order = [*tasks, *tasks]
    random.Random(0).shuffle(order)
    for task in order:
        stage.call(task)
    assert tasks[0].written[0].url.endswith("/0-4_0-4_0-2.npz")
    found = json.loads(run("sum-statistics", tmp_path, "--json"))
    assert found["channels"][0]["count"] == 64
    assert found["counted"] == {
        "not_finite": 0, "dtype": "uint8", "channels": 1, "bins": None, "per_section": True,
        "tasks": 2, "coverage": 1.0,
    }  # fmt: skip


def test_masks_and_maps(tmp_path):
    """Voxels where a mask is 0 do not count; maps are counted in bins from 0 to 1."""
    p = np.linspace(0, 1, 1001, dtype=np.float32)[:1000].reshape(10, 10, 10)
    items = {"chunk": Chunk(p, kind="probability"), "mask": Chunk((p >= 0.5)[None].astype("u1"))}
    command.main(["-s", str(tmp_path), "-m", "mask"], standalone_mode=False).call(Task(None, items))
    found = json.loads(run("sum-statistics", tmp_path, "--json", "-p", "50"))
    (channel,) = found["channels"]
    assert (channel["count"], channel["min"]) == (500, 0.5)
    assert channel["percentiles"]["50"] == pytest.approx(0.75, abs=0.002)
    assert found["counted"]["bins"] == [0, 1, 1000]


def test_mistakes_are_told_before_the_first_task(tmp_path):
    """Overlapping tasks, floats without a range, and ranges that are none, end the line."""
    target = tmp_path / "s"
    make = ["create-chunk", "-s", 8, 8, 8]
    grid = ["generate-tasks", "-s", 0, 0, 0, "-z", 8, 8, 8, "-c", 8, 8, 4]
    count_it = ["compute-statistics", "-s", target]
    said = run(*grid, *make, "adjust-bbox", "-c", 0, 0, 0, 1, 1, 1, *count_it, code=1)
    assert "boxes 0-9_0-9_0-5 and 0-9_0-9_4-9 of the tasks overlap" in said
    said = run(*make, "-d", "float32", *count_it, code=2)
    assert "--range LOW HIGH" in said
    assert "--range 2 1" in run(*make, *count_it, "--range", 2, 1, code=2)
    for low, high in ((2, 2), ("-inf", 5), (0, "inf"), ("nan", 1)):
        said = run(*make, *count_it, "--range", low, high, code=2)
        assert f"--range {low} {high} is not a range; give two finite numbers" in said
    assert "not a list of numbers" in run("sum-statistics", target, "-p", "200", code=2)
    assert "no counts below" in run("sum-statistics", tmp_path / "none", code=1)
    said = run(*make, *count_it, "normalize-contrast", "--levels", target, code=2)
    assert "writes to" in said
    network = ["inference", "--framework", "identity", "-c", 1, "-s", 8, 8, 8, "-v", 2, 2, 2]
    zscore = ["--normalize", "zscore", "--normalize-statistics", tmp_path]
    folder = run(*make, *network, *zscore, code=2)
    assert "chunkflow sum-statistics" in folder


def test_a_dry_run_stores_nothing(tmp_path):
    """--dry-run counts nothing."""
    run("--dry-run", "create-chunk", "compute-statistics", "-s", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_counts_of_two_volumes_below_one_place_are_told(tmp_path):
    """They are added up, as files of one image may be, and the sum says so."""
    for name, size in (("a", 4), ("b", 6)):
        np.save(tmp_path / f"{name}.npy", np.zeros((size, 4, 4), np.uint8))
        place = f"-t {10 * size} 0 0 compute-statistics -s {tmp_path}/counts"
        line = f"--quiet load-npy -f {tmp_path}/{name}.npy {place}"
        assert CliRunner().invoke(cli, line.split()).exit_code == 0
    told = CliRunner().invoke(cli, ["sum-statistics", f"{tmp_path}/counts"])
    assert "read volumes with 2 different bounds" in told.stderr
    assert told.stdout.startswith("2 tasks; uint8")
