"""preview: the pixels of contact sheets, and where they are written."""

import io
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.preview import preview
from chunkflow_py.ops.viewing.colours import (
    colours_of_labels,
    grey,
    range_and_rule,
    ranges_and_rule,
    shown_as,
)
from chunkflow_py.ops.viewing.sheet import GAP, LINE, contact_sheet, format_length, round_length
from chunkflow_py.store import open_store


def sheet(**chunks):
    """Return the pixels of the sheet of some chunks, 80 pixels wide each."""
    data = preview(chunks, 80)
    assert data == contact_sheet(chunks, 80), "the same chunks give the same bytes"
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def test_planes_lie_side_by_side_in_true_proportions():
    """XY, XZ and ZY go through the middle; a voxel of 40 x 8 x 4 nm is 10 x 2 x 1 pixels."""
    array = np.zeros((4, 40, 80), np.uint8)
    array[2] = 50  # the middle section, row and column in the order in which they lie over others
    array[:, 20] = 100
    array[:, :, 40] = 200
    image = sheet(raw=Chunk(array, (5, 6, 7), (40, 8, 4), "image"))
    top = GAP + LINE
    xy = image[top : top + 80, GAP : GAP + 80, 0]
    assert (xy[:40, 40] == 200).all()
    assert (xy[40:42, :40] == 100).all()
    assert (xy[:40, :40] == 50).all()
    xz = image[top : top + 40, GAP * 2 + 80 : GAP * 2 + 160, 0]
    assert (xz[:, 40] == 200).all()
    assert (xz[:20, :40] == 100).all()
    zy_left = GAP * 3 + 160
    zy = image[top : top + 80, zy_left : zy_left + 40, 0]
    assert (zy == 200).all()
    assert (image[top : top + 80, zy_left + 40 :] == image[0, 0]).all(), "nothing is beyond"


def common_colours(**chunks):
    """Return the colours of large areas, without the ground's."""
    pixels = sheet(**chunks)
    colours, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    common = {tuple(c.tolist()) for c, n in zip(colours, counts) if n > 1500}
    return common - {tuple(pixels[0, 0].tolist())}


def test_kinds_have_their_colours():
    """Maps are grey, affinities x, y, z red, green, blue, labels coloured alike everywhere."""
    affinity = np.zeros((3, 2, 8, 8), np.float32)
    affinity[0], affinity[2, :, 4:] = 1, 0.5
    labels = np.zeros((2, 8, 8), np.uint64)
    labels[:, :4], labels[:, 4:, :4] = 7, 2**63
    found = common_colours(
        probability=Chunk(np.full((2, 8, 8), 0.2, np.float32), kind="probability"),
        affinity=Chunk(affinity, kind="affinity"),
        labels=Chunk(labels),
    )
    known = {(51, 51, 51), (255, 0, 0), (255, 0, 128), (0, 0, 0)}
    assert known < found
    assert len(found - known) == 2
    assert min(max(colour) for colour in found - known) > 150, "labels are bright"
    seven = common_colours(other=Chunk(np.full((1, 1, 1), 7, np.uint8), kind="segmentation"))
    assert len(seven) == 1
    assert seven < found - known


@pytest.mark.parametrize(
    ("length", "rounded", "words"),
    [(1, 1, "1 nm"), (399, 200, "200 nm"), (5000, 5000, "5 um"), (2.4e6, 2e6, "2 mm"),
     (0.3, 0.2, "0.2 nm")],
)  # fmt: skip
def test_scale_bars_are_round(length, rounded, words):
    """A bar is 1, 2 or 5 times a power of ten, told in the unit that makes it short."""
    assert round_length(length) == pytest.approx(rounded)
    assert format_length(rounded) == words


def light_sheet(dtype):
    """Return an image of which the useful range is small: a few hot pixels are far above it."""
    array = np.arange(100, 500).repeat(100).reshape(4, 100, 100).astype(dtype)
    array[0, 0, :50] = 60_000
    return array


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_hot_pixels_leave_contrast_for_the_rest(dtype):
    """Black and white are percentiles 1 and 99.5 unless the type has a range; the title says so."""
    array = light_sheet(dtype)
    (black, white), rule = range_and_rule(array, "image")
    assert (black, white, rule) == (104, 498, "percentiles 1 and 99.5")
    assert np.ptp(grey(array[2], (black, white))) > 60
    (black, white), rule = range_and_rule(array, "image", (0, 100))
    assert (black, white, rule) == (100, 60_000, "percentiles 0 and 100")


def test_percentiles_that_coincide_give_way_to_the_range():
    """A nearly empty image is not shown black: its least and largest voxel are its limits."""
    array = np.zeros((4, 40, 40), np.uint16)
    array[1, 2, 3] = 700
    assert range_and_rule(array, "image") == ((0, 700), "least and largest")


