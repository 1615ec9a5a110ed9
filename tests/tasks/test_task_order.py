"""The order of the boxes of a grid."""

from __future__ import annotations

from itertools import islice, pairwise, product
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.tasks.task_order import ORDERS, OrderedBoxes, cells
from chunkflow_py.testing.peak_memory import peak_of

COUNTS = st.builds(Zyx, *[st.integers(1, 9)] * 3)
IN_ORDER = pytest.mark.parametrize("order", ORDERS)


def distances(count, order):
    """Return the distances between consecutive cells along each axis."""
    steps = pairwise(cells(count, order))
    return [sorted(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in steps]


@IN_ORDER
@given(count=COUNTS)
def test_every_box_comes_once(order, count):
    """Each cell occurs exactly once, whatever the extents of the grid."""
    found = list(cells(count, order))
    assert len(found) == count.product()
    assert set(found) == set(product(*map(range, count)))


@given(count=st.builds(Zyx, *[st.sampled_from([1, 2, 4, 6, 8, 10])] * 3))
def test_hilbert_neighbours_share_a_face(count):
    """If all extents are even or 1, consecutive boxes share a face."""
    assert all(step == [0, 0, 1] for step in distances(count, "hilbert"))


@given(count=COUNTS)
def test_hilbert_neighbours_touch(count):
    """Consecutive boxes always touch, and nearly always share a face."""
    steps = distances(count, "hilbert")
    assert all(step[2] == 1 for step in steps)
    assert sum(step != [0, 0, 1] for step in steps) <= count.product() / 6


@given(count=COUNTS)
def test_morton_is_the_order_of_interleaved_bits(count):
    """Cells are ordered by the interleaved bits of z, y and x, with z highest."""

    def number(cell):
        bits = [(cell[k % 3] >> (3 - k // 3)) & 1 for k in range(12)]
        return int("".join(map(str, bits)), 2)

    assert list(cells(count, "morton")) == sorted(cells(count), key=number)


def test_raster_is_the_order_of_the_grid():
    """Raster order equals the order of the grid."""
    grid = BoxGrid.covering(BoundingBox.parse("-2-9_0-7_3-8"), Zyx(4, 3, 2), respect_stop=True)
    assert list(OrderedBoxes(grid)) == list(grid)


@IN_ORDER
@given(count=COUNTS, data=st.data())
def test_any_part_can_be_asked_for(order, count, data):
    """Boxes by index, and parts, equal those of the whole, so that jobs can share the boxes."""
    boxes = OrderedBoxes(BoxGrid(Zyx(1, 2, 3), Zyx(2, 2, 2), Zyx(2, 2, 2), count), order)
    whole = list(boxes)
    index = data.draw(st.integers(0, len(boxes) - 1))
    stop = data.draw(st.integers(index, len(boxes)))
    assert boxes[index] == whole[index]
    assert list(boxes.part(range(index, stop))) == whole[index:stop] == boxes[index:stop]
    with pytest.raises(IndexError, match=f"box {len(boxes)} is not one of the {len(boxes)} boxes"):
        boxes[len(boxes)]


@IN_ORDER
def test_ten_million_boxes_take_no_memory_and_no_search(order):
    """A box in the middle of ten million is found at once, without stored positions."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(100, 400, 250))
    boxes = OrderedBoxes(grid, order)
    assert len(boxes) == 10_000_000

    def pass_many():
        start = perf_counter()
        assert len(set(islice(boxes.part(range(5_000_000, 10_000_000)), 3))) == 3
        assert perf_counter() - start < 10
        assert sum(1 for _ in islice(boxes, 20_000)) == 20_000

    assert peak_of(pass_many).traced < 500_000  # a list of boxes would take megabytes
