"""PNG sections: names, positions, gaps, damage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.pipeline.operator import Outline
from chunkflow_py.volume.files.png import PngSaver, open_png, read_png, write_pngs


def section(path, value: int, shape=(4, 5), dtype="uint8") -> None:
    """Write a section of one value."""
    Image.fromarray(np.full(shape, value, dtype)).save(path)


@settings(max_examples=20, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "uint16"]),
    size=st.tuples(*[st.integers(1, 6)] * 3),
    start=st.integers(-20, 200_000),
    seed=st.integers(0, 1000),
)
def test_what_is_written_is_read_back(tmp_path_factory, dtype, size, start, seed):
    """Voxels, dtype and z come back as they were; y and x begin at 0."""
    folder = tmp_path_factory.mktemp("png")
    array = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)
    write_pngs(folder, Chunk(array, (start, 0, 0)), dtype)
    back = open_png(folder).read()
    np.testing.assert_array_equal(back.array, array)
    assert (back.dtype, back.voxel_offset) == (array.dtype, (start, 0, 0))


def test_maps_are_shown_by_the_fixed_rule(tmp_path):
    """A probability of 0.5 is 128 of 255, and 32768 of 65535, whatever else the section holds."""
    chunk = Chunk(np.array([[[0.5, 0.0]]], np.float32), kind="probability")
    write_pngs(tmp_path, chunk)
    np.testing.assert_array_equal(read_png(tmp_path / "00000.png"), [[128, 0]])
    write_pngs(tmp_path, chunk, "uint16")
    np.testing.assert_array_equal(read_png(tmp_path / "00000.png"), [[32768, 0]])


def test_channels_are_one_grey_image_or_an_error(tmp_path):
    """One channel is itself, an affinity map the mean of x and y, anything else is refused."""
    array = np.array([0.0, 1.0, 0.25], np.float32).reshape(3, 1, 1, 1)
    write_pngs(tmp_path, Chunk(array, kind="affinity"))
    assert read_png(tmp_path / "00000.png").item() == 128
    write_pngs(tmp_path, Chunk(array[2:], kind="probability"))
    assert read_png(tmp_path / "00000.png").item() == 64
    with pytest.raises(ChunkError, match="has 3 channels"):
        write_pngs(tmp_path, Chunk(array, kind="probability"))


def test_numbers_are_positions(tmp_path, caplog):
    """A number in a name is its z; a gap is read as zeros, with a warning."""
    for number in (12, 10, 13):
        section(tmp_path / f"raw_{number:05d}.png", number)
    section(tmp_path / "other.png", 99)
    found = open_png(tmp_path / "raw_")
    assert found.bounds == BoundingBox((10, 0, 0), (14, 4, 5))
    assert found.read().array[:, 0, 0].tolist() == [10, 0, 12, 13]
    assert "1 of 4 sections" in caplog.text
    assert open_png(tmp_path / "raw_", Zyx(0, 3, 4)).bounds == BoundingBox((0, 3, 4), (4, 7, 9))
    assert found.read(BoundingBox((12, 1, 1), (13, 3, 5))).array.tolist() == [[[12] * 4] * 2]


def test_digits_decide_between_equal_numbers(tmp_path):
    """Of 7.png and 00007.png the one with --digit-num digits counts."""
    section(tmp_path / "7.png", 1)
    section(tmp_path / "00007.png", 2)
    assert open_png(tmp_path).read().array.max() == 2
    assert open_png(tmp_path, digit_num=1).read().array.max() == 1


def test_other_names_are_taken_in_order(tmp_path):
    """Sections whose names are no numbers lie from 0 on, s2 before s10."""
    for number in (10, 2):
        section(tmp_path / f"s{number}.png", number)
    found = open_png(tmp_path)
    assert found.bounds.start == (0, 0, 0)
    assert found.read().array[:, 0, 0].tolist() == [2, 10]
    assert open_png(tmp_path / "s10.png").read().array.tolist() == [[[10] * 5] * 4]


def test_colours_are_channels(tmp_path):
    """An RGB or palette section has three channels, and a mask is 0 and 1."""
    colour = np.arange(60, dtype="uint8").reshape(4, 5, 3)
    Image.fromarray(colour).save(tmp_path / "0.png")
    chunk = open_png(tmp_path).read(channels=(2,))
    np.testing.assert_array_equal(chunk.array[0, 0], colour[..., 2])
    Image.fromarray(colour).convert("P").save(tmp_path / "0.png")
    assert open_png(tmp_path).shape == (3, 1, 4, 5)
    Image.fromarray(np.ones((4, 5), bool)).save(tmp_path / "0.png")
    assert open_png(tmp_path).read().array.max() == 1


def test_wrong_sections_are_told_apart(tmp_path):
    """A missing prefix, another format, damage and other sizes have their own sentences."""
    with pytest.raises(VolumeNotFoundError, match="is neither a PNG file, nor a folder"):
        open_png(tmp_path)
    with pytest.raises(VolumeNotFoundError, match="no such file"):
        open_png(tmp_path / "missing" / "raw_")
    (tmp_path / "0.png").write_text("not this")
    with pytest.raises(VolumeError, match=r"0\.png, which is not a PNG image"):
        open_png(tmp_path)
    section(tmp_path / "0.png", 1, (60, 70))
    content = (tmp_path / "0.png").read_bytes()
    (tmp_path / "0.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(VolumeError, match=r"0\.png, which is damaged"):
        open_png(tmp_path)
    section(tmp_path / "0.png", 1)
    section(tmp_path / "1.png", 1, (5, 4))
    with pytest.raises(ChunkError, match=r"1\.png is uint8 of shape \(5, 4\)"):
        open_png(tmp_path).read()


def test_empty_chunks_are_refused(tmp_path):
    """A chunk without voxels is told instead of being an empty image."""
    with pytest.raises(ChunkError, match="has no voxels"):
        write_pngs(tmp_path, Chunk(np.zeros((2, 0, 3), "uint8")))


def test_tasks_in_any_order_may_not_share_a_section(tmp_path):
    """Boxes in a list are compared along z: apart is fine, overlapping is refused."""
    boxes = [BoundingBox((4, 0, 0), (8, 4, 4)), BoundingBox((0, 0, 0), (4, 4, 4))]
    PngSaver(tmp_path / "out").prepare(Outline(boxes))
    with pytest.raises(OptionError, match="two of the 3 tasks share a section"):
        PngSaver(tmp_path / "out").prepare(Outline([*boxes, boxes[0].translate((1, 0, 4))]))
