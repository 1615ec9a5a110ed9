"""The exchange of patches between tasks: the same bytes, and no patch is computed twice."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rigs.exchanging import Counting, Memory, Volume

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, patch_exchange
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.inference.patch_exchange import PackedParts, PatchPart, packed
from chunkflow_py.volume import open_volume

GEOMETRY = PatchGeometry(Zyx(6, 10, 10), Zyx(4, 8, 8), Zyx(1, 3, 3))


@pytest.mark.parametrize("batch", [1, 3])
def test_each_patch_is_computed_once(batch):
    """The bytes are those of one task, and so is the number of patches, in any order."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory(), batch)
    names = list(volume.tasks)
    random.Random(3).shuffle(names)
    for name in names:
        volume.do(name)
    computed = volume.network.patches
    expected, patches = volume.whole()
    np.testing.assert_array_equal(volume.output, expected)
    assert computed == patches
    assert volume.engine.patches_found == volume.exchange.counts.found > patches / 2


def test_parts_are_used_only_for_the_same_identity():
    """Parts of another profile are not used, though their geometry and input are the same."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    for number, name in enumerate(volume.tasks):
        volume.do(name, identity=str(number).encode())
    assert volume.exchange.counts.found == 0
    np.testing.assert_array_equal(volume.output, volume.whole()[0])


def changed(content, position):
    """Return the object with one bit flipped."""
    data = bytearray(content)
    data[position] ^= 4
    return bytes(data)


@pytest.mark.parametrize("place", ["header", "entry", "values", "end", "empty", "longer"])
def test_damaged_objects_are_computed_and_counted(place, caplog):
    """A damaged object or part is not used; one warning names both tasks."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    first, *others = volume.tasks
    volume.do(first)
    damage = {
        "header": lambda content: changed(content, 10),
        "entry": lambda content: changed(content, 60),
        "values": lambda content: changed(content, -1),
        "end": lambda content: content[:-5],
        "empty": lambda _: b"",
        "longer": lambda content: content + b"0",
    }
    for key, content in volume.store.objects.items():
        volume.store.objects[key] = damage[place](content)
    damaged = len(volume.store.objects)
    for name in others:
        volume.do(name)
    np.testing.assert_array_equal(volume.output, volume.whole()[0])
    assert volume.exchange.counts.refused.total() >= damaged
    assert caplog.text.count("stored cannot be used: the ") == 1
    assert f"-{first} stored cannot be used" in caplog.text


