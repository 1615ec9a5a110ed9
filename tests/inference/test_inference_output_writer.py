"""The writer: what becomes of sums, at once or through buffers and a thread."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import NonFiniteError
from chunkflow_py.inference.blend import BlendedRegion
from chunkflow_py.inference.device_streams import Device
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.network_output import NetworkOutput
from chunkflow_py.inference.output_writer import OutputWriter, ResultMemory
from chunkflow_py.inference.patch_grid import PatchGeometry

CPU = Device(torch.device("cpu"))
ONE = PatchGeometry(Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(0, 0, 0))


def put(values, staged, weights=None, **options):
    """Return what an writer makes of mean *values* (c, z, y, x), and the writer."""
    setting = EngineSettings(ONE, num_output_channels=len(values), **options)
    values = torch.from_numpy(np.array(values, np.float32))
    weights = torch.ones(values.shape[1:]) if weights is None else torch.from_numpy(weights)
    shape = (setting.output_channels, *values.shape[1:])
    result = np.empty(shape, setting.stored_dtype)
    box = BoundingBox.from_size((3, 4, 5), values.shape[1:])
    writer = OutputWriter(setting, CPU, staged=staged)
    try:
        write = writer.put(BlendedRegion(box, values * weights, weights), torch.from_numpy(result))
        assert (write is not None) == staged
        if write is not None:
            write.result()
    finally:
        writer.close()
    return result, writer


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
    """NaN never becomes a number, whatever the type; the writer works on afterwards."""
    values = np.zeros((2, 2, 2, 2), np.float32)
    values[1, 0, 1, 1] = value
    with pytest.raises(NonFiniteError, match=r"in 3-5_4-6_5-7, .* NaN or infinite; check"):
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
    parts = (NetworkOutput("a", 3, "probability"), NetworkOutput("b", 2, "probability"))
    result, _ = put(values, staged, outputs=parts, activation="softmax", activate="after")
    np.testing.assert_allclose(result[:3], softmax(values[:3].astype(float)), atol=1e-6)
    np.testing.assert_allclose(result[3:], softmax(values[3:].astype(float)), atol=1e-6)


@pytest.mark.parametrize("output_dtype", ["float32", "uint8"])
def test_two_buffers_serve_all_regions_and_come_back_after_errors(output_dtype):
    """Twenty regions, every third of them broken: the same two buffers, and every good value."""
    setting = EngineSettings(ONE, num_output_channels=1, output_dtype=output_dtype)
    writer = OutputWriter(setting, CPU, staged=True)
    result = np.zeros((20, 1, 2, 3, 4), setting.stored_dtype)
    box, places = BoundingBox.from_size((0, 0, 0), (2, 3, 4)), set()
    for number, target in enumerate(result):
        sums = torch.full((1, 2, 3, 4), float("nan") if number % 3 == 2 else number / 20)
        write = writer.put(BlendedRegion(box, sums, torch.ones(2, 3, 4)), torch.from_numpy(target))
        if number % 3 == 2:
            with pytest.raises(NonFiniteError, match="NaN"):
                write.result()
        else:
            write.result()
            expected = np.float32(number / 20)
            if output_dtype == "uint8":
                expected = np.rint(expected * np.float32(255))
            assert (target == expected).all()
        assert writer._free.qsize() == 2
        found = [writer._free.get() for _ in range(2)]
        if number:  # by then both have the size of a region
            places |= {buffer.data_ptr() for buffer in found}
        for buffer in found:
            writer._free.put(buffer)
    assert len(places) == 2
    writer.close()


def test_regions_of_other_sizes_share_the_buffers():
    """A large region, a small one and a large one again: each has its own values."""
    setting = EngineSettings(ONE, num_output_channels=2)
    writer = OutputWriter(setting, CPU, staged=True)
    rng = np.random.default_rng(0)
    for size in [(2, 3, 4), (1, 1, 1), (5, 6, 7), (1, 2, 1), (5, 6, 7)] * 3:
        values = rng.random((2, *size), dtype=np.float32)
        result = np.empty((2, 9, 9, 9), np.float32)[:, : size[0], : size[1], : size[2]]
        region = BlendedRegion(
            BoundingBox.from_size((0, 0, 0), size),
            torch.from_numpy(values.copy()),
            torch.ones(size),
        )
        writer.put(region, torch.from_numpy(result)).result()
        assert np.array_equal(result, values)
    writer.close()


def test_closing_waits_for_what_is_written_and_ends_the_thread():
    """What was put before closing is complete afterwards."""
    before = set(threading.enumerate())
    writer = OutputWriter(EngineSettings(ONE, num_output_channels=1), CPU, staged=True)
    result = np.zeros((1, 40, 50, 60), np.float32)
    box = BoundingBox.from_size((0, 0, 0), (40, 50, 60))
    sums = torch.full((1, 40, 50, 60), 6.0)
    writer.put(BlendedRegion(box, sums, torch.full((40, 50, 60), 3.0)), torch.from_numpy(result))
    writer.close()
    assert (result == 2).all()
    assert not {t for t in set(threading.enumerate()) - before if t.name.startswith("writer")}


LARGE = (1, 2, 1024, 1024)  # float32: 8 MiB, kept
OTHER = (3, 2, 512, 1024)


def place(array):
    """Return where an array lies."""
    return array.__array_interface__["data"][0]


@pytest.fixture
def memory():
    """Return memory that is let go of afterwards."""
    made = ResultMemory()
    yield made
    made.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), LARGE, OTHER])
def test_arrays_are_ordinary(memory, shape, dtype):
    """Of the shape and type asked for, in order, writable, for torch as well."""
    array = memory.empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 3
    tensor = torch.from_numpy(array[:, 0])
    tensor += 1
    assert array[:, 0].min() == array[:, 0].max() == 4


def test_memory_is_used_again_when_the_result_is_dropped(memory):
    """The third result of a kind lies where the first lay."""
    first = memory.empty(LARGE, "float32")
    where = place(first)
    second = memory.empty(LARGE, "float32")
    assert place(second) != where
    del first
    assert place(memory.empty(LARGE, "float32")) == where


@pytest.mark.parametrize(
    "view_of",
    [
        lambda array: array[0],
        lambda array: array[0, 1:, ::2, 3:7].T,
        lambda array: array.reshape(-1)[5:6],
        lambda array: array.view(np.uint8),
        lambda array: array.view(np.recarray)[..., :1],
        lambda array: torch.from_numpy(array)[:, :, 3],
        lambda array: torch.from_numpy(array[0, 0]).numpy(),
        memoryview,
        lambda array: np.frombuffer(array, np.uint8)[7:],
        lambda array: np.asarray(memoryview(array))[0],
        lambda array: np.broadcast_to(array, (4, *array.shape)),
        lambda array: array.data,
        lambda array: next(iter(array)),
    ],
    ids=range(13),
)
def test_memory_is_not_used_again_while_any_view_of_it_lives(memory, view_of):
    """A slice, a tensor, a buffer or a view of a view keeps the memory of the whole."""
    array = memory.empty(LARGE, "float32")
    array[...] = 7
    where = place(array)
    view = view_of(array)
    before = np.array(view.numpy() if isinstance(view, torch.Tensor) else view)
    del array
    gc.collect()
    others = [memory.empty(LARGE, "float32") for _ in range(3)]
    assert where not in [place(other) for other in others]
    for other in others:
        other[...] = 9
    assert np.array_equal(view, before)
    del view, others
    gc.collect()
    assert len(memory._idle) == 2


def test_other_kinds_do_not_pile_up(memory):
    """At most two blocks lie idle, and a chunk of another size lets go of them."""
    arrays = [memory.empty(LARGE, "float32") for _ in range(4)]
    arrays.clear()
    assert len(memory._idle) == 2
    other = memory.empty((1, 1, 1024, 2048), "float32")  # of the same size: a block fits
    assert len(memory._idle) == 1
    del other
    memory.empty((1, 3, 1024, 1024), "float32")
    assert all(len(block) == 3 * 4 << 20 for block in memory._idle)


def test_after_closing_memory_is_let_go_of():
    """A result that outlives the engine stays valid, and is freed with its last view."""
    memory = ResultMemory()
    array = memory.empty(LARGE, "float32")
    idle = memory.empty(LARGE, "float32")
    del idle
    array[...] = 5
    memory.close()
    assert not memory._idle
    assert array.min() == 5
    block = weakref.ref(memory)
    del array
    assert not memory._idle
    del memory
    gc.collect()
    assert block() is None


def test_threads_may_take_and_drop_at_once(memory):
    """No two living results ever share memory, whatever thread takes or drops them."""
    wrong = []

    def work(number):
        for _ in range(15):
            array = memory.empty(LARGE, "uint8" if number % 2 else "float32")
            array[0, 0, 0] = number
            array[0, 1, -1] = number
            if (array[0, 0, 0] != number).any() or (array[0, 1, -1] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(memory._idle) <= 2
