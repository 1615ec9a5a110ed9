"""Tests of chunkflow_py.volume.precomputed.precomputed_info."""

import json

import cloudvolume
import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.testing.volume_contract import BLOCK, BOUNDS
from chunkflow_py.volume.precomputed.precomputed_info import create_info, parse_info
from chunkflow_py.volume.protocol import VolumeSpec


def spec(dtype="uint8", bounds=BOUNDS, **more):
    """Return the description of a volume."""
    return VolumeSpec(bounds, (40.0, 4.5, 4.0), np.dtype(dtype), None, None, BLOCK, **more)


def parsed(info, mip=0):
    """Return a level of an info file with this content."""
    return parse_info(json.dumps(info).encode(), mip, "em")


@pytest.mark.parametrize("factor", [Zyx(1, 2, 2), Zyx(2, 2, 2)])
def test_info_is_that_of_cloud_volume(factor):
    """All levels have the bounds, resolutions and blocks that CloudVolume gives them."""
    bounds = BoundingBox(Zyx(-8, 16, 96), Zyx(12, 49, 129))  # where both ways to round agree
    ours = create_info(spec("uint64", bounds, factor=factor, max_mip=3), layer_type="segmentation")
    theirs = cloudvolume.CloudVolume.create_new_info(
        1, "segmentation", "uint64", "raw", (4, 4.5, 40), bounds.start[::-1],
        volume_size=bounds.size[::-1], chunk_size=BLOCK[::-1], max_mip=3, factor=factor[::-1],
    )  # fmt: skip
    for key in ("type", "data_type", "num_channels"):
        assert ours[key] == theirs[key]
    assert len(ours["scales"]) == 4
    for mine, other in zip(ours["scales"], theirs["scales"], strict=True):
        for key in ("encoding", "chunk_sizes", "resolution", "voxel_offset", "size"):
            assert mine[key] == other[key], key


def test_levels_cover_the_finest():
    """Where the bounds are no multiples, a coarser level begins before them and ends after."""
    info = create_info(spec(max_mip=2))
    assert [parsed(info, mip).bounds for mip in range(3)] == [
        BOUNDS,
        BoundingBox(Zyx(-2, 3, 50), Zyx(9, 20, 67)),
        BoundingBox(Zyx(-1, 1, 25), Zyx(5, 10, 34)),
    ]


def test_a_volume_without_a_voxel_is_not_made():
    """Readers would take its info file for damaged."""
    with pytest.raises(VolumeError, match="cannot create em: its bounds .* are empty"):
        create_info(spec(bounds=BoundingBox.from_size((1, 2, 3), (0, 4, 4))), url="em")


def test_what_is_tolerated():
    """What other programs leave out, or write otherwise, is understood."""
    info = create_info(spec())
    del info["@type"]
    scale = info["scales"][0]
    del scale["key"]
    scale["chunk_sizes"].append([64, 64, 1])
    scale["hidden"] = True
    scale["resolution"] = [4.0, 4.5, 40.5]
    scale["voxel_offset"] = [100.0, 7.0, -3.0]
    level = parsed(info)
    assert level.key == "4.0_4.5_40.5"
    assert level.block_size == BLOCK
    assert level.bounds == BOUNDS
    assert level.voxel_size_nm == (40.5, 4.5, 4.0)
    del scale["voxel_offset"]
    assert parsed(info).bounds.start == Zyx(0, 0, 0)


def test_no_such_level():
    """A level that does not exist is refused with those that do."""
    info = create_info(spec(max_mip=1))
    for mip in (2, -1):
        with pytest.raises(VolumeNotFoundError, match=rf"em has no mip {mip}; it has mip 0, 1"):
            parsed(info, mip)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"scales": []}', b"1"])
def test_damaged(content):
    """An info file that is not one is a sentence that names the volume."""
    with pytest.raises(VolumeError, match=r"the info file of em is damaged or incomplete \(.+\); "):
        parse_info(content, 0, "em")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", [1, 2]),
        ("size", [0, 5, 5]),
        ("size", ["a", 1, 1]),
        ("size", [10.5, 1, 1]),
        ("voxel_offset", [1, 2, float("nan")]),
        ("chunk_sizes", []),
        ("chunk_sizes", [[0, 4, 4]]),
        ("resolution", [4, 4, "x"]),
        ("resolution", [4, 4, -1]),
        ("encoding", "nonsense"),
        ("encoding", 5),
        ("sharding", 5),
        ("data_type", "object"),
        ("data_type", None),
        ("num_channels", 0),
        ("num_channels", "1"),
        ("@type", "neuroglancer_annotations_v1"),
        ("chunkflow_py", 3),
    ],
)
def test_senseless(field, value):
    """A value that makes no sense is told of, whichever it is."""
    info = create_info(spec())
    (info["scales"][0] if field in info["scales"][0] or field == "sharding" else info)[field] = (
        value
    )
    with pytest.raises(VolumeError, match="the info file of em is damaged or incomplete"):
        parsed(info)


def test_png_of_16_bits_is_read_but_not_made():
    """CloudVolume cannot read it, so no new volume has it; one of TensorStore is opened."""
    with pytest.raises(VolumeError, match="CloudVolume cannot .*; choose encoding raw"):
        create_info(spec("uint16", encoding="png"), layer_type="image")
    info = create_info(spec("uint16"), layer_type="image")
    info["scales"][0]["encoding"] = "png"
    assert parsed(info) is not None
