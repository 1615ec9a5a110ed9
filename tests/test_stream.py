"""prefetch(): a stream run ahead in the background."""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.stream import prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; give up after ten seconds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the other thread never came so far"
        time.sleep(0.001)


def threads(name: str) -> list[threading.Thread]:
    """Return the living threads of this name."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@given(st.lists(st.none() | st.integers(), max_size=20), st.integers(0, 5))
def test_order_is_kept(items: list[int | None], depth: int) -> None:
    """Every item comes once, in order, None included, however far ahead."""
    assert list(prefetch(items, depth)) == items


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_items_wait(depth: int) -> None:
    """The stream runs *depth* items ahead of what was taken, and no further."""
    made = taken = most = 0

    def stream() -> Iterator[int]:
        nonlocal made, most
        for number in range(30):
            made += 1
            # One more: the item that is on its way to the consumer counts as not taken yet.
            most = max(most, made - taken - 1)
            yield number

    def far_enough() -> bool:
        return made == min(30, taken + depth)

    for _ in prefetch(stream(), depth):
        taken += 1
        wait_until(far_enough)
    assert most <= depth


def test_items_are_made_in_one_thread_of_that_name() -> None:
    """One background thread makes all items, and carries the name it was given."""
    names = list(prefetch((threading.current_thread().name for _ in range(5)), 3, "reader"))
    assert len(set(names)) == 1
    assert names[0].startswith("reader")
    assert not threads("reader")


def test_depth_zero_uses_no_thread() -> None:
    """With depth 0 an item is made when it is asked for, in the same thread."""
    made: list[str] = []

    def stream() -> Iterator[int]:
        for number in range(3):
            made.append(threading.current_thread().name)
            yield number

    ahead = prefetch(stream(), 0, "reader")
    assert not made
    next(ahead)
    assert made == [threading.current_thread().name]
    assert not threads("reader")


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_comes_in_its_place_with_its_traceback(depth: int) -> None:
    """Items before an error arrive, then the error with the line that raised it."""

    def broken_stream() -> Iterator[int]:
        yield 1
        yield 2
        msg = "third"
        raise ValueError(msg)

    ahead = prefetch(broken_stream(), depth, "broken")
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="third") as caught:
        next(ahead)
    assert "broken_stream" in "".join(traceback.format_exception(caught.value))
    assert not threads("broken")


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_closing_early_ends_thread_and_stream(depth: int) -> None:
    """Whoever leaves early leaves no thread behind, and the stream may tidy up."""
    closed = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    ahead = prefetch(endless(), depth, "endless")
    next(ahead)
    ahead.close()
    assert closed == [True]
    assert not threads("endless")


@pytest.mark.parametrize("depth", [0, 1])
def test_an_item_is_freed_before_the_next_one_is_there(depth: int) -> None:
    """While the next item is made, nothing but the consumer keeps the one before."""

    class Item:
        pass

    made: list[weakref.ref[Item]] = []

    def stream() -> Iterator[Item]:
        for _ in range(3):
            if made:
                wait_until(lambda: made[-1]() is None)
            item = Item()
            made.append(weakref.ref(item))
            yield item
            del item

    for item in prefetch(stream(), depth):
        del item
    assert len(made) == 3
