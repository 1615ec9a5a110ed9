"""When tasks exchange patches, what they store, where they find parts, and how long they wait."""

from __future__ import annotations

from itertools import count
from threading import Barrier, Event
from time import monotonic, sleep

import numpy as np
import pytest
import torch
from rigs.exchanging import Memory, Volume

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.outline import Outline
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, patch_exchange
from chunkflow_py.inference.inferencer import Inferencer
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.inference.patch_exchange import PackedParts, PatchExchange
from chunkflow_py.inference.placement import Placement

GEOMETRY = PatchGeometry(Zyx(6, 10, 10), Zyx(4, 8, 8), Zyx(1, 3, 3))
BOXES = BoxGrid(Zyx(0, 0, 0), Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(2, 2, 2))
OFF = "tasks do not exchange patches, because"


class Kept(LocalParts):
    """A store that remembers all objects."""

    def __init__(self):
        super().__init__()
        self.contents = []

    def write(self, consumer, producer, content, size):
        """Store an object, and keep it."""
        self.contents.append(content())
        super().write(consumer, producer, lambda: self.contents[-1], size)


def inferencer(boxes=BOXES, network=None, *, grid="auto", dtype="float32", **options):
    """Return an inferencer around a module, for tasks that exchange patches."""
    torch.manual_seed(3)
    module = torch.nn.Conv3d(1, 2, 3, padding=1) if network is None else network
    settings = EngineSettings(GEOMETRY, num_output_channels=2, output_kind="logit", **options)
    made = Inferencer(
        Placement(settings, grid=grid),
        {"framework": "pytorch", "model": "m", "in_memory": module, "device": "cpu",
         "dtype": dtype},
    )  # fmt: skip
    made.prepare(Outline(boxes=boxes, domain=domain_of(boxes), has_tasks=True))
    made.part_store = Kept()
    return made


def domain_of(boxes):
    """Return the smallest box around all tasks."""
    stops = [box.stop for box in boxes]
    return BoundingBox(Zyx(0, 0, 0), max(stops[0].high(stop) for stop in stops))


def image(boxes, seed=0):
    """Return the image of all tasks."""
    domain = domain_of(boxes)
    array = np.random.default_rng(seed).integers(1, 255, domain.size, dtype=np.uint8)
    return Chunk(array, domain.start, (1, 1, 1), "image", domain)


def done(made, boxes=BOXES, chunk=None):
    """Do all tasks; return how many patches were found, and the objects that were stored."""
    with made:
        store = made.part_store
        for box in boxes:
            made(image(boxes) if chunk is None else chunk(box), box)
        return made.engine.patches_found, store.contents


class Mixing(torch.nn.Module):
    """A network that mixes the patches of a batch."""

    def forward(self, batch):
        return torch.cat([batch, batch], 1) + batch.mean()


def cut(box):
    """Return only the image of the task itself."""
    return image(BOXES).cut(box)


CASES = {
    "patches of each chunk": ({"grid": "chunk"}, BOXES, None, "corner of each chunk"),
    "no margin": ({}, BOXES, cut, "corner of each chunk"),
    "a batch that mixes": ({"network": Mixing(), "batch_size": 2}, BOXES, None, "--batch-size 1"),
    "small tasks": (
        {}, BoxGrid(Zyx(0, 0, 0), Zyx(4, 4, 8), Zyx(4, 4, 8), Zyx(2, 4, 2)), None,
        r"tasks of (4, 4, 8) are smaller than an output patch of (4, 8, 8)",
    ),
    "a list of small tasks": (
        {}, [BoundingBox.from_size((0, y, x), (4, 7, 8)) for y in (0, 7) for x in (0, 8)], None,
        r"tasks of (4, 7, 8) are smaller than an output patch of (4, 8, 8)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_why_tasks_exchange_nothing(name, caplog):
    """The line comes once, nothing is stored, and all patches are computed."""
    options, boxes, chunk, reason = CASES[name]
    caplog.set_level("INFO")
    assert done(inferencer(boxes, **options), boxes, chunk) == (0, [])
    lines = [record.message for record in caplog.records if record.message.startswith(OFF)]
    assert len(lines) == 1
    assert reason in lines[0]


@pytest.mark.parametrize(
    "boxes",
    [BOXES,
     BoxGrid(Zyx(0, 0, 0), Zyx(3, 8, 8), Zyx(3, 8, 8), Zyx(1, 2, 2)),  # not divided along z
     BoxGrid(Zyx(0, 0, 0), Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(2, 2, 2), Zyx(6, 13, 16))],
    ids=["grid", "shorter than a patch", "cut off at the end"],
)  # fmt: skip
@pytest.mark.parametrize("batch_size", [1, 3])
def test_otherwise_they_do(boxes, batch_size, caplog):
    """Each patch is computed once; no line says anything else."""
    caplog.set_level("INFO")
    made = inferencer(boxes, batch_size=batch_size)
    found, objects = done(made, boxes)
    grid = made.settings.grid(domain_of(boxes))
    shared = sum(grid.count(box).product() for box in boxes)
    assert found == shared - grid.count(domain_of(boxes)).product() > 0
    assert objects
    assert OFF not in caplog.text


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16),
     ({"dtype": "bfloat16", "activation": "sigmoid"}, torch.float32),
     ({"patch_precision": "float16"}, torch.float16),
     ({"dtype": "bfloat16", "patch_precision": "float16"}, torch.float16)],
    ids=str,
)  # fmt: skip
def test_parts_have_the_dtype_of_what_is_blended(options, dtype):
    """Parts of a network that returns bfloat16, or of rounded patches, take two bytes a value."""
    found, objects = done(inferencer(**options))
    assert found
    for content in objects:
        pack = PackedParts(content, GEOMETRY.output_patch_size, 2)
        for entry in pack.entries.values():
            values = pack.part(entry).values
            assert values.dtype == dtype
            assert entry.stop - entry.start == 2 * entry.box.size.product() * dtype.itemsize


