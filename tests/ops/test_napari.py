"""napari: the layers that it would be given; without it, how to install it."""

import importlib.util

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.points import Points
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.napari import napari

PLACE = {"scale": (40, 8, 4), "translate": (60, 20, 14), "units": ("nm",) * 3}


def chunk(dtype, kind=None, channels=None):
    """Return a chunk of 2 x 3 x 4 voxels of 40 x 8 x 4 nm at (1, 2, 3)."""
    shape = (2, 3, 4) if channels is None else (channels, 2, 3, 4)
    return Chunk(np.zeros(shape, dtype), (1, 2, 3), (40, 8, 4), kind)


def test_chunks_lie_at_their_place_in_nanometres():
    """The middle of the first voxel is half a voxel behind the offset; kinds become layers."""
    raw = chunk(np.uint8)
    ((data, settings, kind),) = napari({"raw": raw, "nothing": None})
    assert (data is raw.array, kind) == (True, "image")
    limits = {"contrast_limits": (0, 255)}
    assert settings == {"name": "raw", "colormap": "gray", **PLACE, **limits}
    ((_, settings, kind),) = napari({"seg": chunk(np.uint64)})
    assert (settings, kind) == ({"name": "seg", **PLACE}, "labels")
    ((data, _, _),) = napari({"mask": chunk(bool, "segmentation", 1)})
    assert (data.dtype, data.shape) == (np.uint8, (2, 3, 4))
    ((_, settings, _),) = napari({"raw": raw}, (2, 2, 2))
    assert (settings["scale"], settings["translate"]) == ((2, 2, 2), (3, 5, 7))


def test_channels_are_layers_of_colours_that_add_up():
    """Affinities x, y, z are red, green and blue from 0 to 1."""
    layers = napari({"aff": chunk(np.float32, "affinity", 3)})
    assert [(s["name"], s["colormap"]) for _, s, _ in layers] == [
        ("aff x", "red"), ("aff y", "green"), ("aff z", "blue"),
    ]  # fmt: skip
    assert {(s["blending"], s["contrast_limits"]) for _, s, _ in layers} == {("additive", (0, 1))}
    many = napari({"many": chunk(np.uint8, None, 9)})
    assert [s["visible"] for _, s, _ in many] == [True] * 6 + [False] * 3


def test_points_synapses_and_skeletons_lie_in_the_same_space():
    """Positions are the middles of voxels in nm; lines run from pre to post, edges as they are."""
    size = (40.0, 8.0, 4.0)
    ((data, settings, kind),) = napari({"p": Points(np.array([[1, 2, 3]]), size)})
    assert (data.tolist(), kind, settings["name"]) == ([[60, 20, 14]], "points", "p")
    pre, post = np.array([[1, 2, 3], [0, 0, 0]]), np.array([[2, 2, 3]])
    synapses = Synapses(pre, post, np.array([0]))
    lines, dots = napari({"image": chunk(np.uint8), "s": synapses})[1:]
    assert (lines[2], lines[0].tolist()) == ("vectors", [[[60, 20, 14], [40, 0, 0]]])
    assert dots[0].tolist() == [[60, 20, 14], [20, 4, 2]], "in voxels of the chunk, as none is told"
    skeleton = Skeleton.of([(0, 0, 0), (1, 2, 3), (5, 5, 5)], [(0, 1), (1, 2)])
    ((data, settings, kind),) = napari({"skels": {7: skeleton, 9: skeleton}})
    assert kind == "vectors"
    assert data[:2].tolist() == [[[0, 0, 0], [1, 2, 3]], [[1, 2, 3], [4, 3, 2]]]
    assert settings["features"]["id"].tolist() == [7, 7, 9, 9]
    assert len(np.unique(settings["edge_color"], axis=0)) == 2
    with pytest.raises(ChunkError, match="'text' is a str, which cannot be shown"):
        napari({"text": "a"})


@pytest.mark.skipif(importlib.util.find_spec("napari") is not None, reason="napari is installed")
def test_without_napari_the_line_says_how_to_install_it():
    """The extra is named with the pip line, before the first task."""
    result = CliRunner().invoke(cli, ["--quiet", "create-chunk", "napari"])
    assert result.exit_code == 1
    assert "napari needs napari, which is not installed" in result.stderr
    assert "pip install 'chunkflow_py[napari]'" in result.stderr
