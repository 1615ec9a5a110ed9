"""On a device that works late, early or interleaved, the engine gives the bytes of the CPU."""

from __future__ import annotations

import ast
import logging
from concurrent.futures import CancelledError
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from rigs.simulated_device import DeviceTensor, Machine, SimulatedDevice

from chunkflow_py import inference
from chunkflow_py.errors import NonFiniteError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.inference.engine import Engine
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.settings import EngineSettings, Output
from chunkflow_py.inference.transfer import Device

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
        outputs=(Output("a", 2, "probability"), Output("b", 1, "probability")),
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


def computed(setting: EngineSettings, device: Device, *, stop: bool = False) -> list[bytes]:
    """Return the bytes of two chunks, the second of which is begun before the first is done."""
    engine = Engine(Network(setting.num_output_channels, device), setting, device=device)
    box = BoundingBox.from_size((0, 0, 0), SIZE)
    try:
        if stop:  # a run that was given up leaves its buffers in whatever state they are
            given_up, flag = images(setting.skip_empty)[0], Event()
            run = engine.start(given_up, box, stop=flag, on_progress=lambda *_: flag.set())
            with pytest.raises(CancelledError):
                run.result(60)
        runs = [engine.start(image, box) for image in images(setting.skip_empty)]
        return [run.result(60).tobytes() for run in runs]
    finally:
        engine.close()


@cache
def expected(name: str) -> list[bytes]:
    """Return what the CPU gives."""
    return computed(CASES[name], Device(torch.device("cpu")))


def check(seeds: range) -> None:
    """Compare the bytes of these schedules, over all cases in turn."""
    names = list(CASES)
    for seed in seeds:
        name = names[seed % len(names)]
        many = CASES[name].batch_size < 4
        found = computed(CASES[name], SimulatedDevice(Machine(seed)), stop=many and seed % 3 == 0)
        assert found == expected(name), f"seed {seed}: {name}"


def calls() -> set[tuple[str, int, str]]:
    """Return where the package calls record, hold, wait or uses: file, line, name."""
    found = set()
    for path in Path(inference.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                # The events inside of the seam are not replaced, they are what marks are made of.
                if name in {"record", "hold", "wait", "uses"} and path.name != "transfer.py":
                    found.add((path.name, node.lineno, name))
    return found


def called() -> set[tuple[str, int, str]]:
    """Return the calls that a run on the simulated device passes, and that of Device.enter."""
    machine = Machine(0)
    computed(CASES["uint8"], SimulatedDevice(machine))
    return machine.sites


def test_every_call_is_passed() -> None:
    """No call of the package is out of reach of the schedules, and so of the test below."""
    assert {site for site in called() if site[2] != "enter"} == calls()
    assert any(site[2] == "enter" for site in called())


def test_every_record_hold_wait_and_use_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    """Leaving out a single one of them, or not entering the device, gives wrong bytes."""
    caplog.set_level(logging.ERROR)
    for site in sorted(called()):
        assert any(is_wrong(seed, site) for seed in range(300)), f"nothing needs {site}"


def is_wrong(seed: int, left_out: tuple[str, int, str]) -> bool:
    """Tell whether a schedule without this call gives other bytes, or NaN."""
    name = list(CASES)[seed % len(CASES)]
    try:
        found = computed(CASES[name], SimulatedDevice(Machine(seed, left_out)))
    except NonFiniteError:
        return True
    return found != expected(name)


def test_values_are_not_read_before_they_are_there() -> None:
    """The device itself: a late stream has done nothing, and a released tensor is overwritten."""
    machine = Machine(0)
    machine.default[1].pace = 0
    values = SimulatedDevice(machine).bring(torch.ones(3))
    doubled = values + values
    assert isinstance(doubled, DeviceTensor)
    assert doubled.inner.isnan().all()
    assert float(doubled[0]) == 2
    inner = doubled.inner
    del doubled
    values.add_(1)
    machine.finish(machine.default[1], machine.default[1].given)
    assert inner.isnan().all()


def test_any_schedule_gives_the_bytes_of_the_cpu() -> None:
    """A sample: late, early and interleaved streams, released memory is overwritten."""
    check(range(100))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_schedules_give_the_bytes_of_the_cpu() -> None:
    """The same of 1,400 others, 100 for each case."""
    check(range(100, 1500))
