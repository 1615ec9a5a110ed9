"""Outputs that hold something already: submit refuses it, or deletes it inside the run's boxes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.variants import gate_runs

from chunkflow_py import BoundingBox, Chunk, open_volume
from chunkflow_py.run.run_directory import RunDirectory

OLD = "create-chunk --size 16 32 32 --pattern random"
VOLUMES = {
    "zarr": "save-zarr --chunk-size 8 16 16 --store out",
    "zarr v2": "save-volume -v zarr2://{}/out -b 8 16 16",
    "shards": "save-zarr --chunk-size 8 8 8 --shard-size 8 16 16 --store out",
    "precomputed": "save-precomputed --volume-path out --block-size 8 16 16",
    "gzip": "save-volume -v precomputed://{}/out -b 8 16 16 --encoding compressed_segmentation",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image whose first and last task hold nothing but zeros."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    volume = open_volume("image.zarr", mode="r+")
    for start in ((0, 0, 0), (8, 16, 16)):
        volume.write(Chunk(np.zeros((8, 16, 16), "uint8"), start))
    return tmp_path


def voxels(name):
    """Return all voxels of a volume."""
    volume = open_volume(name)
    return volume.read(volume.bounds).array


def files(folder):
    """Return the files of a folder: names and contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", gate_runs(["zarr", "zarr v2", "shards", "precomputed"], "zarr"))
def test_blocks_of_an_earlier_run_are_refused_or_deleted(folder, kind) -> None:
    """A block that another run has left, where a task is skipped, is no result of this run."""
    save = VOLUMES[kind].format(folder)
    say(f"--quiet {OLD} {save}")
    url = "precomputed://out" if kind == "precomputed" else "zarr://out"
    before = files("out")
    line = f"{LINE} skip-all-zero {save}"
    told = say(f"submit --run r {line}", code=2)
    assert "8 objects already exist where tasks of this run will write" in told
    assert "--clear-output" in told
    assert files("out") == before
    assert not Path("r").exists()
    told = say(f"submit --run r --clear-output {line}")
    assert "sent 8 tasks" in told
    assert not voxels(url).any()
    say("work r")
    np.testing.assert_array_equal(voxels(url), voxels("image.zarr"))
    say("verify r")
    stored = files("out")
    told = say(f"submit --run r {line}")
    assert "the run already existed" in told, "the same line finds what it has written itself"
    told = say(f"submit --run r --clear-output {line}")
    assert files("out") == stored, "what the run has stored is never deleted"


def test_other_regions_of_a_volume_are_left_alone() -> None:
    """Several runs write parts of one volume; blocks outside of their boxes stay."""
    say(f"--quiet {OLD} {SAVE} out.zarr")
    before = voxels("out.zarr")
    part = "generate-tasks --roi-start 8 0 16 --roi-stop 16 32 32 --chunk-size 8 16 16"
    line = f"{part} load-zarr --store image.zarr {SAVE} out.zarr"
    told = say(f"submit --run r {line}", code=2)
    assert "2 objects already exist" in told
    say(f"submit --run r --clear-output {line}")
    box = BoundingBox.parse("8-16_0-32_16-32")
    found = voxels("out.zarr")
    assert not found[box.slices()].any()
    found[box.slices()] = before[box.slices()]
    np.testing.assert_array_equal(found, before)
    say("work r")
    other = "generate-tasks --roi-start 0 0 0 --roi-stop 8 32 32 --chunk-size 8 16 16"
    shutil.rmtree("out.zarr/0/c/0")
    told = say(f"submit --run s {other} load-zarr --store image.zarr {SAVE} out.zarr")
    assert "sent 4 tasks" in told


def test_tasks_in_flight_are_of_this_run() -> None:
    """Blocks of a task that died before it was recorded are of this run, and are not refused."""
    say(f"submit --run r --stage copy {LINE} {SAVE} out.zarr")
    say("work r")
    RunDirectory("r").ledger("copy").reopen(range(8))
    told = say(f"submit --run r --stage copy {LINE} {SAVE} out.zarr")
    assert "the run already existed" in told


def test_blocks_without_their_metadata_are_found() -> None:
    """Metadata that were deleted are made anew; the blocks beside them are still of another run."""
    say(f"--quiet {OLD} {SAVE} out.zarr")
    Path("out.zarr/zarr.json").unlink()
    Path("out.zarr/0/zarr.json").unlink()
    assert "8 objects already exist" in say(f"submit --run r {LINE} {SAVE} out.zarr", code=2)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("save-h5 -f cut_", ["cut_0-8_0-16_0-16.h5", "cut_8-16_16-32_16-32.h5"]),
        ("save-tif -f files/cut_", ["files/cut_0-8_0-16_0-16.tif"]),
        ("detect-points --min-distance 1 save-points -f points/", ["points/0-8_16-32_0-16.h5"]),
        ("mark-complete -p done/", ["done/0-8_0-16_0-16"]),
        (
            "save-precomputed --volume-path out --block-size 8 16 16 --create-thumbnail",
            ["out/thumbnail/2_4_4/0-4_0-4_0-8"],
        ),
    ],
)
def test_files_of_tasks_are_looked_for_too(folder, line, names) -> None:
    """A file that another run has left under the name of a task is refused, or deleted."""
    command = f"{LINE} {line}"
    if "thumbnail" in line:
        say(f"submit --run old {command}")
        say("work old")
        shutil.rmtree(folder / "out" / "1_1_1")
        names = sorted(str(p) for p in Path("out/thumbnail").rglob("*-*_*-*_*-*"))
        assert names
    others = ["cut_mean.h5", "cut_0-8_0-16_0-17.h5", "points/x.h5", "done/1-9_0-16_0-16"]
    for name in [*others, *names]:
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    told = say(f"submit --run r {command}", code=2)
    assert f"{len(names)} object" in told
    assert any(name in told for name in names)
    say(f"submit --run r --clear-output {command}")
    assert not any((folder / name).exists() for name in names)
    assert all((folder / name).exists() for name in others)


def test_what_a_line_takes_for_done_stays() -> None:
    """skip-task-by-blocks-in-volume and skip-task-by-file go on where another run has stopped."""
    say(f"--quiet {OLD} {SAVE} out.zarr")
    skip = "skip-task-by-blocks-in-volume -v out.zarr"
    line = LINE.replace(" load-zarr", f" {skip} load-zarr")
    assert "sent 8 tasks" in say(f"submit --run r {line} {SAVE} out.zarr")
    line = LINE.replace(" load-zarr", " skip-task-by-file -p done/ load-zarr")
    assert "sent 8 tasks" in say(f"submit --run s {line} {SAVE} out.zarr mark-complete -p done/")


def test_run_has_the_option_too() -> None:
    """Run refuses and deletes output of other runs as submit does."""
    say(f"--quiet {OLD} {SAVE} out.zarr")
    line = f"{LINE} skip-all-zero {SAVE} out.zarr"
    assert "--clear-output" in say(f"run --on local:1 --run r {line}", code=2)
    say(f"run --on local:1 --run r --clear-output {line}")
    np.testing.assert_array_equal(voxels("out.zarr"), voxels("image.zarr"))
    status = json.loads(say("status r --json"))
    assert status["state"] == "complete"
