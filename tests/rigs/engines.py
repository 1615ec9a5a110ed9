"""Engines of all kinds on small chunks, for the CPU, a GPU, and the simulated device."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference.device_streams import Device
from chunkflow_py.inference.engine import Engine
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.inference.network_output import NetworkOutput
from chunkflow_py.inference.patch_exchange import PatchExchange
from chunkflow_py.inference.patch_grid import PatchGeometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE = (3, 7, 8)
ROWS = PatchGeometry(Zyx(2, 4, 4), Zyx(2, 4, 4), Zyx(1, 1, 0))
APART = PatchGeometry(Zyx(3, 4, 4), Zyx(3, 4, 4), Zyx(0, 0, 0))
CROPPED = PatchGeometry(Zyx(3, 6, 6), Zyx(3, 4, 4), Zyx(0, 1, 0))
ONE_ROW = PatchGeometry(Zyx(3, 7, 4), Zyx(3, 7, 4), Zyx(0, 0, 2))
CASES = {
    "one channel": EngineSettings(ROWS, num_output_channels=1, batch_size=3),
    "one channel, patches apart": EngineSettings(APART, num_output_channels=1),
    "one row": EngineSettings(ONE_ROW, num_output_channels=3, batch_size=2),
    "several channels": EngineSettings(ROWS, num_output_channels=3, batch_size=2),
    "cropped": EngineSettings(CROPPED, num_output_channels=2, batch_size=4),
    "uint8": EngineSettings(ROWS, num_output_channels=2, output_dtype="uint8", batch_size=2),
    "uint8, one row": EngineSettings(ONE_ROW, num_output_channels=1, output_dtype="uint8"),
    "float16": EngineSettings(APART, num_output_channels=2, output_dtype="float16"),
    "argmax": EngineSettings(ROWS, num_output_channels=3, output_dtype="argmax", batch_size=4),
    "skip empty": EngineSettings(ROWS, num_output_channels=2, skip_empty=True, batch_size=3),
    "augment": EngineSettings(APART, num_output_channels=3, augment=True, batch_size=2),
    "activation before": EngineSettings(ROWS, num_output_channels=1, activation="sigmoid"),
    "activation after": EngineSettings(
        ROWS, num_output_channels=3, activation="softmax", activate="after", batch_size=3,
        outputs=(NetworkOutput("a", 2, "probability"), NetworkOutput("b", 1, "probability")),
    ),
    "patches in float16": EngineSettings(
        ROWS, num_output_channels=2, batch_size=3, patch_precision="float16"
    ),
    "myelin": EngineSettings(APART, num_output_channels=2, mask_myelin_threshold=0.5),
}  # fmt: skip


class Network:
    """Two operations whose result lies in [0, 1] and differs between channels."""

    weighted = False
    divisor = None

    def __init__(self, channels: int, device: Device) -> None:
        """Bring the weights to the device."""
        self.device, self.profile = device.torch, {"framework": "test"}
        scale = torch.linspace(0.3, 0.7, channels)[:, None, None, None]
        self.scale, self.shift = device.bring(scale), device.bring(1 - scale)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return (n, channels, z, y, x)."""
        return batch * self.scale * self.shift


@cache
def images(skip: bool) -> list[NDArray[np.uint8]]:
    """Return two chunks, parts of which are empty if some patches are to be."""
    rng = np.random.default_rng(0)
    made = [rng.integers(1, 256, SIZE, dtype=np.uint8) for _ in range(2)]
    for image in made if skip else ():
        image[:2, :5] = 0
    return made


def computed(setting: EngineSettings, device: Device, *, stop: bool = False) -> list[NDArray[Any]]:
    """Return two chunks, the second of which is begun before the first is done."""
    engine = Engine(Network(setting.num_output_channels, device), setting, device=device)
    box = BoundingBox.from_size((0, 0, 0), SIZE)
    try:
        if stop:  # a run that was given up leaves its buffers in whatever state they are
            given_up, flag = images(setting.skip_empty)[0], Event()
            run = engine.start(given_up, box, stop=flag, on_progress=lambda *_: flag.set())
            with pytest.raises(CancelledError):
                run.result(60)
        chunks = images(setting.skip_empty)
        runs = [engine.start(image, box) for image in chunks]
        runs += two_tasks(engine, chunks[0], box, device)
        return [run.result(60) for run in runs]
    finally:
        engine.close()


def two_tasks(
    engine: Engine, image: NDArray[np.uint8], box: BoundingBox, device: Device
) -> list[Future[NDArray[Any]]]:
    """Start two tasks that divide a chunk, of which the second may use patches of the first.

    With an even batch size, both are under way at the same time; otherwise the second uses all that
    they share.
    """
    settings = engine.settings
    middle = Zyx(*(k // 2 if axis == 1 else 0 for axis, k in enumerate(box.size)))
    targets = {
        "low": BoundingBox(box.start, Zyx(box.stop.z, middle.y, box.stop.x)),
        "high": BoundingBox(middle, box.stop),
    }
    geometry = (settings.geometry.output_patch_size, settings.num_output_channels)
    exchange = PatchExchange(LocalParts(), geometry, device)
    grid, runs = settings.grid(box), []
    for name, target in targets.items():
        others = {key: other for key, other in targets.items() if key != name}
        each = exchange.task(name, target, b"same", others, grid)
        runs.append(engine.start(image, box, output_box=target, grid=grid, exchange=each))
        if settings.batch_size % 2:
            runs[-1].result(60)
    return runs
