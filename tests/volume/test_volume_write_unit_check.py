"""Tasks that would share a write unit, or voxels, are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import AlignmentError
from chunkflow_py.volume.write_unit_check import check_alignment, check_disjoint

UNIT = Zyx(4, 8, 8)
BOUNDS = BoundingBox(Zyx(-3, 0, 1000), Zyx(30, 60, 1050))


def edges(axis):
    """Draw two boundaries of a box along an axis, often at boundaries of units."""
    first, end = BOUNDS.start[axis], BOUNDS.stop[axis]
    aligned = st.sampled_from([*range(first, end, UNIT[axis]), end])
    near = st.builds(int.__add__, aligned, st.sampled_from([-1, 1]))
    two = st.lists(aligned | aligned | near, min_size=2, max_size=2, unique=True)
    return two.map(sorted)


@settings(max_examples=300)
@given(z=edges(0), y=edges(1), x=edges(2))
def test_boxes_that_cut_a_unit(z, y, x):
    """A box is refused exactly when a unit has voxels inside and voxels outside of the box.

    Voxels outside of the bounds do not count.
    """
    box = BoundingBox(*map(Zyx.of, zip(z, y, x)))
    cuts = False
    for axis in range(3):
        first, end = BOUNDS.start[axis], BOUNDS.stop[axis]
        for start in range(first, end, UNIT[axis]):
            voxels = range(start, min(start + UNIT[axis], end))
            inside = {box.start[axis] <= voxel < box.stop[axis] for voxel in voxels}
            cuts |= len(inside) == 2
    if cuts:
        with pytest.raises(AlignmentError, match="not aligned to the write units of size .* of em"):
            check_alignment([box], UNIT, BOUNDS, "em")
    else:
        check_alignment([box], UNIT, BOUNDS, "em")


def test_a_grid_that_cuts_units_names_sizes_that_work():
    """The sizes that the message names are accepted."""
    tasks = BoxGrid.covering(BOUNDS, Zyx(6, 16, 20))
    with pytest.raises(AlignmentError, match=r"work: \(4, 16, 16\) or \(8, 16, 24\)"):
        check_alignment(tasks, UNIT, BOUNDS, "em")
    for size in (Zyx(4, 16, 16), Zyx(8, 16, 24)):
        check_alignment(BoxGrid.covering(BOUNDS, size), UNIT, BOUNDS, "em")


def test_tasks_that_overlap():
    """Boxes that share voxels are refused, of a grid and of a list; the same box twice is not."""
    bounds = BoundingBox(Zyx(0, 0, 0), Zyx(64, 64, 64))
    unit = Zyx(8, 8, 8)
    grown = BoxGrid(Zyx(0, 0, 0), Zyx(16, 16, 16), Zyx(8, 16, 16), Zyx(4, 2, 2))
    with pytest.raises(AlignmentError, match=r"overlap along z .*em; crop"):
        check_alignment(grown, unit, bounds, "em")
    boxes = [BoundingBox.from_size(Zyx(z, 0, 0), Zyx(16, 16, 16)) for z in (0, 16, 40)]
    check_alignment([*boxes, boxes[0]], unit, bounds, "em")
    boxes.append(BoundingBox.from_size(Zyx(32, 8, 8), Zyx(16, 8, 8)))
    with pytest.raises(AlignmentError, match=r"tasks 40-56_0-16_0-16 and 32-48_8-16_8-16 overlap"):
        check_alignment(boxes, unit, bounds, "em")


@given(data=st.data())
def test_disjoint_boxes(data):
    """Boxes are refused exactly when two different ones share a voxel."""
    corner = st.tuples(*[st.integers(-6, 6)] * 3)
    size = st.tuples(*[st.integers(0, 5)] * 3)
    boxes = [
        BoundingBox.from_size(Zyx(*c), Zyx(*s))
        for c, s in data.draw(st.lists(st.tuples(corner, size), max_size=6))
    ]
    shared = any(
        a != b and not a.is_empty and not b.is_empty and not a.intersection(b).is_empty
        for a in boxes
        for b in boxes
    )
    if shared:
        with pytest.raises(AlignmentError):
            check_disjoint(boxes, "em")
    else:
        check_disjoint(boxes, "em")