def test_a_part_of_another_place_is_not_used():
    """An intact part whose box is one voxel off is computed instead."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    first, *others = volume.tasks
    volume.do(first)
    for key, content in volume.store.objects.items():
        pack = PackedParts(content, GEOMETRY.output_patch_size, 2)
        parts = [pack.part(entry) for entry in pack.entries.values()]
        moved = [
            PatchPart(part.patch, part.box.translate((0, 0, -1)), part.key, part.values)
            for part in parts
            if part.box.start.x > part.patch.x
        ]
        volume.store.objects[key] = packed(moved) if moved else content
    found = volume.exchange.counts.found
    for name in others:
        volume.do(name)
    assert volume.exchange.counts.found > found
    np.testing.assert_array_equal(volume.output, volume.whole()[0])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_hostile_objects(data):
    """Whatever an object contains, it is parts with this geometry, or a `ValueError`."""
    values = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(2, 1, 3, 4)
    box = BoundingBox.from_size((1, 2, 3), (1, 3, 4))
    content = bytearray(packed([PatchPart(Zyx(0, 1, 2), box, bytes(16), values)] * 1))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=4))
    try:
        pack = PackedParts(bytes(content), Zyx(4, 8, 8), 2)
        parts = [pack.part(entry) for entry in pack.entries.values()]
    except ValueError:
        return
    (part,) = parts
    assert part.box == box
    assert torch.equal(part.values, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_survive_bit_by_bit(dtype):
    """NaN, infinity and denormal numbers are stored as they are."""
    values = torch.tensor([0.1, -0.0, float("nan"), float("inf"), 1e-7, 1.0]).to(dtype)
    values = values.reshape(1, 1, 2, 3)
    box = BoundingBox.from_size((5, 5, 5), (1, 2, 3))
    pack = PackedParts(packed([PatchPart(Zyx(5, 5, 5), box, b"k" * 16, values)]), Zyx(1, 2, 3), 1)
    (entry,) = pack.entries.values()
    part = pack.part(entry)
    assert part.values.dtype == dtype
    assert torch.equal(part.values.view(torch.uint8), values.view(torch.uint8))


def test_a_network_that_depends_on_its_batch():
    """The probe finds a network that mixes the patches of a batch, and one that does not."""

    class Mixing(Counting):
        def __call__(self, batch):
            return super().__call__(batch) + batch.mean()

    class Signed(Counting):
        """Returns zeros whose sign depends on the place, so that only their bits differ."""

        def __call__(self, batch):
            signs = torch.tensor([1.0] + [-1.0] * (len(batch) - 1))
            return super().__call__(batch) * 0 * signs.view(-1, 1, 1, 1, 1)

    for network, depends in ((Counting(), False), (Mixing(), True), (Signed(), True)):
        for batch in (1, 3):
            settings = EngineSettings(GEOMETRY, num_output_channels=2, batch_size=batch)
            engine = Engine(network, settings)
            assert engine.depends_on_batch() == (depends and batch > 1)
            engine.close()


def test_local_parts_beyond_their_limit_are_files(monkeypatch, tmp_path):
    """Objects beyond the limit go to a temporary folder, which disappears in the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = LocalParts(most_bytes=10)
    store.write("b", "a", lambda: b"in memory", 9)
    store.write("c", "a", lambda: b"in a file", 9)
    assert (store.read("b", "a", 99), store.read("c", "a", 99)) == (b"in memory", b"in a file")
    assert store.read("c", "a", 3) is None
    assert len(list(tmp_path.rglob("*"))) == 2
    assert store.unfinished(["b", "c"]) == ["b", "c"]
    store.done("b")
    assert store.unfinished(["b", "c"]) == ["c"]
    store.write("c", "d", lambda: b"in memory", 9)
    store.close()
    assert not list(tmp_path.rglob("*"))


