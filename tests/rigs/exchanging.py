"""Tasks that exchange patches: a network that counts, a store, a volume and its tasks."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.inference import Engine, EngineSettings
from chunkflow_py.inference.device_streams import Device
from chunkflow_py.inference.patch_exchange import PatchExchange
from chunkflow_py.store.transfers import Transfers

CPU = Device(torch.device("cpu"))


class Counting:
    """A small network that counts the patches on which it is run.

    It runs on one patch at a time: PyTorch's vector loops may round differently at the end of a
    patch, which is in the middle of a batch.
    """

    device = torch.device("cpu")
    weighted = False
    divisor = None
    profile: dict = {}

    def __init__(self, channels=2):
        self.patches = 0
        generator = torch.Generator().manual_seed(5)
        self.weight = torch.randn((channels, 1, 3, 3, 3), generator=generator)

    def __call__(self, batch):
        self.patches += int((batch.flatten(1) != 0).any(1).sum())
        return torch.stack([self.run(patch) for patch in batch])

    def run(self, patch):
        return torch.sigmoid(torch.nn.functional.conv3d(patch, self.weight, padding=1))


class Memory:
    """Objects in a dictionary."""

    identity = "test"
    connections = 0
    most_bytes = 0
    must_save_time = False

    def __init__(self):
        self.writes = Transfers()
        self.objects = {}
        self.ended = set()

    def producers(self, consumer):
        return [producer for name, producer in self.objects if name == consumer]

    def read(self, consumer, producer, most):
        content = self.objects.get((consumer, producer))
        if content is not None and len(content) > most:
            msg = f"the object has {len(content)} bytes, more than {most}"
            raise VolumeError(msg)
        return content

    def write(self, consumer, producer, content, size):
        self.objects[consumer, producer] = content()

    def unfinished(self, consumers):
        return [name for name in consumers if name not in self.ended]

    def done(self, consumer):
        self.ended.add(consumer)


def image(size, seed=0):
    """Return voxels of which none is 0."""
    return np.random.default_rng(seed).integers(1, 255, size, dtype=np.uint8)


def divided(domain, size):
    """Return boxes of *size* that tile the domain, by name."""
    spans = [range(a, b, s) for a, b, s in zip(domain.start, domain.stop, size, strict=True)]
    boxes = [
        BoundingBox(Zyx(*low), (Zyx(*low) + size).low(domain.stop))
        for low in itertools.product(*spans)
    ]
    return {str(number): box for number, box in enumerate(boxes)}


class Volume:
    """A volume, its tasks, and an engine that does them with an exchange."""

    def __init__(self, size, task, geometry, store, batch=1, **options):
        self.domain = BoundingBox.from_size((7, -3, 11), size)
        self.array = image(size)
        self.tasks = divided(self.domain, task)
        self.network = Counting()
        self.settings = EngineSettings(geometry, num_output_channels=2, batch_size=batch, **options)
        self.engine = Engine(self.network, self.settings)
        self.grid = self.settings.grid(self.domain)
        self.store = store
        self.exchange = PatchExchange(store, (geometry.output_patch_size, 2), CPU)
        self.output = np.zeros((2, *size), np.float32)

    def do(self, name, identity=b"same"):
        target = self.tasks[name]
        others = {key: box for key, box in self.tasks.items() if key != name}
        each = self.exchange.task(name, target, identity, others, self.grid)
        values = self.engine.run(
            self.array, self.domain, output_box=target, grid=self.grid, exchange=each
        )
        self.output[(slice(None), *target.slices(self.domain.start))] = values

    def whole(self):
        """Return the output of one task over the whole volume, without an exchange."""
        before = self.network.patches
        values = self.engine.run(self.array, self.domain, grid=self.grid)
        return values, self.network.patches - before
