"""Later steps of a run: they never fill what an earlier one has lost, and are repaired with it."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import IMAGE, LINE, SAVE, TASKS, say
from rigs.variants import gate_runs

from chunkflow_py import BoundingBox, Chunk, open_volume
from chunkflow_py.cli.run_pipelines import pipeline_of_step
from chunkflow_py.errors import OperatorError
from chunkflow_py.pipeline.operator import TaskSource
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker.worker import pipeline_source
from chunkflow_py.store.store_protocol import Stored
from chunkflow_py.volume.array_identity import expect

ONE = f"--stage one {LINE} threshold --threshold 120 {SAVE} one.zarr"
TWO = f"then --stage two {TASKS} load-zarr --store one.zarr {SAVE} two.zarr"
BOX = BoundingBox.parse("0-16_0-32_0-32")
BLOCK = Path("one.zarr/0/c/1/1/1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image whose first task holds nothing but zeros, the second nothing dark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    volume = open_volume("image.zarr", mode="r+")
    volume.write(Chunk(np.zeros((8, 16, 16), "uint8"), (0, 0, 0)))
    yield tmp_path
    expect([])


def work(run="r", most=100):
    """Execute a run as a worker does, in this process; return the errors."""
    home = RunDirectory(run)
    while (name := home.current_step()) is not None:
        stage, plan, ledger = home.spec.step(name), home.plan(name), home.ledger(name)
        if name != home.spec.first:
            home.renew(name)
            home.set_sent(name, len(plan))
        numbers = list(ledger.missing(plan))[:most]
        most -= len(numbers)
        source = TaskSource((), lambda: map(plan.region, numbers))  # noqa: B023 run at once
        wrong = []
        pipeline = pipeline_of_step(pipeline_source(home, stage), source)
        for task, number in zip(pipeline.run(), numbers):
            if isinstance(task.outcome, OperatorError):
                wrong.append(str(task.outcome))
                continue
            state, box = "skipped" if task.outcome else "done", str(plan.region(number))
            written, attempt = tuple(task.written), secrets.token_hex(4)
            ledger.record([Record(number, box, state, stage.hash, attempt, "", written=written)])
        if wrong or list(ledger.missing(plan)):
            return wrong
        ledger.compact()
        home.close(name)
        if not most:
            return []
    return []


def stored(name):
    """Return the stored objects of a volume by name."""
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
    say(f"submit --run r {ONE} {two}")
    assert work(most=8) == []
    clean = stored("one.zarr/0")
    BLOCK.unlink()
    wrong = work()
    assert wrong
    assert all("is lost: " in each and "chunkflow repair" in each for each in wrong)
    say("verify r", code=1)
    say("repair r")
    assert work() == []
    say("verify r")
    assert stored("one.zarr/0") == clean
    image, mask = (open_volume(f"{name}.zarr").read(BOX).array for name in ("image", "one"))
    wanted = np.where(mask, image, 0) if "mask" in reader else mask
    np.testing.assert_array_equal(open_volume("two.zarr").read(BOX).array, wanted)


def test_what_was_left_out_or_skipped_is_read_as_zeros() -> None:
    """Blocks that hold nothing, tasks that were skipped, and other regions are filled as ever."""
    one = (
        "--stage one generate-tasks --roi-size 16 32 16 --chunk-size 8 16 16 "
        "load-zarr --store image.zarr skip-all-zero threshold --threshold 255 "
        f"{SAVE} one.zarr"
    )
    say(f"submit --run r {one} {TWO}")
    assert work() == []
    assert not open_volume("two.zarr").read(BOX).array.any()
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
    assert work(most=8) == []
    shard = Path("one.zarr/0/c/1/1/1")
    content = shard.read_bytes()
    shard.unlink()
    (wrong,) = work()
    assert "is lost" in wrong
    shard.write_bytes(content)
    assert work() == []
    np.testing.assert_array_equal(open_volume("two.zarr").read(BOX).array, image)


@pytest.mark.parametrize("damage", ["lost", "changed", "metadata"])
def test_repair_reopens_all_that_was_made_of_it(damage) -> None:
    """Exactly the tasks of later steps that read damaged blocks are repeated."""
    three = f"then --stage three {TASKS} load-zarr --store two.zarr {SAVE} three.zarr"
    say(f"submit --run r {ONE} {TWO} {three}")
    assert work() == []
    clean = stored("two.zarr/0"), stored("three.zarr/0")
    before = {
        name: {r.number: r.attempt for r in RunDirectory("r").ledger(name).records()}
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
    assert "two" in told or damage == "metadata", "which are sent at once"
    assert "three" in told
    assert json.loads(say("status r --json"))["state"] != "complete"
    assert work() == []
    say("verify r")
    assert (stored("two.zarr/0"), stored("three.zarr/0")) == clean
    for name in ("two", "three"):
        again = {r.number: r.attempt for r in RunDirectory("r").ledger(name).records()}
        changed = {n for n in again if again[n] != before[name][n]}
        assert changed == (set(range(8)) if damage == "metadata" else {7})


def test_margins_count_for_what_was_made_of_it() -> None:
    """A neighbour that has read a margin of the damaged box is done again, too."""
    two = f"then --stage two {TASKS} load-zarr --store one.zarr --expand-margin-size 0 0 2 "
    say(f"submit --run r {ONE} {two} crop-margin {SAVE} two.zarr")
    assert work() == []
    before = {r.number: r.attempt for r in RunDirectory("r").ledger("two").records()}
    BLOCK.unlink()
    say("repair r")
    assert work() == []
    again = {r.number: r.attempt for r in RunDirectory("r").ledger("two").records()}
    assert {n for n in again if again[n] != before[n]} == {6, 7}


def test_steps_that_were_taken_over() -> None:
    """Repair names the run that owns a forked step; after its repair, this one continues."""
    say(f"submit --run old {ONE} {TWO}")
    assert work("old") == []
    two = f"then --stage two {TASKS} load-zarr --store one.zarr {SAVE} new.zarr"
    say(f"submit --run new --fork old {ONE} {two}")
    assert work("new") == []
    clean = stored("new.zarr/0")
    shutil.copy("image.zarr/0/c/1/1/1", BLOCK)
    shutil.copy("image.zarr/0/c/1/1/1", "new.zarr/0/c/1/1/1")
    told = say("repair new", code=2)
    assert "is reused from" in told
    say("repair old")
    assert work("old") == []
    assert "sent 1 task again" in say("repair new")
    assert work("new") == []
    say("verify new")
    assert stored("new.zarr/0") == clean
    assert "sent 0 tasks" in say("repair new")


def test_tensorstore_does_not_tell_what_is_lost() -> None:
    """A reader that fills lost blocks by itself is refused for outputs of the same run."""
    pytest.importorskip("tensorstore")
    two = f"then --stage two {TASKS} load-tensorstore --driver zarr3 --kvstore one.zarr/0 "
    told = say(f"submit --run r {ONE} {two} {SAVE} two.zarr", code=2)
    assert "cannot distinguish a lost block from an empty block" in told


FORMATS = {
    "zarr": "zarr://one.zarr -b 8 16 16",
    "zarr-shards": "zarr://one.zarr -b 4 8 8 --shard-size 8 16 16",
    "precomputed": "precomputed://file://one -b 8 16 16",
    "precomputed-shards": "precomputed://file://one -b 4 8 8 --shard-size 8 16 16",
}
SKIPPED = {
    "skipped": "skip-all-zero threshold --threshold 0 {}",
    "left-out": "threshold --threshold 0 {} --intensity-threshold 1",
}


@pytest.mark.parametrize("how", SKIPPED)
@pytest.mark.parametrize("where", gate_runs(FORMATS, "zarr", "precomputed-shards"))
def test_what_lies_where_nothing_was_stored_is_removed(where, how) -> None:
    """Repair removes objects that no task would overwrite; later steps forget them, too."""
    place, _, blocks = FORMATS[where].partition(" ")
    say(f"create-volume -v {place} -z 16 32 32 -d uint8 {blocks}")
    save = SKIPPED[how].format(f"save-volume -v {place}")
    two = f"then --stage two {TASKS} load-volume -v {place} --fill-missing {SAVE} two.zarr"
    say(f"submit --run r --stage one {LINE} {save} {two}")
    assert work() == []
    say("verify r")
    clean = [stored(name) for name in ("two.zarr", _folder(place))]
    unit = open_volume(place).objects(BoundingBox.parse("0-8_0-16_0-16"))[0]
    other = open_volume(place).objects(BoundingBox.parse("8-16_16-32_16-32"))[0]
    lost, kept = (Path(each.removeprefix("file://")) for each in (unit, other))
    assert not lost.exists()
    lost.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(kept, lost)
    shutil.copy("two.zarr/0/c/1/1/1", _made("two.zarr/0/c/0/0/0"))  # as if made of it
    assert "is unexpected" in say("verify r", code=1)
    assert "removed 2 objects" in say("repair r")
    assert work() == []
    say("verify r")
    assert [stored(name) for name in ("two.zarr", _folder(place))] == clean


def _folder(place):
    """Return the folder of a volume."""
    return place.rpartition("://")[2]


def _made(path):
    """Return a path in an existing folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return path