def test_a_source_that_was_rewritten_has_other_keys():
    """Parts of the former voxels are not used for patches whose input has changed."""
    boxes = list(BOXES)
    with inferencer() as made, inferencer() as alone:
        made.part_store = LocalParts()
        alone.part_store = None
        made(image(BOXES), boxes[0])
        later = image(BOXES, seed=1)
        for box in boxes[1:]:
            assert made(later, box).array.tobytes() == alone(later, box).array.tobytes()
        assert made.engine.patches_found < alone.engine.patches_run


MODEL = """
import torch


class Scaled(torch.nn.Module):
    def forward(self, batch):
        return torch.cat([batch, batch], 1) * SCALE


InstantiatedModel = Scaled()
"""


def test_the_network_is_known_by_its_content(tmp_path):
    """Machines keep the same file at different paths; another file at the same path differs."""
    store = LocalParts()

    def found(box, name, scale, device="cpu"):
        path = tmp_path / name / "net.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(MODEL.replace("SCALE", str(scale)))
        made = inferencer()
        made.network = {"framework": "pytorch", "model": str(path), "device": device}
        with made:
            made.part_store = store
            made(image(BOXES), box)
            return made.engine.patches_found

    boxes = list(BOXES)
    assert found(boxes[0], "one", 0.25) == 0
    assert found(boxes[1], "other", 0.25, "cpu:0") > 0
    assert found(boxes[2], "one", 0.5) == 0


