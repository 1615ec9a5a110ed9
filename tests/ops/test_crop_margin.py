"""crop-margin."""

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.cli.main import cli, main
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError
from chunkflow_py.ops.crop_margin import command, crop_margin, crop_to_box

ARRAY = np.arange(2 * 5 * 6 * 7, dtype=np.uint16).reshape(2, 5, 6, 7)
CHUNK = Chunk(ARRAY, (10, 20, 30), (40, 4, 4), "affinity", BoundingBox.parse("0-99_0-99_0-99"))


def body(*args):
    """Return the operator that a crop-margin makes."""
    return command.main(list(args), standalone_mode=False).body


def test_margins_are_cut_before_and_after():
    """The first three numbers are cut off before, the last three after; the rest is carried."""
    task = body("-m", "1", "0", "2", "0", "3", "1")(Task(items={"chunk": CHUNK}))
    result = task.chunk("chunk")
    assert str(result.bbox) == "11-15_20-23_32-36"
    assert np.array_equal(result.array, ARRAY[:, 1:, :3, 2:6])
    assert (result.voxel_size_nm, result.kind) == ((40, 4, 4), "affinity")
    assert result.domain == CHUNK.domain


def test_bare_crops_to_the_tasks_box():
    """Without margins the chunk is cropped to the box of the task."""
    box = BoundingBox.parse("11-13_20-26_31-33")
    task = body()(Task(Region(box), {"chunk": CHUNK}))
    assert task.chunk("chunk").bbox == box
    assert task.bbox == box


def test_a_box_beyond_the_volume_is_cropped_to_the_volume():
    """The last task of a volume may hang over its end: what lies inside is kept."""
    chunk = Chunk(ARRAY[0], (10, 20, 30), domain=BoundingBox.parse("0-15_0-26_0-37"))
    result = crop_to_box(chunk, BoundingBox.parse("12-20_22-40_32-64"))
    assert str(result.bbox) == "12-15_22-26_32-37"


def test_a_chunk_that_lacks_part_of_the_box_is_refused():
    """A chunk that does not hold the box is an error, not a smaller chunk."""
    with pytest.raises(GeometryError, match="the part of the box inside"):
        crop_to_box(CHUNK, BoundingBox.parse("9-13_20-26_31-33"))


def test_without_box_and_margins_there_is_nothing_to_crop_to():
    """A line without boxes has to give margins, which is told before any work is done."""
    result = CliRunner().invoke(cli, ["--verbose", "create-chunk", "crop-margin"])
    assert result.exit_code == 1
    assert "needs a task with a box to crop to; give --margin-size" in result.output
    assert "create-chunk failed" not in result.output
    assert "elapsed" not in result.output  # no run, so no table


def test_crop_bbox_moves_the_tasks_box():
    """With --crop-bbox the box of the task shrinks with the chunk; without it stays."""
    args = ["-m", "1", "1", "1", "2", "2", "2"]
    task = body("--crop-bbox", *args)(Task(Region(CHUNK.bbox), {"chunk": CHUNK}))
    assert str(task.bbox) == "11-13_21-24_31-35"
    assert task.chunk("chunk").bbox == task.bbox
    task = body(*args)(Task(Region(CHUNK.bbox), {"chunk": CHUNK}))
    assert task.bbox == CHUNK.bbox


def test_margins_that_leave_nothing_are_refused():
    """Margins that meet are refused with margins and extent."""
    with pytest.raises(
        GeometryError, match=r"\(2, 0, 0\) at the start and \(3, 0, 0\) at the end leave"
    ):
        crop_margin(CHUNK, Zyx(2, 0, 0), Zyx(3, 0, 0))


def test_negative_margins_are_a_usage_error():
    """A margin below zero ends with exit code 2."""
    args = ["create-chunk", "crop-margin", "-m", "0", "0", "0", "0", "0", "-1"]
    assert CliRunner().invoke(cli, args).exit_code == 2


margins = st.builds(Zyx, *[st.integers(0, 2)] * 3)


@settings(max_examples=30)
@given(low=margins, high=margins)
def test_required_input_is_what_cropping_brings_back(low, high):
    """Cropping the input that was asked for returns just the box."""
    box = BoundingBox.parse("0-3_0-4_0-5")
    numbers = [str(v) for v in (*low, *high)]
    grown = body("-m", *numbers).required_input(box, box)
    assert crop_margin(Chunk(np.zeros(grown.size), grown.start), low, high).bbox == box
    assert body().required_input(box, box) == box


def test_margins_that_the_volume_clipped_are_not_cropped_twice(tmp_path):
    """Published lines with a fixed margin tile up to the faces of the volume."""
    import zarr

    make = f"--quiet create-chunk -s 32 48 48 -p random save-h5 -f {tmp_path}/em.h5"
    store = tmp_path / "map.zarr"
    line = (
        f"--quiet generate-tasks -s 0 0 0 -z 32 48 48 -c 16 24 24 load-h5 -f {tmp_path}/em.h5 "
        "--expand-margin-size {margin} inference -f identity -s 8 16 16 -v 4 4 4 -c 1 "
        f"crop-margin -m 4 4 4 4 4 4 save-zarr -s {store} --block-size 16 24 24"
    )
    for words in (make, line.format(margin="auto"), line.format(margin="8 8 8")):
        with pytest.raises(SystemExit) as stop:
            main(words.split())
        assert stop.value.code == 0
    with h5py.File(tmp_path / "em.h5") as file:
        expected = file["main"][:] / 255
    np.testing.assert_allclose(zarr.open_group(store)["0"][0], expected, atol=1e-6)
