"""The parts of a report: what records say together, planes of volumes, plots, and the markup."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.monitor.report.report_markup import Html, bars, duration, over_time, spans, tag
from chunkflow_py.monitor.report.volume_planes import SIDE, planes_of, png_of
from chunkflow_py.monitor.run_volumes import RunVolume, volumes_of
from chunkflow_py.ops.viewing.colours import colours_of_labels
from chunkflow_py.run.run_spec import RunStep
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

# --- planes ---------------------------------------------------------------------------------------


def decoded(png):
    """Return an image, read by another program than ours."""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    return np.asarray(image.open(io.BytesIO(png)))


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (4, 3, 3)])
def test_png_files_are_read_by_others(shape):
    """What is written as PNG is read by Pillow, voxel by voxel."""
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(decoded(png_of(image)), image)


def volume_of(folder, array, offset, kind, voxel_size_nm=(8.0, 8.0, 8.0), **more):
    """Make a volume that holds an array, and return its place."""
    url = f"zarr://{folder}/volume.zarr"
    box = BoundingBox.from_size(offset, array.shape[-3:])
    channels = len(array) if array.ndim == 4 else None
    block = box.size.low((64, 64, 64))
    spec = VolumeSpec(box, voxel_size_nm, array.dtype, channels, kind, block, **more)
    create_volume(spec, url).write(Chunk(array, offset, voxel_size_nm))
    return RunVolume("output", "save-zarr", url, 0)


def test_planes_go_through_the_point(tmp_path):
    """The planes show the voxels of the region in three directions, zy with z to the right."""
    array = np.random.default_rng(0).integers(0, 256, (6, 8, 10), np.uint8)
    place = volume_of(tmp_path, array, (100, 0, -5), "image", (40.0, 8.0, 4.0))
    region = BoundingBox.parse("101-106_0-8_-5-4")
    found = planes_of(place, region, Zyx(103, 2, 1))
    inside = array[1:, :, :9]
    xy, xz, zy = found.planes
    np.testing.assert_array_equal(decoded(xy.png), inside[2])
    np.testing.assert_array_equal(decoded(xz.png), inside[:, 2])
    np.testing.assert_array_equal(decoded(zy.png), inside[:, :, 6].T)
    assert [each.where for each in found.planes] == ["z = 103", "y = 2", "x = 1"]
    assert (xy.extent_nm, zy.extent_nm) == ((64, 36), (64, 200))
    assert "101-106_0-8_-5-4" in found.description


def test_labels_have_their_colours(tmp_path):
    """A segmentation is shown in the colours that it has everywhere."""
    labels = np.arange(27, dtype=np.uint64).reshape(3, 3, 3)
    place = volume_of(tmp_path, labels, (0, 0, 0), "segmentation")
    found = planes_of(place, BoundingBox.parse("0-3_0-3_0-3"), Zyx(1, 1, 1))
    np.testing.assert_array_equal(decoded(found.planes[0].png), colours_of_labels(labels[1]))


def test_a_large_volume_is_shown_at_a_coarse_level(tmp_path):
    """The finest level that is small enough is read; without one, a window around the point."""
    wide = 4 * SIDE
    array = np.zeros((2, 2, wide), np.uint8)
    place = volume_of(tmp_path, array, (0, 0, 0), "image", factor=Zyx(1, 1, 2), max_mip=3)
    for mip in (1, 2, 3):
        level = place.open(mip)
        values = np.full(level.bounds.size, 10 * mip, np.uint8)
        open_volume(place.address, mip, "r+").write(Chunk(values, voxel_size_nm=(8, 8, 8)))
    region = BoundingBox.parse(f"0-2_0-2_0-{wide}")
    found = planes_of(place, region, Zyx(1, 1, 800))
    assert "mip 2" in found.description
    assert decoded(found.planes[0].png).shape == (2, SIDE)
    assert (decoded(found.planes[0].png) == 20).all()
    assert found.planes[2].where == "x = 200"
    single = tmp_path / "single"
    place = volume_of(single, array, (0, 0, 0), "image")
    found = planes_of(place, region, Zyx(1, 1, 800))
    assert "because no level is coarse enough" in found.description
    assert decoded(found.planes[0].png).shape == (2, SIDE)
    assert f"0-2_0-2_{800 - SIDE // 2}-{800 + SIDE // 2}" in found.description


def test_tasks_outside_of_a_volume_are_said_to_be(tmp_path):
    """Where tasks and volume have nothing in common there is a sentence with both boxes."""
    place = volume_of(tmp_path, np.zeros((2, 2, 2), np.uint8), (0, 0, 0), "image")
    found = planes_of(place, BoundingBox.parse("5-6_0-1_0-1"), Zyx(5, 0, 0))
    assert found.planes == ()
    assert "5-6_0-1_0-1" in found.problem
    assert "0-2_0-2_0-2" in found.problem


# --- places ---------------------------------------------------------------------------------------


def stage_of(*options):
    """Return a stage with these commands."""
    return RunStep("s", (), (), 0, options, {"kind": "grid"}, "", 1)


def test_places_are_taken_from_the_spec():
    """Volumes come with the format that was written and their level; other places in words."""
    found, others = volumes_of(
        stage_of(
            ("load-volume", {"volume_path": "n5://s3://b/em", "reads": ["s3://b/em at mip 2"]}),
            ("load-h5", {"file_name": "h5:///d/a.h5:raw", "reads": [
                "file:///d/a.h5:raw at mip 0"]}),
            ("mesh", {"writes": ["s3://b/meshes"], "output_path": "s3://b/meshes"}),
            ("downsample", {"factor": [1, 2, 2], "coarse_tasks": False}),
            ("save-precomputed", {"volume_path": "precomputed://s3://b/out", "writes": [
                "s3://b/out at mip 1", "s3://b/out at mip 2", "s3://b/out/log"]}),
        )
    )  # fmt: skip
    assert found == [
        RunVolume("input", "load-volume", "n5://s3://b/em", 2),
        RunVolume("input", "load-h5", "h5:///d/a.h5:raw", 0),
        RunVolume("output", "save-precomputed", "precomputed://s3://b/out", 1, Scale(1, 2, 2)),
    ]
    assert others == ["mesh writes s3://b/meshes", "save-precomputed writes s3://b/out/log"]


# --- markup and plots -----------------------------------------------------------------------------


def test_what_is_not_made_here_is_escaped():
    """Text and values of attributes are escaped, and lose what is secret in addresses."""
    made = tag("p", "<i>&\x00", tag("b", "x"), title='"><script>', class_="c", style=None)
    assert made == ('<p title="&quot;&gt;&lt;script&gt;" class="c">&lt;i&gt;&amp;�<b>x</b></p>')
    assert tag("p", "a\n  b") == "<p>a\n  b</p>"
    secret = tag("p", "see https://me:pass@host/a?sig=1 and\ns3://key:pass@b/c")
    assert secret == "<p>see https://host/a and\ns3://b/c</p>"
    assert tag("p", Html("<i>")) == "<p><i></p>"
    with pytest.raises(ValueError, match="is not the name"):
        tag("p onclick=x")


def test_plots_show_what_they_are_given():
    """Bars are as long as their values, and names are shortened and escaped."""
    found = ET.fromstring(bars([("a<b", 4.0, "4 s"), ("c" * 99, 1.0, "1 s"), ("d", 0, "")], "t"))
    widths = [float(each.get("width")) for each in found.iter("rect")]
    assert widths == [widths[0], pytest.approx(widths[0] / 4, abs=0.1), 0]
    texts = [each.text for each in found.iter("text")]
    assert texts[0] == "a<b"
    assert len(texts[2]) == 30
    columns = ET.fromstring(over_time([(0, 10, 2.0), (10, 20, 0.0), (20, 30, 1.0)], "x", "t"))
    tall = [float(each.get("height")) for each in columns.iter("rect")]
    assert tall == [tall[0], 0, pytest.approx(tall[0] / 2, abs=0.1)]
    rows = [("w", 0.0, 50.0, ""), ("v", 50.0, 100.0, "")]
    lines = ET.fromstring(spans(rows, 100.0, "t"))
    one, two = ((float(e.get("x")), float(e.get("width"))) for e in lines.iter("rect"))
    assert one[0] + one[1] == pytest.approx(two[0], abs=0.1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.012, "0.012 s"), (100, "100 s"), (120, "2.0 min"), (7200, "2.0 h"), (200_000, "2.3 d")],
)
def test_durations_are_in_the_unit_that_suits(seconds, words):
    """Seconds, minutes, hours or days."""
    assert duration(seconds) == words
