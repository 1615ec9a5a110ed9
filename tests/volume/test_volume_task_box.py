"""Tests of chunkflow_py.volume.task_box: a task writes its own box, no other, and all of it."""

from __future__ import annotations

import numpy as np
import pytest
from rigs.command_line import say

from chunkflow_py import open_volume

TASKS = "generate-tasks --roi-size 16 32 32 --chunk-size 8 16 16"
LOAD = "load-zarr --store image.zarr"
RUN = "plugin -f plugin.py -i chunk -o chunk"
SAVE = "save-zarr --chunk-size 8 16 16 --store"
PLUGIN = """
from chunkflow_py import BoundingBox, Chunk

def execute(chunk):
    {body}
"""
BODIES = {
    "shifted": "return Chunk(chunk.array, chunk.voxel_offset + (0, 16, 0))",
    "shifted by a voxel": "return Chunk(chunk.array, chunk.voxel_offset + (0, 0, 1))",
    "shifted in its domain": (
        "return Chunk(chunk.array, chunk.voxel_offset + (0, 0, 16), domain=chunk.domain)"
    ),
    "back": "return Chunk(chunk.array, chunk.voxel_offset - (8, 0, 0))",
    "larger": (
        "import numpy as np; return Chunk(np.pad(chunk.array, ((0, 0), (0, 16), (0, 0))), "
        "chunk.voxel_offset)"
    ),
    "smaller": (
        "box = BoundingBox(chunk.bbox.start, chunk.bbox.stop - (0, 8, 0)); return chunk.cut(box)"
    ),
    "smaller, of its own": "return Chunk(chunk.array[:4], chunk.voxel_offset)",
    "at zero": "return Chunk(chunk.array)",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image, and the result of a line."""
    monkeypatch.chdir(tmp_path)
    say(f"--quiet create-chunk --size 16 32 32 --pattern random {SAVE} image.zarr")
    return tmp_path


def voxels(name, mip=0):
    """Return all voxels of a volume."""
    volume = open_volume(name, mip)
    return volume.read(volume.bounds).array


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("saver", ["save-zarr", "save-precomputed", "downsample-upload"])
def test_a_chunk_that_is_not_of_its_task_is_refused(folder, what, saver) -> None:
    """A plugin that returns a shifted, larger or smaller chunk is refused: others write there."""
    (folder / "plugin.py").write_text(PLUGIN.format(body=BODIES[what]))
    words = f"{TASKS} {LOAD} {RUN} {SAVE} out.zarr"
    if saver == "save-precomputed":
        words = f"{TASKS} {LOAD} {RUN} {saver} --volume-path out --block-size 8 16 16"
    elif saver == "downsample-upload":
        say("create-volume --like image.zarr -v zarr://out.zarr -b 4 4 4 --max-mip 1")
        words = f"{TASKS} {LOAD} {RUN} {saver} -v out.zarr --stop-mip 2"
    told = say(words, code=1)
    assert "adjust-bbox" in told
    if "smaller" in what or what == "back":
        assert "the part of out" in told
        assert "that only this task writes" in told
    else:
        assert "the box that the task may write" in told
        assert "would overwrite output of other tasks" in told


@pytest.mark.parametrize(
    "words",
    [
        # chunkflow 1.x: margins are loaded by hand and cropped again
        f"{LOAD} --expand-margin-size 2 4 4 crop-margin --margin-size 2 4 4 2 4 4",
        f"{LOAD} --expand-margin-size 2 4 4 crop-margin",
        f"{LOAD} --expand-margin-size auto gaussian-filter --sigma 1 crop-margin",
        f"adjust-bbox --corner-offset -2 -4 -4 2 4 4 {LOAD} "
        "adjust-bbox --corner-offset 2 4 4 -2 -4 -4 crop-margin",
    ],
)
def test_cropped_margins_stay_legal(words) -> None:
    """A chunk whose margin has been cropped is that of its task, however it was read."""
    say(f"{TASKS} {words} {SAVE} out.zarr")
    if "gaussian" not in words:
        np.testing.assert_array_equal(voxels("out.zarr"), voxels("image.zarr"))


def test_a_margin_that_was_not_cropped_is_refused() -> None:
    """A margin of whole blocks would overwrite blocks of the neighbours without cutting any."""
    told = say(f"{TASKS} {LOAD} --expand-margin-size 8 16 16 {SAVE} out.zarr", code=1)
    assert "crop the chunk to that box with crop-margin" in told


def test_tasks_that_overlap_write_what_is_left_of_them() -> None:
    """Boxes that overlap are cropped to disjoint ones, of the chunk and of the task."""
    grid = "generate-tasks --roi-start 4 0 0 --roi-stop 12 32 32 --chunk-size 4 16 16"
    tasks = f"{grid} adjust-bbox --corner-offset -2 0 0 2 0 0"
    crop = "crop-margin --margin-size 2 0 0 2 0 0 --crop-bbox"
    save = "save-zarr --chunk-size 4 16 16 --shape 16 32 32 --store"
    say(f"{tasks} {LOAD} {crop} {save} out.zarr")
    image, found = voxels("image.zarr"), voxels("out.zarr")
    np.testing.assert_array_equal(found[4:12], image[4:12])
    assert not found[:4].any()
    assert not found[12:].any()
    told = say(f"{tasks} {LOAD} {save} other.zarr", code=1)
    assert "overlap" in told


def test_boxes_follow_what_turns_moves_and_shrinks() -> None:
    """Transposed, shrunk and moved chunks are compared with the box as it comes to the saver."""
    say(f"{TASKS} {LOAD} transpose --axes xyz save-zarr --chunk-size 16 16 8 --store t.zarr")
    np.testing.assert_array_equal(voxels("t.zarr"), voxels("image.zarr").transpose(2, 1, 0))
    say(f"{TASKS} {LOAD} downsample --factor 1 2 2 save-zarr --chunk-size 8 8 8 --store d.zarr")
    assert voxels("d.zarr").shape == (16, 16, 16)
    say(
        f"{TASKS} load-zarr --store image.zarr adjust-bbox --corner-offset 0 0 8 0 0 0 crop-margin "
        "save-zarr --chunk-size 8 16 8 --store right.zarr"
    )
    np.testing.assert_array_equal(voxels("right.zarr")[..., 8:16], voxels("image.zarr")[..., 8:16])


def test_boxes_beyond_the_volume_are_cut() -> None:
    """The last tasks reach beyond the image, and a chunk beyond the volume; both are cut there."""
    tasks = "generate-tasks --roi-size 16 32 32 --chunk-size 8 24 24"
    say(f"{tasks} {LOAD} save-zarr --chunk-size 8 24 24 --store out.zarr")
    np.testing.assert_array_equal(voxels("out.zarr"), voxels("image.zarr"))
    say(f"{tasks} {LOAD} save-zarr --chunk-size 8 24 24 --shape 16 30 32 --store cut.zarr")
    np.testing.assert_array_equal(voxels("cut.zarr"), voxels("image.zarr")[:, :30])


def test_a_single_chunk_goes_where_it_lies() -> None:
    """Without tasks, and with one task alone, there is nobody whose voxels could be overwritten."""
    say(f"{LOAD} {SAVE} one.zarr")
    say(
        "create-bbox -s 0 0 0 -z 8 16 16 load-zarr --store image.zarr --expand-margin-size 8 16 16 "
        f"{SAVE} two.zarr"
    )
    assert voxels("two.zarr").shape == (16, 32, 32)
