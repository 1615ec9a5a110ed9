"""On a device that works late, early or interleaved, the engine gives the bytes of the CPU."""

from __future__ import annotations

import ast
import logging
from functools import cache
from pathlib import Path

import pytest
import torch
from rigs.engines import CASES, computed
from rigs.simulated_device import DeviceTensor, Machine, SimulatedDevice

from chunkflow_py import inference
from chunkflow_py.errors import NonFiniteError
from chunkflow_py.inference.device_streams import Device


def bytes_of(name: str, device: Device, *, stop: bool = False) -> list[bytes]:
    """Return the bytes that a device gives."""
    return [chunk.tobytes() for chunk in computed(CASES[name], device, stop=stop)]


@cache
def expected(name: str) -> list[bytes]:
    """Return what the CPU gives."""
    return bytes_of(name, Device(torch.device("cpu")))


def check(seeds: range) -> None:
    """Compare the bytes of these schedules, over all cases in turn."""
    names = list(CASES)
    for seed in seeds:
        name = names[seed % len(names)]
        many = CASES[name].batch_size < 4
        found = bytes_of(name, SimulatedDevice(Machine(seed)), stop=many and seed % 3 == 0)
        assert found == expected(name), f"seed {seed}: {name}"


def calls() -> set[tuple[str, int, str]]:
    """Return where the package calls record, hold, wait or uses: file, line, name."""
    found = set()
    for path in Path(inference.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                # The events inside of the seam are not replaced, they are what marks are made of.
                if name in {"record", "hold", "wait", "uses"} and path.name != "device_streams.py":
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
        found = bytes_of(name, SimulatedDevice(Machine(seed, left_out)))
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
    check(range(56))  # 4 for each case


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_schedules_give_the_bytes_of_the_cpu() -> None:
    """The same of 1,400 others, 100 for each case."""
    check(range(56, 1456))
