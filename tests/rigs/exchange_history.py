"""Random histories of tasks that exchange patches: workers that interleave, die and start again.

A history is one seed. It draws a volume, a grid of patches, tasks of any size from one patch
upward, and the number of workers. Then, step by step, it chooses a worker and lets it run until its
next forward pass, which this worker begins only when it is chosen again; or it kills the worker's
attempt; or it deletes, damages or swaps objects of the exchange.
"""

from __future__ import annotations

import random
from threading import Event, Semaphore

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry
from chunkflow_py.inference.patch_exchange import PatchExchange
from rigs.exchanging import CPU, Counting, Memory, divided


class Recorded(Memory):
    """Objects in a dictionary; tasks end when they are recorded, not when they are computed."""

    def done(self, consumer):
        """Keep the objects, because the task may be done again."""


class Held(Counting):
    """A network whose forward passes wait until they may begin."""

    def __init__(self, dtype, arrived):
        super().__init__()
        self.dtype, self.arrived, self.go = dtype, arrived, Semaphore(0)
        self.batches, self.dies = [], False

    def __call__(self, batch):
        self.arrived.release()
        self.go.acquire()
        if self.dies:
            self.dies = False
            raise KilledError
        self.batches.append(len(batch))
        return super().__call__(batch).to(self.dtype)


class KilledError(Exception):
    """The attempt was killed in its forward pass."""


class Worker:
    """An engine that does one task at a time, and stops before every forward pass."""

    def __init__(self, history):
        self.history, self.arrived = history, Semaphore(0)
        self.network = Held(history.dtype, self.arrived)
        self.engine = Engine(self.network, history.settings)
        size = history.settings.geometry.output_patch_size
        self.exchange = PatchExchange(history.store, (size, 2), CPU)
        self.name = self.run = None

    def begin(self, name):
        """Start an attempt."""
        history, self.name, self.stop = self.history, name, Event()
        target, self.network.batches = history.tasks[name], []
        self.before = (self.engine.patches_run, self.engine.patches_found)
        others = {key: box for key, box in history.tasks.items() if key != name}
        self.run = self.engine.start(
            history.array, history.domain, output_box=target, grid=history.grid,
            wanted=history.wanted, stop=self.stop,
            exchange=self.exchange.task(name, target, b"same", others, history.grid),
        )  # fmt: skip
        self.run.add_done_callback(lambda _: self.arrived.release())
        self.arrived.acquire()

    def go_on(self, *, dies=False):
        """Let the forward pass begin, and wait for the next one or for the end."""
        self.network.dies = dies
        self.network.go.release()
        self.arrived.acquire()

    def counts(self):
        """Return how many patches the attempt has run and found."""
        return (
            self.engine.patches_run - self.before[0],
            self.engine.patches_found - self.before[1],
        )