def test_contrast_may_be_chosen(tmp_path, monkeypatch):
    """--contrast takes percentiles, of bytes too; their order is checked."""
    monkeypatch.chdir(tmp_path)
    raw = Chunk(light_sheet("uint16") // 300 * 10, kind="image").astype("uint8")
    np.save("raw.npy", raw.array)

    def run(*words):
        line = ["--quiet", "load-npy", "-f", "raw.npy", "preview", *words]
        return CliRunner().invoke(cli, line)

    assert run("-o", "plain.png").exit_code == 0
    assert run("-o", "chosen.png", "--contrast", "0", "50").exit_code == 0
    assert Path("plain.png").read_bytes() == preview({"chunk": Chunk(raw.array)})
    assert Path("chosen.png").read_bytes() == preview({"chunk": Chunk(raw.array)}, contrast=(0, 50))
    assert Path("plain.png").read_bytes() != Path("chosen.png").read_bytes()
    result = run("--contrast", "99", "1")
    assert result.exit_code == 2
    assert "such as --contrast 1 99.5" in result.stderr


def test_each_channel_has_its_own_contrast():
    """A dim channel is as bright as the others; the colours and their ranges are in the title."""
    array = np.stack([light_sheet("uint16") // 10, light_sheet("uint16")])
    image = sheet(cells=Chunk(array, kind="image"))[..., :2]
    red, green = (np.percentile(image[..., channel], 99) for channel in (0, 1))
    assert red > 200
    assert abs(red - green) < 10
    ranges, rule = ranges_and_rule(array, "image")
    assert shown_as(ranges) == "red 10 to 49, lime 104 to 498"
    assert rule == "percentiles 1 and 99.5"
    assert shown_as([(0, 255)] * 3) == "black 0, full colour 255"


def test_labels_over_an_image(tmp_path, monkeypatch):
    """--overlay colours what labels cover, in every plane, and leaves the rest as it is."""
    monkeypatch.chdir(tmp_path)
    image, labels = np.full((4, 40, 40), 100, np.uint8), np.zeros((4, 40, 40), np.uint32)
    labels[:, :20] = 7
    plain, over = (
        np.asarray(Image.open(io.BytesIO(preview({"raw": Chunk(image)}, 80, overlay=each))))
        for each in (None, Chunk(labels))
    )
    changed = (plain != over).any(axis=-1)
    top, left = GAP + LINE, GAP
    assert changed[top : top + 40, left : left + 80].all()
    assert not changed[top + 40 : top + 80, left : left + 80].any()
    mixed = np.rint(100 * 0.6 + colours_of_labels(np.array(7)) * 0.4)
    assert over[top, left].tolist() == mixed.tolist()
    np.save("raw.npy", image)
    np.save("labels.npy", labels)
    line = "load-npy -f raw.npy load-npy -f labels.npy -o labels preview -w 80 --overlay labels"
    assert CliRunner().invoke(cli, ["--quiet", *line.split()]).exit_code == 0
    assert Path("preview.png").read_bytes() == preview(
        {"chunk": Chunk(image)}, 80, overlay=Chunk(labels)
    )
    line = f"{line.replace('load-npy -f labels', 'crop-margin -m 1 0 0 0 0 0 load-npy -f labels')}"
    done = CliRunner().invoke(cli, ["--quiet", *line.split()])
    assert (done.exit_code, "cannot be drawn over chunk 'chunk'" in done.stderr) == (1, True)


def test_the_title_has_the_time():
    """The sheets of time points differ in their titles alone."""
    chunk = {"raw": Chunk(np.zeros((4, 40, 40), np.uint8))}
    first, second = (
        np.asarray(Image.open(io.BytesIO(preview(chunk, 80, time=time)))) for time in (3, 8)
    )
    assert first.shape == second.shape
    rows = np.flatnonzero((first != second).any(axis=(1, 2)))
    assert 0 < len(rows) < LINE


def test_what_cannot_be_shown_is_refused():
    """A chunk without voxels, and labels of several channels, are an error."""
    with pytest.raises(ChunkError, match="cannot be shown, because its box"):
        preview({"a": Chunk(np.zeros((0, 3, 4)))})
    with pytest.raises(ChunkError, match="integers that are not negative"):
        preview({"a": Chunk(np.zeros((2, 3, 3, 4), np.uint8), kind="segmentation")})


def test_a_line_writes_one_sheet_or_one_a_task(tmp_path, monkeypatch):
    """A name with .png is one file, another one a prefix in any store; tasks share no file."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        return CliRunner().invoke(cli, ["--quiet", *line.split()])

    made = "create-chunk -s 4 8 8 create-chunk -s 4 8 8 -d float32 -o map"
    assert run(f"{made} preview -i chunk,map -o a/b.png").exit_code == 0
    with Image.open("a/b.png") as image:
        assert image.format == "PNG"
    tasks = "generate-tasks --roi-start 0 0 0 --roi-stop 8 8 8 -c 4 8 8 create-chunk -s 4 8 8"
    assert run(f"{tasks} preview -o mem://previews/a_").exit_code == 0
    keys = sorted(open_store("mem://previews").list())
    assert keys == ["a_0-4_0-8_0-8.png", "a_4-8_0-8_0-8.png"]
    result = run(f"{tasks} preview -o one.png")
    assert (result.exit_code, Path("one.png").exists()) == (2, False)
    assert "each of the 2 tasks" in result.stderr
    assert run(f"--dry-run {made} preview").exit_code == 0
    assert not Path("preview.png").exists()
    assert run(f"{made} preview -o out_").exit_code == 0
    assert Path("out_0-4_0-8_0-8.png").is_file(), "without a task, the chunk's box is the name"
