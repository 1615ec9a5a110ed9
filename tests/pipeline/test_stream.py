"""Streams that run ahead in the background, and work on them that overlaps."""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.pipeline.stream import mapped, overlapped, prefetch

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


@pytest.mark.parametrize(
    "run_ahead",
    [
        lambda stream: prefetch(stream, 1),
        lambda stream: mapped(stream, str, 1),
        lambda stream: overlapped(stream, lambda item: Future()),
    ],
    ids=["prefetch", "mapped", "overlapped"],
)
def test_ctrl_c_while_a_thread_starts(
    run_ahead: Callable[[Iterator[int]], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, and the stream is nowhere at work, so that it can be closed."""

    def start(thread: threading.Thread) -> None:
        begin(thread)
        time.sleep(0.05)  # in which the thread may begin an item
        raise KeyboardInterrupt

    def stream() -> Iterator[int]:
        time.sleep(0.2)
        yield 1

    items = stream()
    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        next(run_ahead(items))
    items.close()


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


# --- mapped --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 4))
def test_mapped_keeps_the_order(delays: list[int], depth: int) -> None:
    """Every item comes once, in order, however long the work on each one takes."""

    def work(item: int) -> int:
        time.sleep(delays[item] / 2000)
        return item + 100

    found = list(mapped(range(len(delays)), work, depth, "kept"))
    assert found == [item + 100 for item in range(len(delays))]
    assert not threads("kept")


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_mapped_works_on_all_that_it_is_ahead(depth: int) -> None:
    """The item asked for and *depth* more are worked on at once, and not one more is begun."""
    together = threading.Barrier(depth + 1, timeout=10)
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item <= depth:
            together.wait()
        return item

    results = mapped(range(100), work, depth, "ahead")
    assert next(results) == 0
    time.sleep(0.02)
    assert sorted(begun) == list(range(depth + 1))
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    assert not threads("ahead")


@pytest.mark.parametrize("where", ["stream", "work"])
def test_an_error_of_mapped_comes_in_its_place(where: str) -> None:
    """Results before it arrive, then the error; the stream is closed and no thread is left."""
    closed = []

    def stream() -> Iterator[int]:
        try:
            for item in range(9):
                if item == 2 and where == "stream":
                    raise ValueError(item)
                yield item
        finally:
            closed.append(True)

    def work(item: int) -> int:
        time.sleep(0.01 * (3 - item))
        if item == 2 and where == "work":
            raise ValueError(item)
        return item

    results = mapped(stream(), work, 1, "failing")
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(results)
    assert closed == [True]
    assert not threads("failing")


# --- overlapped ----------------------------------------------------------------------------------


class Work:
    """Work that is begun on items, and done when a test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.futures: dict[int, Future[int]] = {}

    def __call__(self, item: int) -> Future[int]:
        self.begun.append(item)
        return self.futures.setdefault(item, Future())

    def done(self, item: int) -> None:
        self.futures.setdefault(item, Future()).set_result(-item)


@given(st.lists(st.integers(0, 3), max_size=12))
def test_overlapped_keeps_the_order(delays: list[int]) -> None:
    """Every item comes once, in order, however long the work on each one takes."""
    with ThreadPoolExecutor(1) as pool:

        def begin(item: int) -> Future[int]:
            return pool.submit(lambda: (time.sleep(delays[item] / 2000), item + 100)[1])

        found = list(overlapped(range(len(delays)), begin, "kept"))
    assert found == [item + 100 for item in range(len(delays))]
    assert not threads("kept")


def test_the_next_item_is_begun_before_the_last_one_is_done() -> None:
    """The second is begun while the first is on its way, a third only when that is taken."""
    work, taken = Work(), []
    for item in range(1, 5):
        work.futures[item] = Future()

    def consume() -> None:
        taken.extend(overlapped(range(1, 5), work, "begun"))

    consumer = threading.Thread(target=consume)
    consumer.start()
    for item in range(1, 5):
        wait_until(lambda item=item: work.begun == list(range(1, min(item + 2, 5))))  # type: ignore[misc]
        time.sleep(0.01)
        assert len(work.begun) == min(item + 1, 4)  # no more than two are in flight
        work.done(item)
    consumer.join(10)
    assert taken == [-1, -2, -3, -4]
    assert not threads("begun")


def test_a_result_never_waits_for_the_next_item() -> None:
    """While the stream is slow, what is done is handed on."""
    work, go_on = Work(), threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        go_on.wait(10)
        yield 2

    results = overlapped(slow(), work, "slow")
    work.done(1)
    assert next(results) == -1  # though the stream has not gone on
    assert work.begun == [1]
    go_on.set()
    work.done(2)
    assert next(results) == -2
    assert next(results, None) is None


def test_a_result_is_handed_on_if_it_is_done_while_the_stream_is_slow() -> None:
    """The same where the work ends while both are waited for."""
    work, go_on = Work(), threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        go_on.wait(10)

    results = overlapped(slow(), work, "slow")
    timer = threading.Timer(0.05, work.done, (1,))
    timer.start()
    assert next(results) == -1
    go_on.set()
    assert next(results, None) is None
    timer.join()


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_an_error_of_the_stream_comes_after_what_came_before(before: int) -> None:
    """Results of all items before it arrive, then the error; nothing else is begun."""
    work = Work()

    def broken() -> Iterator[int]:
        yield from range(1, before + 1)
        msg = "the queue is gone"
        raise OSError(msg)

    for item in range(1, before + 1):
        timer = threading.Timer(0.02 * item, work.done, (item,))
        work.futures[item] = Future()
        timer.start()
    results = overlapped(broken(), work, "broken")
    assert [next(results) for _ in range(before)] == [-item for item in range(1, before + 1)]
    with pytest.raises(OSError, match="the queue is gone"):
        next(results)
    assert work.begun == list(range(1, before + 1))
    assert not threads("broken")


def test_an_error_of_the_work_comes_in_its_place() -> None:
    """Results before it arrive; then the error ends the stream and its thread."""
    work, closed = Work(), []

    def stream() -> Iterator[int]:
        try:
            yield from range(1, 9)
        finally:
            closed.append(True)

    work.done(1)
    work.futures[2] = Future()
    work.futures[2].set_exception(ValueError("second"))
    results = overlapped(stream(), work, "failing")
    assert next(results) == -1
    with pytest.raises(ValueError, match="second"):
        next(results)
    assert closed == [True]
    assert not threads("failing")


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closing_overlapped_early_ends_thread_and_stream(taken: int) -> None:
    """Whoever leaves early leaves no thread behind, and the stream may tidy up."""
    closed = []

    def endless() -> Iterator[int]:
        number = 0
        try:
            while True:
                yield (number := number + 1)
        finally:
            closed.append(True)

    def begin(item: int) -> Future[int]:
        future: Future[int] = Future()
        future.set_result(item)
        return future

    results = overlapped(endless(), begin, "endless")
    assert [next(results) for _ in range(taken)] == list(range(1, taken + 1))
    results.close()  # type: ignore[attr-defined]
    assert closed == ([True] if taken else [])
    assert not threads("endless")


def test_overlapped_frees_an_item_before_the_next_one_is_there() -> None:
    """While the stream makes the next item, nothing but the consumer keeps the one before."""

    class Item:
        pass

    made: list[weakref.ref[Item]] = []

    def stream() -> Iterator[Item]:
        for number in range(4):
            if number > 1:  # by now the one before last has been taken
                wait_until(lambda: made[-1]() is None)
            item = Item()
            made.append(weakref.ref(item))
            yield item
            del item

    with ThreadPoolExecutor(1) as pool:

        def begin(item: Item) -> Future[Item]:
            return pool.submit(lambda: (time.sleep(0.02), item)[1])

        for item in overlapped(stream(), begin):
            del item
    assert len(made) == 4
