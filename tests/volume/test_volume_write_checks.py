"""Tests of chunkflow_py.volume.write_checks: levels of a new volume that make no sense."""

import json

import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec


def spec(start=(0, 0, 0), size=(16, 64, 64), factor=(2, 2, 2), max_mip=0):
    """Return the description of a volume."""
    bounds = BoundingBox.from_size(Zyx(*start), Zyx(*size))
    return VolumeSpec(
        bounds, (10.0, 10.0, 10.0), np.dtype("u1"), None, "image", Zyx(8, 8, 8),
        factor=Zyx(*factor), max_mip=max_mip,
    )  # fmt: skip


@pytest.fixture(params=["precomputed", "zarr"])
def url(request, tmp_path):
    """Return where the volume of this test goes, in each format."""
    return f"{request.param}://{tmp_path}/out"


def test_levels_that_are_the_same(url, tmp_path):
    """A factor of 1 along all axes makes no further level, and nothing is written."""
    with pytest.raises(VolumeError, match="mip 3 at a factor of 1, 1, 1 .* choose a factor"):
        create_volume(spec(factor=(1, 1, 1), max_mip=3), url)
    assert list(tmp_path.rglob("*.json")) == []
    create_volume(spec(factor=(1, 1, 1)), url)


@pytest.mark.parametrize(
    ("start", "factor", "last"),
    [
        ((0, 0, 0), (2, 2, 2), 6),
        ((0, 0, 0), (1, 2, 2), 6),
        ((0, 0, 0), (3, 4, 4), 3),
        ((-8, -32, -32), (2, 2, 2), 5),  # two voxels, one on either side of 0, remain
        ((63, 63, 63), (2, 2, 2), 7),
    ],
)
def test_more_levels_than_voxels(url, start, factor, last):
    """Levels end where none is smaller; the error names the last one, and that one is made."""
    with pytest.raises(VolumeError, match=f"choose at most --max-mip {last}$"):
        create_volume(spec(start, factor=factor, max_mip=last + 1), url)
    create_volume(spec(start, factor=factor, max_mip=last), url)
    coarsest, before = open_volume(url, last), open_volume(url, last - 1)
    assert coarsest.bounds.voxels < before.bounds.voxels


def test_a_level_alone(url):
    """A coarse level may be made for itself, with as few voxels as there are."""
    volume = create_volume(spec(size=(1, 1, 1)), url, 3)
    assert volume.mips[-1] == 3


def test_two_levels_in_one_folder(tmp_path):
    """A volume of which two levels have one key can be read, but not written."""
    url = f"precomputed://{tmp_path}/out"
    create_volume(spec(max_mip=1), url)
    file = tmp_path / "out" / "info"
    info = json.loads(file.read_text())
    info["scales"][1]["key"] = info["scales"][0]["key"]
    file.write_text(json.dumps(info))
    assert open_volume(url, 1).mips == (0, 1)
    with pytest.raises(VolumeError, match=r"mip 1 and mip 0 of .* in the same folder \(10_10_10\)"):
        open_volume(url, 1, "r+")
