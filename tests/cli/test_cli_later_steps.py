"""Later steps of a run: they never fill what an earlier one has lost, and are repaired with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import IMAGE, LINE, SAVE, TASKS, say

from chunkflow_py import BoundingBox, Chunk, open_volume
from chunkflow_py.run.home import RunHome

ONE = f"--stage one {LINE} threshold --threshold 120 {SAVE} one.zarr"
TWO = f"then --stage two {TASKS} load-zarr --store one.zarr {SAVE} two.zarr"
BLOCK = Path("one.zarr/0/c/1/1/1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image whose first task holds nothing but zeros, the second nothing dark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    volume = open_volume("image.zarr", mode="r+")
    volume.write(Chunk(np.zeros((8, 16, 16), "uint8"), (0, 0, 0)))
    return tmp_path


def stored(name):
    """Return what is stored of a volume: names and contents."""
    paths = (path for path in Path(name).rglob("*") if path.is_file())
    return {str(path.relative_to(name)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "reader",
    [
        "load-zarr --store one.zarr",
        "load-volume -v zarr://link/one.zarr/0 --fill-missing",
        "load-zarr --store one.zarr --expand-margin-size 0 0 4 crop-margin",
        "load-zarr --store image.zarr mask -v one.zarr -m 0",
    ],
)
def test_a_block_that_was_lost_is_not_read_as_zeros(reader) -> None:
    """A step stops at a lost block of the step before it, and is right when that is repaired."""
    Path("link").symlink_to(".")
    two = f"then --stage two {TASKS} {reader} {SAVE} two.zarr"
    say(f"submit --run clean {ONE.replace('one.zarr', 'a.zarr')} "
        f"{two.replace('one.zarr', 'a.zarr').replace('two.zarr', 'b.zarr')}")  # fmt: skip
    say("work clean")
    say(f"submit --run r {ONE} {two}")
    say("work r --max-tasks 8", code=75)
    BLOCK.unlink()
    told = say("work r", code=1)
    assert "is lost" in told
    assert "chunkflow repair" in told
    say("verify r", code=1)
    say("repair r")
    say("work r")
    say("verify r")
    assert stored("two.zarr/0") == stored("b.zarr/0")


def test_what_was_left_out_or_skipped_is_read_as_zeros() -> None:
    """Blocks that hold nothing, tasks that were skipped, and other regions are filled as ever."""
    one = (
        "--stage one generate-tasks --roi-size 16 32 16 --chunk-size 8 16 16 "
        "load-zarr --store image.zarr skip-all-zero threshold --threshold 255 "
        f"{SAVE} one.zarr"
    )
    say(f"submit --run r {one} {TWO}")
    say("work r")
    (state,) = {stage["state"] for stage in json.loads(say("status r --json"))["stages"]}
    assert state == "complete"
    assert not open_volume("two.zarr").read(BoundingBox.parse("0-16_0-32_0-32")).array.any()
    say("verify r")


def test_a_shard_that_was_lost_is_found_and_empty_blocks_of_one_are_not() -> None:
    """In a shard blocks may be absent; a shard may not."""
    save = "save-zarr --chunk-size 4 16 16 --shard-size 8 16 16 --store"
    one = f"--stage one {LINE} {save} one.zarr"
    volume = open_volume("image.zarr", mode="r+")
    image = volume.read(volume.bounds).array.copy()
    image[8:12] = 0  # half of each shard below
    volume.write(Chunk(image, (0, 0, 0)))
    say(f"submit --run r {one} {TWO}")
    say("work r")
    np.testing.assert_array_equal(open_volume("two.zarr").read(volume.bounds).array, image)
    say(f"submit --run s {one.replace('one.zarr', 'x.zarr')} "
        f"{TWO.replace('one.zarr', 'x.zarr').replace('two', 'other')}")  # fmt: skip
    say("work s --max-tasks 8", code=75)
    next(Path("x.zarr/0/c/1").rglob("0")).unlink() if Path("x.zarr/0/c/1/0/0").is_dir() else Path(
        "x.zarr/0/c/1/0/0"
    ).unlink()
    assert "is lost" in say("work s", code=1)


@pytest.mark.parametrize("damage", ["lost", "changed", "metadata"])
def test_repair_reopens_all_that_was_made_of_it(damage) -> None:
    """What later steps made of damaged blocks is made anew, through several steps; no more is."""
    three = f"then --stage three {TASKS} load-zarr --store two.zarr {SAVE} three.zarr"
    say(f"submit --run r {ONE} {TWO} {three}")
    say("work r")
    clean = stored("two.zarr/0"), stored("three.zarr/0")
    before = {
        name: {r.number: r.attempt for r in RunHome("r").ledger(name).records()}
        for name in ("one", "two", "three")
    }
    if damage == "metadata":
        path = Path("one.zarr/0/zarr.json")
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"fill_value": 77}))
    elif damage == "lost":
        BLOCK.unlink()
    else:
        shutil.copy("image.zarr/0/c/1/1/1", BLOCK)
    for name in ("two", "three"):  # as if they had been made of what is wrong
        shutil.copy("image.zarr/0/c/1/1/1", f"{name}.zarr/0/c/1/1/1")
    told = say("repair r")
    assert "two" in told
    assert "three" in told
    assert json.loads(say("status r --json"))["state"] != "complete"
    say("work r")
    say("verify r")
    assert (stored("two.zarr/0"), stored("three.zarr/0")) == clean
    for name in ("two", "three"):
        again = {r.number: r.attempt for r in RunHome("r").ledger(name).records()}
        changed = {n for n in again if again[n] != before[name][n]}
        assert changed == (set(range(8)) if damage == "metadata" else {7})


def test_margins_count_for_what_was_made_of_it() -> None:
    """A neighbour that has read a margin of the damaged box is done again, too."""
    two = f"then --stage two {TASKS} load-zarr --store one.zarr --expand-margin-size 0 0 2 "
    say(f"submit --run r {ONE} {two} crop-margin {SAVE} two.zarr")
    say("work r")
    before = {r.number: r.attempt for r in RunHome("r").ledger("two").records()}
    BLOCK.unlink()
    say("repair r")
    say("work r")
    again = {r.number: r.attempt for r in RunHome("r").ledger("two").records()}
    assert {n for n in again if again[n] != before[n]} == {6, 7}


def test_steps_that_were_taken_over() -> None:
    """Of a stage taken over the owner is named; when it is mended there, repair goes on here."""
    say(f"submit --run old {ONE} {TWO}")
    say("work old")
    two = f"then --stage two {TASKS} load-zarr --store one.zarr {SAVE} new.zarr"
    say(f"submit --run new --fork old {ONE} {two}")
    say("work new")
    clean = stored("new.zarr/0")
    shutil.copy("image.zarr/0/c/1/1/1", BLOCK)
    shutil.copy("image.zarr/0/c/1/1/1", "new.zarr/0/c/1/1/1")
    told = say("repair new", code=1)
    assert "taken over from" in told
    say("repair old")
    say("work old")
    assert "sent 1 task again" in say("repair new")
    say("work new")
    say("verify new")
    assert stored("new.zarr/0") == clean
    assert "sent 0 tasks" in say("repair new")


def test_tensorstore_does_not_tell_what_is_lost() -> None:
    """A reader that fills lost blocks by itself is refused for outputs of the same run."""
    pytest.importorskip("tensorstore")
    two = f"then --stage two {TASKS} load-tensorstore --driver zarr3 --kvstore one.zarr/0 "
    told = say(f"submit --run r {ONE} {two} {SAVE} two.zarr", code=2)
    assert "cannot tell a lost block from an empty one" in told
