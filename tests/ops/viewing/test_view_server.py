"""What the viewer's server gives to a page, asked over HTTP."""

import gzip
import json
import urllib.error
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.points import Points
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

pytest.importorskip("neuroglancer")


@pytest.fixture
def server():
    """A server on a free port of loopback."""
    from chunkflow_py.ops.viewing.server import ViewerServer

    made = ViewerServer()
    yield made
    made.stop()


def get(url, **headers):
    """Return status and body of an answer."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_meshes_of_any_store_are_served_to_the_page(server, tmp_path):
    """Whole, unpacked and in part; what is not below the folder is not served."""
    store = open_store(f"{tmp_path}/meshes")
    store.put("7:0", b'{"fragments": []}')
    store.put("12:0.gz", gzip.compress(b"a list"))
    store.put("part", b"0123456789")
    open_store(str(tmp_path)).put("secret", b"no")
    server.show({}, mesh_path=f"{tmp_path}/meshes")
    (layer,) = server.viewer.state.layers
    assert sorted(layer.layer.segments) == [7, 12]
    address = layer.layer.source[0].url.removeprefix("precomputed://")
    assert get(f"{address}/12:0") == (200, b"a list")
    assert get(f"{address}/part", Range="bytes=2-4") == (206, b"234")
    assert json.loads(get(f"{address}/info")[1]) == {"@type": "neuroglancer_legacy_mesh"}
    assert get(f"{address}/8:0")[0] == 404
    assert get(f"{address}/..%2Fsecret")[0] >= 400
    assert get(address.rpartition("/")[0] + "/other/part")[0] == 404


def test_items_without_chunks_and_nothing(server):
    """The view begins at the middle of what there is; with nothing to show there is an error."""
    points = Points(np.array([[0, 0, 0], [2, 4, 6]]), (40, 8, 4))
    server.show({"points": points, "nothing": None})
    state = server.viewer.state
    assert [layer.name for layer in state.layers] == ["points"]
    assert state.position.tolist() == [14, 20, 60]
    assert [a.point.tolist() for a in state.layers[0].layer.annotations] == [
        [2, 4, 20],
        [26, 36, 100],
    ]
    with pytest.raises(ChunkError, match="nothing to show"):
        server.show({"nothing": None})
    with pytest.raises(ChunkError, match="'text' is a str, which cannot be shown"):
        server.show({"text": "a", "chunk": Chunk(np.zeros((1, 1, 1)))})


def test_more_points_than_a_page_can_hold_are_cut_with_a_warning(server, caplog):
    """Numbers are told, and the page stays usable."""
    server.show({"many": np.zeros((25_001, 3))})
    assert "many has 25001 points and 0 lines; the page shows the first 25000" in caplog.text
    assert len(server.viewer.state.layers[0].layer.annotations) == 25_000


@pytest.mark.parametrize(
    ("values", "kind", "limits"),
    [
        (np.array([3, 9], np.uint16), "image", (3, 9)),
        (np.array([3, 9], np.uint16), "probability", (0, 65535)),
        (np.array([3, 9], np.uint8), "image", (0, 255)),
        (np.array([True]), "image", (0, 1)),
        (np.array([np.nan, 2, np.inf, 5]), "image", (2, 5)),
        (np.array([np.nan]), "logit", (0, 1)),
        (np.array([-3.0, np.nan, 4]), "logit", (-3, 4)),
        (np.array([4.0, 4.0]), "image", (4, 5)),
        (np.full(2, 2**63, np.uint64), "image", (2**63, 2**63 * (1 + 1e-6))),
        (np.array([0.2]), "affinity", (0, 1)),
        (np.zeros(0), "image", (0, 1)),
    ],
)
def test_black_and_white_follow_kind_and_type(values, kind, limits):
    """Maps and bytes have fixed limits; others are between percentiles of finite voxels."""
    from chunkflow_py.ops.viewing.colours import grey, value_range

    found = value_range(values, kind)
    assert found == limits
    assert found[1] > found[0]
    ends = np.array([limits[0] - 1.0, limits[1] + 1.0, np.nan, np.inf])
    assert not grey(values, limits)[values == limits[0]].any()
    assert grey(ends, limits).tolist() == [0, 255, 0, 255]


def test_layers_of_stored_volumes(server, tmp_path):
    """Each channel is a layer, named after the volume and the channel; six are shown at first."""
    array = np.zeros((8, 4, 6, 6), np.uint16)
    array[:, 1] = np.arange(1, 9)[:, None, None] * 100
    box, block = BoundingBox.from_size((0, 0, 0), (4, 6, 6)), Zyx(4, 6, 6)
    spec = VolumeSpec(box, (4, 4, 4), array.dtype, 8, "image", block)
    names = [f"stain {number}" for number in range(8)]
    url = f"zarr://{tmp_path}/cells.zarr"
    create_volume(spec, url, channel_names=names).write(Chunk(array, (0, 0, 0)))
    labels = f"zarr://{tmp_path}/labels"
    spec = replace(spec, channels=None, dtype=np.dtype("uint32"), kind=None)
    create_volume(spec, labels).write(Chunk(array[0].astype(np.uint32), (0, 0, 0)))
    server.show({}, volumes={"cells": url, "labels": labels}, segments=[100])
    layers = server.viewer.state.layers
    assert [layer.name for layer in layers] == [*(f"cells {name}" for name in names), "labels"]
    assert [layer.visible for layer in layers] == [True] * 6 + [False] * 2 + [True]
    assert "range=[0, 800]" in layers["cells stain 7"].layer.shader
    assert layers["cells stain 7"].layer.local_position == [7]
    assert sorted(layers["labels"].layer.segments) == [100]
    address = layers["labels"].layer.source[0].url.removeprefix("zarr3://")
    stored = (tmp_path / "labels/0/zarr.json").read_bytes()
    assert get(f"{address}/0/zarr.json") == (200, stored)
    assert get(f"{address}/0/zarr.json", Range="bytes=-9") == (206, stored[-9:])


def test_ome_zarr_06_is_served_as_05(server, tmp_path):
    """Neuroglancer does not know 0.6, so the page gets the metadata as those of 0.5."""
    box = BoundingBox.from_size((3, 4, 5), (4, 6, 6))
    spec = VolumeSpec(box, (4, 4, 4), np.dtype("u1"), None, "image", Zyx(4, 6, 6), max_mip=1)
    documents = []
    for version in ("0.5", "0.6"):
        url = f"zarr://{tmp_path}/{version}/em"
        create_volume(spec, url, ome_version=version)
        server.show({}, volumes={"em": url})
        address = server.viewer.state.layers["em"].layer.source[0].url.removeprefix("zarr3://")
        status, found = get(f"{address}/zarr.json")
        assert status == 200
        documents.append(json.loads(found))
    assert documents[0] == documents[1]


def test_formats_that_neuroglancer_cannot_read(server, tmp_path):
    """The error has the command that converts the volume."""
    np.save(tmp_path / "stack.npy", np.zeros((4, 6, 6), np.uint8))
    url = str(tmp_path / "stack.npy")
    with pytest.raises(VolumeError, match=rf"chunkflow convert {url} zarr://NAME.zarr"):
        server.show({}, volumes={"stack": url})