def test_a_full_disk_ends_storing_with_one_warning(monkeypatch, tmp_path, caplog):
    """Where parts cannot be stored, the tasks compute all their patches."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.write_bytes", _full)
    store = LocalParts(most_bytes=0)
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, store)
    for name in volume.tasks:
        volume.do(name)
    np.testing.assert_array_equal(volume.output, volume.whole()[0])
    assert volume.engine.patches_found == 0
    assert caplog.text.count("cannot store parts of patches") == 1


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_tasks_of_a_pipeline_exchange_patches(tmp_path, monkeypatch):
    """A pipeline on one machine computes each patch once, and writes the same bytes."""
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    options = (
        "load-volume --volume-path zarr://em.zarr {margin} inference --framework identity "
        "--num-output-channels 2 --input-patch-size 6 10 10 --output-patch-overlap 2 3 3 "
        "save-volume --volume-path zarr://{out}.zarr --block-size 6 20 20"
    )
    made = run(
        cli,
        [
            "create-chunk",
            "--size",
            "12",
            "40",
            "40",
            "save-volume",
            "--volume-path",
            "zarr://em.zarr",
        ],
    )
    assert made.exit_code == 0, made.output
    tasks = "generate-tasks --volume-path em.zarr --chunk-size 6 20 20 "
    margin = "--expand-margin-size auto"
    done = run(cli, (tasks + options.format(margin=margin, out="tasks")).split())
    assert done.exit_code == 0, done.output
    whole = run(cli, options.format(margin="", out="whole").split())
    assert whole.exit_code == 0, whole.output
    one, other = (open_volume(f"{name}.zarr") for name in ("tasks", "whole"))
    np.testing.assert_array_equal(one.read(one.bounds).array, other.read(other.bounds).array)
    found, total = re.search(
        r"(\d+) of (\d+) patches were computed by another", done.output
    ).groups()
    patches = re.search(r"(\d+) patches for 0-12_0-40_0-40", whole.output)[1]
    assert int(total) - int(found) == int(patches)


class Slow(Memory):
    """A store that takes a while for each object, and must save time."""

    must_save_time = True

    def __init__(self, write_s):
        super().__init__()
        self.write_s = write_s

    def write(self, consumer, producer, content, size):
        data = content()
        with self.writes.one():
            time.sleep(self.write_s)
            self.objects[consumer, producer] = data
        self.writes.add(len(data))


def done_with(store, forward_s, caplog):
    """Do all tasks with a network that takes *forward_s* a patch; return volume and log lines."""
    caplog.set_level(logging.INFO, "chunkflow_py.inference.patch_exchange")
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, store)
    volume.exchange._forward_s = lambda: forward_s
    for name in volume.tasks:
        if volume.exchange.has_ended:
            break
        volume.do(name)
    return volume, [each for each in caplog.messages if "this process exchanges" in each]


def test_an_exchange_that_takes_longer_than_the_network_ends(caplog):
    """After the first task, with one line that has the figures; the bytes are the same."""
    volume, lines = done_with(Slow(0.02), 1e-5, caplog)
    assert volume.exchange.has_ended
    stored = len(volume.store.objects)
    volume.do(list(volume.tasks)[-1])
    assert len(volume.store.objects) == stored, "it stores nothing any more"
    (line,) = lines
    assert re.search(
        r"no further patches with other tasks: computing a patch takes 1e-05 s; for a part of the "
        r"mean size, [\d.e-]+ MB, writing takes [\d.e-]+ s \([\d.e-]+ MB/s, measured on \d+ "
        r"objects?\), and reading takes [\d.e-]+ s \(",
        line,
    )


def test_an_exchange_that_saves_time_goes_on(caplog):
    """One line says so, for all tasks."""
    volume, lines = done_with(Slow(0.001), 60.0, caplog)
    np.testing.assert_array_equal(volume.output, volume.whole()[0])
    assert not volume.exchange.has_ended
    assert volume.exchange.counts.found
    assert len(lines) == 1
    assert lines[0].startswith("this process exchanges patches with other tasks: ")


def test_an_exchange_that_need_not_save_time_goes_on(caplog):
    """With --exchange on, a slow store is used all the same, and nothing is logged."""
    store = Slow(0.005)
    store.must_save_time = False
    volume, lines = done_with(store, 1e-5, caplog)
    assert not volume.exchange.has_ended
    assert volume.exchange.counts.found
    assert lines == []


def test_a_store_that_finishes_nothing_is_too_slow(monkeypatch):
    """Nobody waits for three objects if the first one takes longer than the network would."""
    monkeypatch.setattr(patch_exchange, "_STUCK_S", 0.01)
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Slow(0))
    volume.exchange._forward_s = lambda: 0.001
    with volume.store.writes.one():
        time.sleep(0.05)
        volume.store.write = lambda *_: None
        first, second, *_ = volume.tasks
        volume.do(first)
        volume.do(second)
        assert volume.exchange.has_ended


def test_a_task_alone_says_nothing(caplog):
    """Nothing is stored, so nothing is weighed."""
    caplog.set_level(logging.INFO)
    volume = Volume((9, 9, 10), Zyx(9, 9, 10), GEOMETRY, Slow(0.1))
    volume.exchange._forward_s = lambda: 1e-5
    volume.do("0")
    assert caplog.messages == []


def test_parts_of_other_profiles_are_counted_and_not_read():
    """An object of a neighbour with another label is foreign; other names are ignored."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    first, second, *_ = volume.tasks
    volume.do(first, b"another profile")
    volume.store.objects |= {
        (second, "not a label"): b"",
        (second, "00000000-999"): b"",
        (second, f"../../{first}"): b"",
        (second, "\x1b[2J"): b"",
    }
    volume.do(second)
    assert volume.exchange.counts.refused == {"foreign": 1}
    assert volume.exchange.reads.bytes == 0


def test_parts_of_another_task_are_misplaced():
    """An object that was swapped with that of another task is computed and counted."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    first = next(iter(volume.tasks))
    volume.do(first)
    (second, label), *_, other = volume.store.objects
    volume.store.objects[second, label] = volume.store.objects[other]
    volume.do(second)
    assert volume.exchange.counts.refused["misplaced"]
    assert set(volume.exchange.counts.refused) == {"misplaced"}