class History:
    """One random history; see the top of this file.

    Args:
        seed: decides everything.

    Attributes:
        computed: number of patches that the network has run on, in all attempts.
        without: the same for these attempts without an exchange.
        found: number of patches that were found.
    """

    def __init__(self, seed):
        self.random = rng = random.Random(seed)
        patch = Zyx(*(rng.randint(2, 5) for _ in range(3)))
        overlap = Zyx(*(rng.randint(0, length - 1) for length in patch))
        geometry = PatchGeometry(patch + 2 * rng.randint(0, 1), patch, overlap)
        size = Zyx(*(rng.randint(length, 3 * length) for length in patch))
        self.domain = BoundingBox.from_size(Zyx(*(rng.randint(-9, 9) for _ in range(3))), size)
        batch_size, kind = rng.randint(1, 3), rng.random()
        self.settings = EngineSettings(
            geometry, num_output_channels=2, batch_size=batch_size,
            keep_stride=kind < 0.5, spread=kind > 0.75, skip_empty=rng.random() < 0.5,
            patch_precision=rng.choice(["float32", "float16"]),
        )  # fmt: skip
        self.dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        self.array = np.random.default_rng(seed).integers(1, 255, size, dtype=np.uint8)
        if rng.random() < 0.5:
            self.array[:, : size.y // 2] = 0
        gap = rng.choice([0, 0, 3, 7])
        self.wanted = (lambda box: sum(box.start) % gap > 0) if gap else None
        self.grid = self.settings.grid(self.domain)
        self.tasks = self.divide(patch)
        self.store = Recorded()
        self.alone = Worker(self)
        self.workers = [Worker(self) for _ in range(rng.randint(1, 3))]
        self.output = np.full((2, *size), np.nan, np.float32)
        self.computed = self.without = self.found = 0
        self.counted = {}

    def divide(self, patch):
        """Return tasks of at least a patch: a grid, whose last tasks may be small, or any boxes."""
        rng = self.random
        if rng.random() < 0.5:
            size = Zyx(*(length + rng.randint(0, length) for length in patch))
            return divided(self.domain, size)
        boxes, whole = [], [self.domain]
        while whole:
            box = whole.pop()
            axis = rng.randrange(3)
            if box.size[axis] < 2 * patch[axis] or rng.random() < 0.1:
                boxes.append(box)
                continue
            cut = rng.randint(box.start[axis] + patch[axis], box.stop[axis] - patch[axis])
            middle = [Zyx.of(cut if k == axis else v for k, v in enumerate(corner))
                      for corner in (box.stop, box.start)]  # fmt: skip
            whole += [BoundingBox(box.start, middle[0]), BoundingBox(middle[1], box.stop)]
        return {str(number): box for number, box in enumerate(boxes)}

    def run_alone(self, target):
        """Return the output on a box without an exchange, and the number of patches run."""
        worker = self.alone
        before = worker.engine.patches_run
        worker.network.go = Semaphore(10**9)
        output = worker.engine.run(
            self.array, self.domain, output_box=target, grid=self.grid, wanted=self.wanted
        )
        return output, worker.engine.patches_run - before

    def patches_of(self, name):
        """Return the number of patches that a task runs without an exchange."""
        if name not in self.counted:
            self.counted[name] = self.run_alone(self.tasks[name])[1]
        return self.counted[name]

    def play(self):
        """Do all tasks, and check each attempt."""
        queue = list(self.tasks)
        self.random.shuffle(queue)
        kills = len(queue) + 2
        try:
            while queue or any(worker.name is not None for worker in self.workers):
                self.disturb()
                worker = self.random.choice(self.workers)
                if worker.name is None:
                    if not queue:
                        continue
                    worker.begin(queue.pop())
                else:
                    dies = kills > 0 and self.random.random() < 0.1
                    kills -= dies
                    worker.go_on(dies=dies)
                if worker.run.done():
                    queue += self.ended(worker)
        finally:
            for worker in self.workers:
                # Also the pass that already waits may begin; otherwise an error would hang here.
                worker.network.go.release(10**6)
                worker.engine.close()
                worker.exchange.close()

    def ended(self, worker):
        """Check an attempt that has ended; return its task if it has to be done again."""
        name, worker.name = worker.name, None
        run, found = worker.counts()
        alone, batch = self.patches_of(name), self.settings.batch_size
        self.computed += run
        self.found += found
        assert set(worker.network.batches) <= {batch}
        if worker.run.exception() is not None:
            assert isinstance(worker.run.exception(), KilledError)
            assert run + found <= alone
            self.without += run + found
            return [name]
        assert run + found == alone
        self.without += alone
        assert len(worker.network.batches) == -(-run // batch)
        place = (slice(None), *self.tasks[name].slices(self.domain.start))
        self.output[place] = worker.run.result()
        if self.random.random() < 0.15:  # it dies before its record, or is delivered twice
            return [name]
        self.store.ended.add(name)
        return []

    def disturb(self):
        """Delete, cut, change or swap objects, most of the time none."""
        objects, rng = self.store.objects, self.random
        kind = rng.random()
        if kind < 0.01:
            objects.clear()
        if kind > 0.1 or not objects:
            return
        key, content = rng.choice(list(objects.items()))
        match rng.randrange(4) if content else 0:  # nothing is left of it to change
            case 0:
                del objects[key]
            case 1:
                objects[key] = content[: rng.randrange(len(content))]
            case 2:
                at = rng.randrange(len(content))
                changed = bytes([content[at] ^ 1 << rng.randrange(8)])
                objects[key] = content[:at] + changed + content[at + 1 :]
            case _:
                objects[key] = rng.choice(list(objects.values()))


def check_history(seed):
    """Play a history, and compare its bytes and counts with those of one task."""
    history = History(seed)
    try:
        history.play()
        expected, _ = history.run_alone(history.grid.cover.intersection(history.domain))
    finally:
        history.alone.engine.close()
    assert history.output.tobytes() == expected.tobytes()
    assert history.computed + history.found == history.without
    return history
