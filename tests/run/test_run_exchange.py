"""Tasks of a run exchange patches: the same bytes, whatever happens to the exchange."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import resource
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import say
from rigs.variants import gate_runs

from chunkflow_py.errors import VolumeError
from chunkflow_py.run import exchange_store
from chunkflow_py.run.exchange_store import (
    ExchangeAddress,
    ExchangeSettings,
    PartRemover,
    amount_in,
    remove_parts,
)
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.sending_order import tasks_in_order
from chunkflow_py.store import open_store
from chunkflow_py.volume import open_volume

PIPELINE = (
    "generate-tasks --volume-path zarr://em.zarr --chunk-size 6 20 20 "
    "load-volume --volume-path zarr://em.zarr --expand-margin-size auto "
    "inference --framework identity --num-output-channels 2 --input-patch-size 6 10 10 "
    "--output-patch-overlap 2 3 3 save-volume --volume-path zarr://{out}.zarr --block-size 6 20 20"
)


@pytest.fixture(autouse=True)
def em(tmp_path, monkeypatch):
    """Make an image of eight tasks, and the result without a run."""
    monkeypatch.chdir(tmp_path)
    say(
        "create-chunk --size 12 40 40 save-volume --volume-path zarr://em.zarr --block-size 6 20 20"
    )
    say(PIPELINE.format(out="expected"))


def voxels(name):
    """Return the whole output."""
    volume = open_volume(f"zarr://{name}.zarr")
    return volume.read(volume.bounds).array


def submit(exchange):
    """Submit a run that exchanges patches."""
    return say(f"submit --run r --exchange {exchange} {PIPELINE.format(out='out')}")


def objects(folder="r/exchange"):
    """Return the files below the exchange."""
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def check():
    """Check that the run is complete and has the right bytes."""
    assert "verified: all 8 tasks" in say("verify r")
    np.testing.assert_array_equal(voxels("out"), voxels("expected"))


def test_objects_are_stored_used_and_removed():
    """Objects of a task remain until it is recorded; nothing remains of a complete run."""
    submit("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    first = {path.parent.name for path in objects()}
    assert len(first) == 7
    status = json.loads(say("status r --json"))
    sizes = sum(path.stat().st_size for path in objects())
    amount = {"mode": "on", "url": None, "limit_bytes": None, "objects": 7, "bytes": sizes}
    assert status["exchange"] == amount
    assert "exchange of patches: 7 objects" in say("status r")
    say("work r --processes 1 --threads 1 --max-tasks 3", code=75)
    assert {path.parent.name for path in objects()} < first
    say("work r --processes 2 --threads 1")
    assert not Path("r/exchange").exists()
    check()
    patches = json.loads(say("status r --json"))["stages"][0]["patches"]
    assert patches.keys() == {"computed", "found", "read_bytes", "written_bytes"}
    assert min(patches.values()) > 0
    counts = f"{patches['computed']} patches computed and {patches['found']} taken from other tasks"
    assert counts in say("status r")
    say("report r --output report.html")
    assert counts in Path("report.html").read_text()


def test_refused_parts_are_named():
    """Status and report say how many stored parts were damaged or foreign."""
    submit("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    cut, renamed, *_ = objects()
    cut.write_bytes(cut.read_bytes()[:50])
    renamed.rename(renamed.with_name(f"00000000-{renamed.name.partition('-')[2]}"))
    say("work r --processes 1 --threads 1")
    check()
    patches = json.loads(say("status r --json"))["stages"][0]["patches"]
    assert (patches["damaged"], patches["foreign"]) == (1, 1)
    text = "2 stored parts of patches could not be used (1 damaged, 1 foreign)"
    assert text in say("status r")
    say("report r --output report.html")
    assert text in Path("report.html").read_text()


@pytest.mark.parametrize("seed", gate_runs(range(12), 0))
def test_whatever_happens_to_the_exchange(seed):
    """Objects are deleted, cut, changed, swapped and added while the run is interrupted."""
    rng = random.Random(seed)
    submit("on")
    for _ in range(2):
        say("work r --processes 1 --threads 1 --max-tasks 3", code=75)
        for path in objects():
            content = path.read_bytes()
            match rng.randrange(6):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(content[: rng.randrange(len(content))])
                case 2:
                    place = rng.randrange(len(content))
                    path.write_bytes(content[:place] + b"?" + content[place + 1 :])
                case 3:
                    other = rng.choice(objects())
                    path.write_bytes(other.read_bytes())
                case 4:
                    path.with_name("another").write_bytes(os.urandom(100))
                case _:
                    pass
    say("work r --processes 1 --threads 1")
    check()


def test_another_folder_and_one_that_cannot_be_written():
    """The exchange may be elsewhere; where it is a file, tasks compute their patches."""
    submit(f"file://{Path.cwd()}/parts")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    assert objects("parts")
    for path in objects("parts"):
        path.unlink()
    for folder in sorted(Path("parts").rglob("*"), reverse=True):
        folder.rmdir()
    Path("parts").rmdir()
    Path("parts").write_text("not a folder")
    said = say("work r --processes 1 --threads 1")
    assert "parts of patches" in said
    check()


def test_submit_again_switches_the_exchange_off():
    """The exchange is not part of what was submitted, so it can be changed."""
    submit("on")
    assert RunDirectory("r").exchange == ExchangeSettings("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    assert objects()
    submit("off")
    assert RunDirectory("r").exchange == ExchangeSettings("off")
    assert not objects(), "nobody would remove them"
    say("work r --processes 1 --threads 1 --max-tasks 2", code=75)
    assert not objects()
    say("work r --processes 1 --threads 1")
    check()


def test_workers_of_any_device_class_exchange_nothing():
    """Their compute profiles may differ; one line of the log says so."""
    say(f"submit --run r --exchange on --device-class any {PIPELINE.format(out='out')}")
    said = say("work r --processes 1 --threads 1")
    assert said.count("(--device-class any)") == 1
    assert not objects()
    check()


def test_the_device_class_is_not_the_reason_if_the_exchange_is_off():
    """With --exchange off, the log does not say that the device class prevents the exchange."""
    say(f"submit --run r --exchange off --device-class any {PIPELINE.format(out='out')}")
    assert "(--device-class any)" not in say("work r --processes 1 --threads 1")


def test_no_parts_for_tasks_that_are_recorded():
    """Only tasks of the plan without a record still need parts."""
    submit("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    run = RunDirectory(str(Path("r").absolute()))
    step = run.spec.first
    parts = run.exchange_of(step).parts(run.plan(step))
    assert parts.unfinished(["0", "1", "7", "8", "99"]) == ["1", "7"]
    parts.close()


# --- the store of parts ---------------------------------------------------------------------------


def parts_of(settings=ExchangeSettings("on"), folder="parts"):  # noqa: B008 frozen
    """Return the part store of the run, in a folder."""
    run = RunDirectory(str(Path("r").absolute()))
    step = run.spec.first
    url = f"file://{Path.cwd()}/{folder}"
    address = ExchangeAddress(run.url, replace(settings, url=url), step, run.spec.step(step).hash)
    return address, address.parts(run.plan(step))


def stored(parts, *names, size=1000):
    """Store objects, and wait until that has been tried."""
    for name in names:
        parts.write(*name.split("/"), lambda: bytes(size), size)
    while parts._pending:
        time.sleep(0.01)
    parts.close()


def test_storing_stops_at_the_limit_and_not_the_task(caplog):
    """At most the limit is stored; a message names amount and limit."""
    submit("on")
    caplog.set_level(logging.INFO, "chunkflow_py")
    _, parts = parts_of(ExchangeSettings("on", limit=2_500_000))
    stored(parts, *(f"{number}/00000000-0" for number in range(1, 6)), size=1_000_000)
    assert len(objects("parts")) == 2
    assert parts.writes.bytes == 2_000_000
    (message,) = [each for each in caplog.messages if "not stored at present" in each]
    assert "2.0 MB of at most 2.5 MB" in message
    assert message.endswith("the limit of --exchange-limit")


def test_what_others_store_counts():
    """A process sees what others have stored, and when that is used, it stores again."""
    submit("on")
    address, parts = parts_of(ExchangeSettings("on", limit=2500))
    _, other = parts_of(ExchangeSettings("on", limit=2500))
    stored(other, "1/00000000-0", "2/00000000-0")
    room = parts._room
    assert not room.take(1000)
    remove_parts(address)
    assert not room.take(1000), "it counts now and then"
    room._count_at = 0
    assert room.take(1000)


def test_a_disk_is_filled_by_half_at_most(monkeypatch):
    """The rest of the free space is for the output, whatever the limit and other processes do."""
    submit("on")
    several = [parts_of(ExchangeSettings("on", limit=limit))[1] for limit in (None, 10**9, None)]
    usage, free = namedtuple("usage", "free"), [3000]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(free[0]))
    for parts in several:
        parts._room._count()
    for parts in several:
        assert parts._room.take(250)
        free[0] -= 250
    while several[1]._room.take(250):
        free[0] -= 250
    assert free[0] == 1500
    assert not any(parts._room.take(1) for parts in several)
    for parts in several:
        parts.close()


class Hanging:
    """A store in a bucket that does not answer."""

    is_local, url = False, "s3://bucket"

    def list(self, prefix):
        time.sleep(600)


def test_a_worker_that_ends_waits_for_removals_only_for_a_moment():
    """The store hangs, and thousands of removals wait: the end of a worker does not."""
    remover = PartRemover(ExchangeAddress("r", ExchangeSettings("on"), "s", "0" * 64))
    remover.__dict__["_store"] = Hanging()
    for number in range(5000):
        remover.recorded(number)
    assert len(remover._removals) <= 1024
    start = time.monotonic()
    remover.close()
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    "content",
    [b"[" * 4096, b"x" * 10_000, b'{"order":"checkerboard","workers":Infinity}', b"\xff", b"[]",
     b'{"order":"checkerboard","workers":"2"}', b'{"order":"checkerboard"}'],
)  # fmt: skip
def test_an_order_that_cannot_be_read_is_that_of_the_plan(content):
    """The order only saves time: whatever the file contains, all tasks are sent."""
    submit("on")
    run = RunDirectory("r")
    key = f"stages/{run.spec.first}/order.json"
    run.store.put(key, content)
    assert list(tasks_in_order(run, run.spec.first)) == list(run.plan(run.spec.first))


def test_a_full_disk_ends_storing_with_one_warning(caplog):
    """The error is that of the disk; later objects are not tried."""
    submit("on")
    _, parts = parts_of()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        stored(parts, *(f"{number}/00000000-0" for number in range(1, 6)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert objects("parts") == []
    (message,) = [each for each in caplog.messages if "no further parts" in each]
    assert "file too large" in message


def test_an_error_of_any_kind_ends_storing(caplog):
    """Whatever the content raises, it concerns no task."""

    def content():
        msg = "CUDA error"
        raise RuntimeError(msg)

    submit("on")
    _, parts = parts_of()
    parts.write("1", "00000000-0", content, 10)
    parts.close()
    assert "CUDA error" in caplog.text


def test_only_objects_of_the_exchange_are_removed():
    """A folder that is not ours, named in exchange.json by a stranger, keeps its files."""
    submit("on")
    address, parts = parts_of()
    stored(parts, "1/00000000-0", "2/00000000-1")
    root = Path(address.url.removeprefix("file://")).relative_to(Path.cwd())
    kept = [root / "1/thesis.tex", root / "thesis/00000000-1", root / "2024"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not ours")
    (root / "9").symlink_to("thesis")
    (root / "2/.tmp-1f2e3d4c-00000000-7").write_text("left by a worker that was killed")
    remove_parts(address)
    assert sorted(objects("parts")) == sorted(kept)
    assert not (root / "2").exists()


def test_a_folder_that_was_removed_meanwhile(monkeypatch):
    """Another worker removes the folder as empty just before the file is created: it is stored."""
    submit("on")
    _, parts = parts_of()
    write, tries = exchange_store.write_whole, []

    def vanishing(path, data, *, fsync):
        tries.append(path)
        if len(tries) == 1:
            msg = "cannot write: No such file or directory"
            raise VolumeError(msg)
        write(path, data, fsync=fsync)

    monkeypatch.setattr(exchange_store, "write_whole", vanishing)
    stored(parts, "1/00000000-0")
    assert len(objects("parts")) == 1


@pytest.mark.slow
def test_a_hostile_exchange_takes_little_time():
    """10^5 objects for one task, and strange names: bounded listing, reading and removal."""
    submit("on")
    address, parts = parts_of()
    folder = Path(address.url.removeprefix("file://")) / "1"
    folder.mkdir(parents=True)
    for number in range(100_000):
        os.close(os.open(f"{folder}/{number:08x}-0", os.O_CREAT | os.O_WRONLY))
    for name in ("\x1b[2J", "-", "0-0", "00000000-" + "9" * 200):
        (folder / name).touch()
    began = time.process_time()
    names = parts.producers("1")
    assert 0 < len(names) <= 1024
    assert all(re.fullmatch("[0-9a-f]{8}-[0-9]+", name) for name in names)
    assert time.process_time() - began < 2
    assert amount_in(open_store(address.url)).objects == 100_000
    remover = PartRemover(address)
    remover.recorded(1)
    remover.close()
    assert time.process_time() - began < 20
    parts.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"on",
        b'{"mode":"on"}',
        b'{"mode":"on","url":"","limit":null,"more":1}',
        b'{"mode":"maybe","url":"","limit":null}',
        b'{"mode":"on","url":"\\u001b[2J","limit":null}',
        b'{"mode":"on","url":"' + b"a" * 5000 + b'","limit":null}',
        b'{"mode":"on","url":"","limit":"1"}',
        b"\xff" * 10,
        b"[" * 50_000,
        b" " * 100_000,
    ],
)
def test_settings_of_a_stranger(content, caplog):
    """A file that is not as submit writes it switches the exchange off, with one warning."""
    submit("on")
    Path("r/exchange.json").write_bytes(content)
    run = RunDirectory(str(Path("r").absolute()))
    assert run.exchange == run.exchange == ExchangeSettings("off")
    assert caplog.text.count("tasks exchange no patches, because") == 1
    assert "\x1b" not in caplog.text


def test_a_store_that_cannot_be_opened_is_no_error(caplog):
    """Tasks compute their patches, and a warning says why."""
    submit("on")
    Path("r/exchange.json").write_bytes(ExchangeSettings("on", "gopher://nowhere").to_json())
    run = RunDirectory(str(Path("r").absolute()))
    step = run.spec.first
    assert run.exchange_of(step).parts(run.plan(step)) is None
    assert "gopher" in caplog.text
    remove_parts(run.exchange_of(step))


def test_what_submit_stores():
    """The default is auto; a submission without the option keeps the choice.

    A run without a network has no settings, and a word that is no URL is refused.
    """
    line = PIPELINE.format(out="out")
    say(f"submit --run r {line}")
    assert RunDirectory("r").exchange == ExchangeSettings("auto")
    say(f"submit --run r --exchange ./parts --exchange-limit 2GB {line}")
    chosen = ExchangeSettings("on", f"file://{Path.cwd()}/parts", 2 * 10**9)
    assert RunDirectory("r").exchange == chosen
    say(f"submit --run r {line}")
    assert RunDirectory("r").exchange == chosen
    said = say(f"submit --run r --exchange onn {line}", code=2)
    assert "--exchange onn is not auto, on, off or a URL" in said
    before, _, after = PIPELINE.format(out="copy").partition("inference")
    say(f"submit --run s {before} {after[after.index('save-volume') :]}")
    assert RunDirectory("s").exchange is None


def test_mixed_machines_exchange_nothing():
    """With --device-class any, values of another machine may differ, and a message says so."""
    said = say(f"--verbose submit --run r --device-class any {PIPELINE.format(out='out')}")
    assert "(--device-class any)" in said
    run = RunDirectory("r")
    assert run.exchange_of(run.spec.first) is None


def test_objects_in_a_bucket(caplog):
    """Without a disk there is no limit by default; all objects of the exchange are removed."""
    submit("on")
    run = RunDirectory(str(Path("r").absolute()))
    step = run.spec.first
    settings = ExchangeSettings("on", "mem://bucket/parts")
    address = ExchangeAddress(run.url, settings, step, run.spec.step(step).hash)
    parts = address.parts(run.plan(step))
    stored(parts, "1/00000000-0", "1/00000000-2", "2/00000000-0")
    store = open_store(address.url)
    store.put("2/thesis", b"not ours")
    assert sorted(parts.producers("1")) == ["00000000-0", "00000000-2"]
    assert amount_in(store) == exchange_store.ExchangeAmount(3, 3000)
    remover = PartRemover(address)
    remover.recorded(1)
    remover.close()
    assert sorted(store.list()) == ["2/00000000-0", "2/thesis"]
    remove_parts(address)
    assert list(store.list()) == ["2/thesis"]


@pytest.mark.slow
def test_a_repair_leaves_nothing_behind():
    """Tasks that are done again exchange patches again; the bytes are the same.

    Before that, one process computes each patch of the grid once: what a task stores is there for
    the next task of the process before it is written.
    """
    submit("on")
    say("work r --processes 1 --threads 1")
    patches = json.loads(say("status r --json"))["stages"][0]["patches"]
    distinct = 3 * 6 * 6
    assert distinct <= patches["computed"] <= 1.1 * distinct, "a busy machine may miss some"
    for path in list(Path("out.zarr").rglob("*"))[::3]:
        if path.is_file() and "json" not in path.name:
            path.unlink()
    say("verify r", code=1)
    say("repair r")
    say("work r --processes 1 --threads 1")
    assert not Path("r/exchange").exists()
    check()