def test_only_blocks_of_its_own_box_are_removed() -> None:
    """Repair removes no block of another task, even if a record claims it."""
    say(f"submit --run r --stage one {LINE} skip-all-zero {SAVE} one.zarr")
    assert work() == []
    ledger, before = RunDirectory("r").ledger("one"), stored("one.zarr")
    record = next(each for each in ledger.records() if each.number == 0)
    ledger.reopen([0])
    url = f"file://{Path('one.zarr').resolve()}"
    written = tuple(Stored(f"{url}/{key}") for key in ("zarr.json", "0/zarr.json", "0/c/1/1/1"))
    ledger.record([replace(record, written=written)])
    assert "is unexpected" in say("verify r", code=1)
    assert "removed" not in say("repair r")
    assert stored("one.zarr") == before
    assert work() == []
    say("verify r")


def test_what_counts_as_done_where_it_is_stored_is_removed_when_damaged() -> None:
    """A task that is skipped if its blocks are stored does a damaged block again."""
    say("create-volume -v zarr://one.zarr -z 16 32 32 -d uint8 -b 8 16 16")
    skip = "skip-task-by-blocks-in-volume -v zarr://one.zarr"
    line = f"{TASKS} {skip} load-zarr --store image.zarr save-volume -v zarr://one.zarr"
    say(f"submit --run r --stage one {line}")
    assert work() == []
    clean = stored("one.zarr/0")
    shutil.copy("one.zarr/0/c/1/0/1", BLOCK)
    assert "is damaged" in say("verify r", code=1)
    assert "removed 1 object" in say("repair r")
    assert work() == []
    say("verify r")
    assert stored("one.zarr/0") == clean