def test_parts_of_a_running_task_are_found_in_the_same_process():
    """A task need not end: what it has computed is found at once, and is dropped with it."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    (one, box), (two, other) = list(volume.tasks.items())[:2]
    first = volume.exchange.task(one, box, b"same", {two: other}, volume.grid)
    second = volume.exchange.task(two, other, b"same", {one: box}, volume.grid)
    patch = next(each for each in volume.grid.patches(box) if second.shared(each)
                 and not each.intersection(other).is_empty)  # fmt: skip
    values = torch.rand((2, *patch.size))
    first.keep(patch, b"k" * 16, values)
    part = second.find(patch, b"k" * 16)
    assert torch.equal(part.values, values[(slice(None), *part.box.slices(patch.start))])
    assert second.find(patch, b"l" * 16) is None
    del first, part
    assert second.find(patch, b"k" * 16) is None


def test_no_more_is_read_than_two_tasks_share():
    """An object is refused if it has more bytes than the parts of all patches on both tasks."""

    class Limited(Memory):
        """Notes how many bytes each object has less than it may have."""

        def read(self, consumer, producer, most):
            content = super().read(consumer, producer, most)
            if content is not None:
                spare[producer, consumer] = most - len(content)
            return content

    spare = {}
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Limited())
    for name in volume.tasks:
        volume.do(name)
    first = f"{b'same'.hex()}-{next(iter(volume.tasks))}"
    assert {consumer for producer, consumer in spare if producer == first}
    assert all(n == 0 for (producer, _), n in spare.items() if producer == first)


class Slow(Memory):
    """A store that answers when the test lets it, and keeps the objects that it should store."""

    connections = 2

    def __init__(self):
        super().__init__()
        self.answers, self.later = Event(), []

    def producers(self, consumer):
        """Wait for the answer."""
        self.answers.wait(60)
        return super().producers(consumer)

    def write(self, consumer, producer, content, size):
        """Store it later."""
        self.later.append((consumer, producer, content))


def test_all_waits_of_a_task_have_one_limit(monkeypatch):
    """Where the store does not answer, a task waits once, not for each layer or patch."""
    monkeypatch.setattr(patch_exchange, "_PATIENCE_S", 0.3)
    volume = Volume((17, 21, 26), Zyx(17, 9, 10), GEOMETRY, Slow())
    last = list(volume.tasks)[-1]
    made, task = [], volume.exchange.task
    monkeypatch.setattr(
        volume.exchange, "task", lambda *a, **k: made.append(task(*a, **k)) or made[-1]
    )
    start = monotonic()
    volume.do(last)
    assert monotonic() - start >= 0.3
    volume.store.answers.set()
    assert [each.name for each in made] == [last]
    assert -5 < made[0]._patience_s <= 0
    assert volume.engine.patches_found == 0
    volume.exchange.close()


class Asked(Memory):
    """A store that takes a while to say which tasks have not ended."""

    connections = 2

    def __init__(self, most_bytes):
        super().__init__()
        self.most_bytes, self.answers = most_bytes, Event()

    def unfinished(self, consumers):
        """Wait for the answer, which is out of date by then."""
        self.answers.wait(60)
        return consumers


def test_parts_that_wait_for_the_store_are_found_by_the_next_tasks():
    """Until the store has taken the parts of a task, the next tasks get them from the task."""
    volume = Volume((4, 8, 30), Zyx(4, 8, 10), GEOMETRY, Asked(10**9))
    for name in volume.tasks:
        volume.do(name)
    assert not volume.store.objects
    volume.store.answers.set()
    computed = volume.network.patches
    expected, patches = volume.whole()
    np.testing.assert_array_equal(volume.output, expected)
    assert computed == patches
    volume.exchange.close()
    assert volume.store.objects


def test_parts_that_wait_for_the_store_have_a_limit():
    """Parts of further tasks are dropped: the memory of a process does not grow."""
    volume = Volume((4, 8, 30), Zyx(4, 8, 10), GEOMETRY, Asked(1))
    first, *_ = volume.tasks
    for name in volume.tasks:
        volume.do(name)
    volume.store.answers.set()
    np.testing.assert_array_equal(volume.output, volume.whole()[0])
    volume.exchange.close()
    assert {label.rpartition("-")[2] for _, label in volume.store.objects} == {first}


def test_a_store_that_fails_ends_no_task(monkeypatch, tmp_path, caplog):
    """There is no folder for temporary files: one warning, all bytes, and no further tries."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, LocalParts(most_bytes=0))
    for name in volume.tasks:
        volume.do(name)
    np.testing.assert_array_equal(volume.output, volume.whole()[0])
    assert caplog.text.count("cannot store parts of patches") == 1
    volume.store.close()


def test_a_loader_that_is_ahead_finds_the_parts_of_the_task_before():
    """A task looked for objects before the task before it stored any: it looks again after that."""
    volume = Volume((4, 64, 32), Zyx(4, 64, 16), GEOMETRY, Memory())
    run, engine = volume.network.run, Engine(volume.network, volume.settings, staged=True)
    volume.network.run = lambda patch: (sleep(0.01), run(patch))[1]
    (one, box), (two, other) = volume.tasks.items()
    results = []
    for name, target, others in ((one, box, {two: other}), (two, other, {one: box})):
        made = volume.exchange.task(name, target, b"same", others, volume.grid)
        results.append(
            engine.start(
                volume.array, volume.domain, output_box=target, grid=volume.grid, exchange=made
            )
        )
        del made  # or the parts of the task would stay in it
    for result in results:
        result.result(60)
    distinct = volume.grid.count(volume.domain).product()
    assert distinct <= engine.patches_run <= distinct + 4, "those that were loaded before"
    engine.close()


class Meeting(Memory):
    """A store of which the first two reads wait for each other."""

    connections = 2

    def __init__(self):
        super().__init__()
        self.number, self.both, self.met = count(), Barrier(2), 0

    def read(self, consumer, producer, most):
        """Wait for the other one of the first two."""
        if next(self.number) < 2:
            self.both.wait(30)
            self.met += 1
        return super().read(consumer, producer, most)


def test_the_parts_of_several_neighbours_are_read_at_the_same_time():
    """Reads of one task overlap: two of them wait for each other."""
    volume = Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())
    *others, last = volume.tasks
    for name in others:
        volume.do(name)
    store = Meeting()
    store.objects = volume.store.objects
    volume.exchange = PatchExchange(store, (GEOMETRY.output_patch_size, 2), volume.engine.device)
    volume.do(last)
    assert store.met == 2
    volume.exchange.close()
