"""Tests of volume.precomputed.graphene, against a server that knows the info of a graph."""

import json
import pickle
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import GeometryError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.testing.volume_contract import BLOCK, BOUNDS, noise
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

ANONYMOUS = VolumeOptions(access=Access(anonymous=True))
GRAPH = {
    "app": {"supported_api_versions": [0, 1]},
    "graph": {
        "chunk_size": [16, 16, 8],
        "n_layers": 3,
        "cv_mip": 0,
        "spatial_bit_masks": {"1": 8, "2": 8, "3": 8},
    },
}


@pytest.fixture
def url(tmp_path):
    """Serve the info of a graph over a precomputed segmentation in a folder."""
    spec = VolumeSpec(
        BOUNDS, (40.0, 4.5, 4.0), np.dtype("u8"), None, "segmentation", BLOCK, max_mip=1
    )  # fmt: skip
    create_volume(spec, f"precomputed://{tmp_path}/seg").write(noise(dtype="uint64"))
    info = json.loads((tmp_path / "seg" / "info").read_text())
    body = json.dumps({**info, **GRAPH, "data_dir": f"file://{tmp_path}/seg"}).encode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            known = self.path == "/segmentation/table/fly/info"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body if known else b"{}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"graphene://http://127.0.0.1:{server.server_port}/segmentation/table/fly"
        server.shutdown()


def test_read(url):
    """The supervoxels of a graph are read, with their bounds and voxel size."""
    volume = open_volume(url, opening=ANONYMOUS)
    assert volume.bounds == BOUNDS
    assert volume.voxel_size_nm == (40.0, 4.5, 4.0)
    assert volume.block_size == BLOCK
    assert volume.kind == "segmentation"
    assert volume.mips == (0, 1)
    box = BoundingBox(BOUNDS.start + 2, BOUNDS.stop - 3)
    np.testing.assert_array_equal(volume.read(box), noise(dtype="uint64").cut(box))
    assert volume.read(box).kind == "segmentation"
    assert volume.read(BoundingBox(box.start, box.start)).shape == (0, 0, 0)
    with pytest.raises(GeometryError, match="outside of"):
        volume.read(box.translate((9, 9, 9)))


def test_has_blocks(url):
    """Blocks of the segmentation are there at level 0; none are at level 1."""
    assert open_volume(url, opening=ANONYMOUS).has_blocks(BOUNDS)
    coarse = open_volume(url, 1, opening=ANONYMOUS)
    assert not coarse.has_blocks(coarse.bounds)


def test_other_process(url):
    """It can be sent to another process, where it is opened again."""
    again = pickle.loads(pickle.dumps(open_volume(url, opening=ANONYMOUS)))
    np.testing.assert_array_equal(again.read(BOUNDS), noise(dtype="uint64"))


def test_only_read(url):
    """Writing is refused, when it is opened and later."""
    with pytest.raises(VolumeError, match="is a graphene volume, which is read only"):
        open_volume(url, mode="r+", opening=ANONYMOUS)
    with pytest.raises(VolumeError, match="is a graphene volume, which is read only"):
        open_volume(url, opening=ANONYMOUS).write(noise(dtype="uint64"))


def test_missing(url):
    """A level, a table or a server that is not there is one sentence."""
    with pytest.raises(VolumeNotFoundError, match=r"has no mip 2; it has mip 0, 1"):
        open_volume(url, 2, opening=ANONYMOUS)
    with pytest.raises(VolumeError, match=r"cannot open graphene.*404"):
        open_volume(url.replace("fly", "bee"), opening=ANONYMOUS)
    with pytest.raises(VolumeError, match=r"cannot open graphene.*(?i:refused)"):
        open_volume("graphene://http://127.0.0.1:1/segmentation/table/fly", opening=ANONYMOUS)
