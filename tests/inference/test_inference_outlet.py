"""The outlet: what becomes of sums, at once or through buffers and a thread."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import NonFiniteError
from chunkflow_py.inference.blend import Region
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.outlet import Outlet
from chunkflow_py.inference.settings import EngineSettings, Output
from chunkflow_py.inference.transfer import Device

CPU = Device(torch.device("cpu"))
ONE = PatchGeometry(Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(0, 0, 0))


def put(values, staged, weights=None, **options):
    """Return what an outlet makes of mean *values* (c, z, y, x), and the outlet."""
    setting = EngineSettings(ONE, num_output_channels=len(values), **options)
    values = torch.from_numpy(np.array(values, np.float32))
    weights = torch.ones(values.shape[1:]) if weights is None else torch.from_numpy(weights)
    shape = (setting.output_channels, *values.shape[1:])
    result = np.empty(shape, setting.stored_dtype)
    box = BoundingBox.from_size((3, 4, 5), values.shape[1:])
    outlet = Outlet(setting, CPU, staged=staged)
    try:
        write = outlet.put(Region(box, values * weights, weights), torch.from_numpy(result))
        assert (write is not None) == staged
        if write is not None:
            write.result()
    finally:
        outlet.close()
    return result, outlet


def sigmoid(values):
    """Return the logistic function in float64."""
    return 1 / (1 + np.exp(-values))


def softmax(values):
    """Return the softmax over the channels in float64."""
    raised = np.exp(values - values.max(0))
    return raised / raised.sum(0)


@st.composite
def outputs(draw):
    """Draw settings and values."""
    channels = draw(st.integers(2, 4))
    shape = (channels, *(draw(st.integers(1, 5)) for _ in range(3)))
    scale = draw(st.sampled_from([0.3, 1, 8]))
    values = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(0.4, scale, shape)
    options = {
        "output_dtype": draw(st.sampled_from(["float32", "float16", "uint8", "argmax"])),
        "activation": draw(st.sampled_from(["none", "sigmoid", "softmax"])),
        "activate": draw(st.sampled_from(["before", "after"])),
        "mask_myelin_threshold": draw(st.sampled_from([None, 0.5])),
    }
    if channels == 2 and options["output_dtype"] == "argmax":
        options["mask_myelin_threshold"] = None
    return values.astype(np.float32), options


@given(outputs())
@settings(max_examples=120)
def test_both_ways_give_the_bytes_of_the_rules(case):
    """At once or staged: mean, activation after blending, myelin, type; counted alike."""
    values, options = case
    direct, one = put(values, staged=False, **options)
    staged, two = put(values, staged=True, **options)
    assert direct.tobytes() == staged.tobytes()
    assert one.clamped == two.clamped
    expected = values.astype(np.float64)
    if options["activate"] == "after":
        rule = {"none": lambda v: v, "sigmoid": sigmoid, "softmax": softmax}
        expected = rule[options["activation"]](expected)
    if options["mask_myelin_threshold"] is not None:
        expected = expected[:-1] * (expected[-1:] < 0.5)
    if options["output_dtype"] == "argmax":
        ordered = np.sort(expected, 0)
        clear = ordered[-1] - ordered[-2] > 1e-5
        assert (direct[0] == expected.argmax(0))[clear].all()
    elif options["output_dtype"] == "uint8":
        assert np.abs(direct - 255 * np.clip(expected, 0, 1)).max() <= 0.5 + 1e-3
        assert one.clamped == ((expected < 0) | (expected > 1)).sum()
    else:
        tolerance = 1e-6 if options["output_dtype"] == "float32" else 1e-3
        np.testing.assert_allclose(direct, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("output_dtype", ["float32", "float16", "uint8", "argmax"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_an_error_with_their_box(staged, output_dtype, value):
    """NaN never becomes a number, whatever the type; the outlet works on afterwards."""
    values = np.zeros((2, 2, 2, 2), np.float32)
    values[1, 0, 1, 1] = value
    with pytest.raises(NonFiniteError, match=r"NaN or infinite in 3-5_4-6_5-7; check weights"):
        put(values, staged, output_dtype=output_dtype)


@pytest.mark.parametrize("staged", [False, True])
def test_a_sum_that_overflows_is_no_error_while_its_terms_are_finite(staged):
    """Two channels of 3e38 add up to infinity, but each is a number."""
    values = np.full((2, 1, 2, 2), 3e38, np.float32)
    result, _ = put(values, staged)
    assert (result == np.float32(3e38)).all()


@pytest.mark.parametrize("staged", [False, True])
def test_softmax_is_taken_over_each_output_by_itself(staged):
    """The channels of each of several outputs sum to one."""
    values = np.random.default_rng(0).normal(0, 3, (5, 2, 3, 4)).astype(np.float32)
    parts = (Output("a", 3, "probability"), Output("b", 2, "probability"))
    result, _ = put(values, staged, outputs=parts, activation="softmax", activate="after")
    np.testing.assert_allclose(result[:3], softmax(values[:3].astype(float)), atol=1e-6)
    np.testing.assert_allclose(result[3:], softmax(values[3:].astype(float)), atol=1e-6)


@pytest.mark.parametrize("output_dtype", ["float32", "uint8"])
def test_two_buffers_serve_all_regions_and_come_back_after_errors(output_dtype):
    """Twenty regions, every third of them broken: the same two buffers, and every good value."""
    setting = EngineSettings(ONE, num_output_channels=1, output_dtype=output_dtype)
    outlet = Outlet(setting, CPU, staged=True)
    result = np.zeros((20, 1, 2, 3, 4), setting.stored_dtype)
    box, places = BoundingBox.from_size((0, 0, 0), (2, 3, 4)), set()
    for number, target in enumerate(result):
        sums = torch.full((1, 2, 3, 4), float("nan") if number % 3 == 2 else number / 20)
        write = outlet.put(Region(box, sums, torch.ones(2, 3, 4)), torch.from_numpy(target))
        if number % 3 == 2:
            with pytest.raises(NonFiniteError, match="NaN"):
                write.result()
        else:
            write.result()
            expected = np.float32(number / 20)
            if output_dtype == "uint8":
                expected = np.rint(expected * np.float32(255))
            assert (target == expected).all()
        assert outlet._free.qsize() == 2
        found = [outlet._free.get() for _ in range(2)]
        if number:  # by then both have the size of a region
            places |= {buffer.data_ptr() for buffer in found}
        for buffer in found:
            outlet._free.put(buffer)
    assert len(places) == 2
    outlet.close()


def test_regions_of_other_sizes_share_the_buffers():
    """A large region, a small one and a large one again: each has its own values."""
    setting = EngineSettings(ONE, num_output_channels=2)
    outlet = Outlet(setting, CPU, staged=True)
    rng = np.random.default_rng(0)
    for size in [(2, 3, 4), (1, 1, 1), (5, 6, 7), (1, 2, 1), (5, 6, 7)] * 3:
        values = rng.random((2, *size), dtype=np.float32)
        result = np.empty((2, 9, 9, 9), np.float32)[:, : size[0], : size[1], : size[2]]
        region = Region(
            BoundingBox.from_size((0, 0, 0), size),
            torch.from_numpy(values.copy()),
            torch.ones(size),
        )
        outlet.put(region, torch.from_numpy(result)).result()
        assert np.array_equal(result, values)
    outlet.close()


def test_closing_waits_for_what_is_written_and_ends_the_thread():
    """What was put before closing is complete afterwards."""
    before = set(threading.enumerate())
    outlet = Outlet(EngineSettings(ONE, num_output_channels=1), CPU, staged=True)
    result = np.zeros((1, 40, 50, 60), np.float32)
    box = BoundingBox.from_size((0, 0, 0), (40, 50, 60))
    sums = torch.full((1, 40, 50, 60), 6.0)
    outlet.put(Region(box, sums, torch.full((40, 50, 60), 3.0)), torch.from_numpy(result))
    outlet.close()
    assert (result == 2).all()
    assert not {t for t in set(threading.enumerate()) - before if t.name.startswith("outlet")}