def test_a_later_step_does_not_count_what_it_made_of_damage_as_done() -> None:
    """A step that skips stored blocks repeats the tasks that read a lost block."""
    say("create-volume -v zarr://two.zarr -z 16 32 32 -d uint8 -b 8 16 16")
    skip = "skip-task-by-blocks-in-volume -v zarr://two.zarr"
    two = f"{TASKS} {skip} load-zarr --store one.zarr save-volume -v zarr://two.zarr"
    one = f"--stage one {LINE} {SAVE} one.zarr"
    say(f"submit --run r {one} then --stage two {two}")
    assert work() == []
    clean = stored("two.zarr/0")
    made = Path("two.zarr/0/c/1/1/1")
    shutil.copy("two.zarr/0/c/1/0/1", made)  # as if made of a damaged block, and so recorded
    ledger = RunDirectory("r").ledger("two")
    record = next(each for each in ledger.records() if each.number == 7)
    ledger.reopen([7])
    ledger.record(
        [replace(record, written=(Stored.of(f"file://{made.resolve()}", made.read_bytes()),))]
    )
    BLOCK.unlink()
    say("repair r")
    assert work() == []
    say("verify r")
    assert stored("two.zarr/0") == clean


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_workers_do_it_again_in_order() -> None:
    """A worker repeats the repaired step first, then the tasks that read its output."""
    say(f"submit --run r {ONE} {TWO}")
    say("work r")
    clean = stored("two.zarr/0")
    BLOCK.unlink()
    Path("two.zarr/0/c/1/1/1").unlink()
    say("repair r")
    told = say("work r")
    assert "step two starts" in told
    assert "is complete" in told
    say("verify r")
    assert stored("two.zarr/0") == clean
