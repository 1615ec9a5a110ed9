"""`BoxIndex` finds the boxes of a grid or list by place."""

from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.outline import BoxIndex


def triples(low, high):
    """Return a strategy for three integers."""
    return st.tuples(*[st.integers(low, high)] * 3).map(Zyx.of)


grids = st.builds(
    lambda start, size, stride, count, clip: BoxGrid(
        start, size, stride, count, start + stride * (count - 1) + clip.low(size) if clip else None
    ),
    triples(-20, 20), triples(1, 9), triples(1, 9), triples(1, 4), st.none() | triples(1, 9),
)  # fmt: skip
regions = st.builds(BoundingBox.from_size, triples(-30, 60), triples(0, 25))


@given(grids, regions)
def test_boxes_of_a_grid_and_of_a_list(grid, region):
    """Both find the same boxes as a comparison with every box."""
    boxes = list(grid)
    expected = [(n, box) for n, box in enumerate(boxes) if not box.intersection(region).is_empty]
    assert sorted(BoxIndex(grid).touching(region)) == expected
    assert sorted(BoxIndex(boxes).touching(region)) == expected
    for number, box in enumerate(boxes):
        assert BoxIndex(grid).number(box) == number
        assert boxes[BoxIndex(boxes).number(box)] == box
        moved = box.translate((0, 0, 1))
        if moved not in boxes:
            assert BoxIndex(grid).number(moved) is None
            assert BoxIndex(boxes).number(moved) is None
