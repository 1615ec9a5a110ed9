"""Tests of chunkflow_py.volume.new_volume: what a saver finds before the first task."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Voxels
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkflowError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.saver import VolumeSaver

BOUNDS = BoundingBox(Zyx(0, 0, 0), Zyx(16, 64, 64))
SPEC = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
BYTES = Voxels("uint8", 1, "image")


@pytest.mark.parametrize(
    ("url", "settings", "voxels", "text"),
    [
        ("{}", {}, BYTES, "names no format"),
        ("n5://{}", {}, BYTES, "read only"),
        ("precomputed://{}", {"encoding": "zstd"}, None, "no encoding 'zstd'"),
        ("zarr://{}", {"encoding": "jpeg"}, None, "no encoding 'jpeg'"),
        ("h5://{}.h5", {"encoding": "jpeg"}, None, "no encoding 'jpeg'"),
        ("precomputed://{}", {}, Voxels("float64", 1, None), "cannot store float64"),
        ("precomputed://{}", {"dtype": np.dtype("f8")}, None, "cannot store float64"),
        ("precomputed://{}", {"encoding": "jpeg"}, Voxels("uint16", 1, None), "store uint16"),
        ("precomputed://{}", {"encoding": "jpeg"}, Voxels("uint8", 2, None), "store 2 channels"),
        ("precomputed://{}", {"times": 3}, BYTES, "3 time points: .* have no time axis"),
        ("h5://{}.h5", {"mip": 1}, BYTES, "has mip 0 only"),
        (
            "zarr2://{}",
            {"block_size": Zyx(8, 8, 8), "shard_size": Zyx(16, 16, 16)},
            BYTES,
            "has no shards",
        ),
        ("zarr://{}", {"mip": 1, "block_size": Zyx(8, 8, 8), "shard_size": Zyx(8, 8, 4)}, None,
         "not a multiple"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("domain", [BOUNDS, None])
def test_what_cannot_be_made(url, settings, voxels, text, domain, tmp_path):
    """What the format cannot hold is refused before the first task, and nothing is made."""
    saver = VolumeSaver(url.format(tmp_path / "out"), **settings)
    with pytest.raises(VolumeError, match=text):
        saver.prepare(None, domain, voxels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["jpeg", "fpzip", "compressed_segmentation"])
def test_what_may_be_made(encoding, tmp_path):
    """As long as the line does not know its voxels, an encoding may be the right one."""
    saver = VolumeSaver(f"precomputed://{tmp_path}/out", encoding=encoding)
    saver.prepare(None, BOUNDS)
    assert saver.volume is None
    assert list(tmp_path.iterdir()) == []


def test_time_points_without_a_time(tmp_path):
    """Several time points, of which nothing says which is written, are refused at once."""
    create_volume(replace(SPEC, times=3), f"zarr://{tmp_path}/there")
    for name in ("new", "there"):
        saver = VolumeSaver(f"zarr://{tmp_path}/{name}", times=3)
        with pytest.raises(OptionError, match="has 3 time points, .* give --time, from 0 to 2"):
            saver.prepare(None, BOUNDS, has_tasks=False)
        saver.prepare(None, BOUNDS)  # a task may name it
        VolumeSaver(saver.url, times=3, time=1).prepare(None, BOUNDS, has_tasks=False)


@pytest.fixture(params=["precomputed", "zarr", "zarr2", "h5"])
def em(request, tmp_path):
    """Return the address of a volume of two levels, or one, in each format."""
    url = f"{request.param}://{tmp_path}/em{'.h5' if request.param == 'h5' else ''}"
    more = {"encoding": "raw", "max_mip": 0 if request.param == "h5" else 1}
    create_volume(replace(SPEC, **more), url)
    return url


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"block_size": Zyx(8, 16, 16)}, r"is \(8, 16, 16\), but .* block size \(8, 32, 32\)"),
        ({"shard_size": Zyx(16, 64, 64)}, r"--shard-size is .* has shard size \(8, 32, 32\)"),
        ({"encoding": "gzip"}, "--encoding is gzip, but .* has encoding raw"),
        ({"times": 2}, "--times is 2, but .* has no time axis"),
    ],
)
def test_what_is_there_is_another(em, asked, text):
    """Options of a new volume that contradict the one that is there are refused, not ignored."""
    with pytest.raises(VolumeError, match=text):
        VolumeSaver(em, **asked).prepare(None, BOUNDS, BYTES)


def test_what_is_there_is_the_same(em):
    """Options that agree with the volume are in order; blocks are cut off at its bounds."""
    for size in (None, Zyx(8, 32, 32)):
        saver = VolumeSaver(em, block_size=size, encoding="raw")
        saver.prepare(None, BOUNDS, BYTES)
        assert saver.volume is not None
        assert saver.volume.bounds == BOUNDS


def test_a_default_is_not_asked_for(tmp_path):
    """The usual encoding of a new volume is none that one which is there must have."""
    for command, place, scheme, encoding in (
        ("save-precomputed", "-v", "precomputed", "npz"),
        ("save-zarr", "-s", "zarr", "gzip"),
    ):
        url = f"{tmp_path}/{scheme}"
        create_volume(replace(SPEC, encoding=encoding), f"{scheme}://{url}")
        words = ["create-chunk", "-s", "16", "64", "64", command, place, url]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output


def test_a_level_of_a_volume_that_is_there(tmp_path):
    """A missing level is named with those that exist, and how levels are made."""
    create_volume(SPEC, f"precomputed://{tmp_path}/em")
    with pytest.raises(VolumeNotFoundError, match="no mip 3; it has mip 0; .*create-volume"):
        VolumeSaver(f"{tmp_path}/em", 3).prepare(None, BOUNDS, BYTES)
    with pytest.raises(ChunkflowError, match="names no format"):
        VolumeSaver(f"{tmp_path}/nothing", 3).prepare(None, BOUNDS, BYTES)
