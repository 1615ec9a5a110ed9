"""A check that cannot fail proves nothing: each mutation of the exchange makes a check fail.

Every test is the same check twice: of the package as it is, and with one mutation applied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rigs.exchange_history import check_history
from rigs.exchanging import Memory, Volume

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.core.outline import Outline
from chunkflow_py.inference import EngineSettings, PatchGeometry
from chunkflow_py.inference.inferencer import Inferencer
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.inference.patch_exchange import (
    PackedParts,
    PatchExchange,
    PatchPart,
    TaskExchange,
    digest_of,
)
from chunkflow_py.inference.placement import Placement

GEOMETRY = PatchGeometry(Zyx(6, 10, 10), Zyx(4, 8, 8), Zyx(1, 3, 3))


def volume():
    """Return a volume of 18 tasks that exchange their patches."""
    return Volume((9, 21, 26), Zyx(5, 9, 10), GEOMETRY, Memory())


# --- parts of another profile --------------------------------------------------------------------


def check_profiles():
    """Tasks of two networks share a store; each task has the bytes of its own network."""
    one, other = volume(), volume()
    other.network.weight = other.network.weight * 1.001
    other.store = one.store
    other.exchange = PatchExchange(one.store, (GEOMETRY.output_patch_size, 2), other.engine.device)
    for number, name in enumerate(one.tasks):
        (other if number % 2 else one).do(name, identity=b"other" if number % 2 else b"one")
    for number, (name, box) in enumerate(one.tasks.items()):
        done = other if number % 2 else one
        place = (slice(None), *box.slices(one.domain.start))
        assert done.output[place].tobytes() == done.whole()[0][place].tobytes(), name


def without_identity(monkeypatch):
    """Leave the identity out of keys and names."""
    monkeypatch.setattr(TaskExchange, "key", lambda _, values: digest_of(values.copy().data))
    monkeypatch.setattr(TaskExchange, "_labelled", lambda _, name: name)


# --- a part off by one voxel ---------------------------------------------------------------------


def check_places():
    """Random histories have the bytes of one task."""
    for seed in range(6):
        check_history(seed)


def one_voxel_off(monkeypatch):
    """Use the values of each part one voxel further along x."""
    upload = PatchExchange.upload

    def moved(self, part, target):
        upload(self, replace(part, values=part.values.roll(1, -1)), target)

    monkeypatch.setattr(PatchExchange, "upload", moved)


# --- damage and size -----------------------------------------------------------------------------


def check_damage():
    """Values of which one bit has changed are not used."""
    made = volume()
    first, *others = made.tasks
    made.do(first)
    for key, content in made.store.objects.items():
        changed = bytearray(content)
        changed[-1] ^= 4
        made.store.objects[key] = bytes(changed)
    for name in others:
        made.do(name)
    assert made.output.tobytes() == made.whole()[0].tobytes()


def without_checksum(monkeypatch):
    """Return a part without comparing its checksum."""

    def part(self, entry):
        content = memoryview(self._content)[entry.start : entry.stop]
        values = torch.frombuffer(content, dtype=self._dtype)
        shape = (self._channels, *entry.box.size)
        return PatchPart(entry.patch, entry.box, entry.key, values.view(shape))

    monkeypatch.setattr(PackedParts, "part", part)


def check_size():
    """An object that is larger than all patches of its consumer is not read."""
    made = volume()
    made.store = LocalParts()
    made.exchange = PatchExchange(made.store, (GEOMETRY.output_patch_size, 2), made.engine.device)
    first, second, *_ = made.tasks
    made.do(first)
    patches = made.grid.count(made.tasks[second]).product()
    most = patches * (GEOMETRY.output_patch_size.product() * 2 * 4 + 1000)
    ((producer, content),) = made.store._objects[second].items()
    made.store.write(second, producer, lambda: content + bytes(most), most)
    made.do(second)
    assert made.exchange.reads.bytes < most


def any_size(monkeypatch):
    """Read objects of any size."""
    read = PatchExchange.read
    monkeypatch.setattr(
        PatchExchange,
        "read",
        lambda self, consumer, producer, parts, _: read(self, consumer, producer, parts, 2**60),
    )


# --- the batch size ------------------------------------------------------------------------------


class Sized(torch.nn.Module):
    """A network whose values depend on the batch size; larger batches stop fitting into memory."""

    fits = True

    def forward(self, batch):
        if len(batch) > 1 and not Sized.fits:
            raise torch.OutOfMemoryError
        return batch * (1 + len(batch) / 64)


BOXES = BoxGrid(Zyx(0, 0, 0), Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(1, 2, 2))
DOMAIN = BOXES.bounds


def inferencer(batch_size=2, **options):
    """Return an inferencer of tasks that exchange patches."""
    settings = EngineSettings(
        GEOMETRY, num_output_channels=1, batch_size=batch_size, output_kind="logit", **options
    )
    made = Inferencer(
        Placement(settings),
        {"framework": "pytorch", "model": "Sized", "in_memory": Sized(), "device": "cpu"},
    )
    made.prepare(Outline(boxes=BOXES, domain=DOMAIN, has_tasks=True))
    return made


def chunk():
    """Return the image of all tasks."""
    array = np.random.default_rng(4).integers(1, 255, DOMAIN.size, dtype=np.uint8)
    return Chunk(array, DOMAIN.start, (1, 1, 1), "image", DOMAIN)


def check_batch_size():
    """After --lower-batch, a task has the bytes of the smaller batch, also in shared patches."""
    Sized.fits = True
    boxes = list(BOXES)
    with inferencer(lower_batch=True) as made, inferencer(1) as alone:
        made.part_store = LocalParts()
        first = made(chunk(), boxes[0]).array
        assert first.tobytes() != alone(chunk(), boxes[0]).array.tobytes()
        made(chunk(), boxes[1])
        assert made.engine.patches_found
        Sized.fits = False  # task 2 begins with a batch of two, and ends with batches of one
        made(chunk(), boxes[2])
        assert made.engine.batch_size == 1
        assert made(chunk(), boxes[3]).array.tobytes() == alone(chunk(), boxes[3]).array.tobytes()
    Sized.fits = True


def without_batch_size(monkeypatch):
    """Leave the batch size out of the identity."""
    identity = Inferencer._identity
    monkeypatch.setattr(
        Inferencer, "_identity", lambda self, engine, _, store: identity(self, engine, 0, store)
    )


MUTATIONS = {
    "a part of another profile is used": (check_profiles, without_identity),
    "a part is used off by one voxel": (check_places, one_voxel_off),
    "the checksum is ignored": (check_damage, without_checksum),
    "an object larger than its geometry is read": (check_size, any_size),
    "the batch size is left out of the key": (check_batch_size, without_batch_size),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_makes_its_check_fail(name, monkeypatch):
    """The check passes for the package, and fails once the mutation is applied."""
    check, mutate = MUTATIONS[name]
    check()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check()
