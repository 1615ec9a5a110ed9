"""Memory of results: used again when nobody looks at it any more, and never before."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from chunkflow_py.inference.results import ResultMemory

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
