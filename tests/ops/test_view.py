"""view: microviewer's server, asked over HTTP."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.ops.create_chunk import create_chunk
from chunkflow_py.ops.view import Viewer

pytest.importorskip("microviewer")


def get(url):
    """Return the body of an HTTP answer."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def test_a_chunk_is_served_until_interrupted(tmp_path):
    """The page and the voxels are served on loopback; Ctrl-C ends the view, not the line."""
    line = "create-chunk -s 8 9 10 -t 3 4 5 -e 40 8 4 -o raw view --image-chunk-name raw "
    line += "copy-var -f raw -t end"
    process = subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", *line.split()], stderr=subprocess.PIPE, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    guard = threading.Timer(60, process.kill)
    guard.start()
    url = next(match[0] for row in process.stderr if (match := re.search(r"http://\S+", row)))
    assert url.startswith("http://127.0.0.1:")
    assert b"<html" in get(url).lower()
    told = json.loads(get(f"{url}parameters"))
    assert (told["bounds"], told["resolution"]) == ([5, 4, 3, 15, 13, 11], [4, 8, 40])
    assert (told["layer_type"], told["data_types"]) == ("image", ["uint8"])
    served = np.frombuffer(get(f"{url}channel"), np.uint8).reshape((10, 9, 8), order="F")
    assert np.array_equal(served.T, create_chunk((8, 9, 10), voxel_offset=(3, 4, 5)).array)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(20) == 0
    assert "copy-var" in rest
    process.stderr.close()
    guard.cancel()


@pytest.mark.parametrize(
    ("array", "kind", "layer", "dtype", "first"),
    [
        (np.full((1, 1, 1), 0.5), "probability", "image", np.uint8, 128),
        (np.full((1, 1, 1), 777, np.uint16), "image", "image", np.uint16, 777),
        (np.array([[[0.0, 9.0]]]), "image", "image", np.uint8, 0),
        (np.full((1, 1, 1), 7, np.int64), None, "segmentation", np.uint64, 7),
        (np.ones((1, 1, 1), bool), "segmentation", "segmentation", np.uint8, 1),
        (
            np.array([1, 0, 0.2]).reshape(3, 1, 1, 1), "affinity", "image", np.uint32,
            0xFF3300FF,
        ),
    ],
)  # fmt: skip
def test_voxels_become_what_the_page_knows(array, kind, layer, dtype, first):
    """Maps are grey from 0 to 1, affinities red, green and blue, labels as they are."""
    from chunkflow_py.ops.viewing.micro import cutout

    found = cutout(Chunk(array, (3, 4, 5), (40.4, 0.3, 8), kind))
    assert (found["layer_type"], found["img"].dtype, found["img"].flat[0]) == (layer, dtype, first)
    assert (found["offset"], found["resolution"]) == ([5, 4, 3], [8, 1, 40])


def test_a_segmentation_lies_over_its_image_and_a_view_can_be_closed():
    """Both are served together; another box, and a port in use, are one sentence."""
    image = Chunk(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    labels = Chunk(np.arange(24, dtype=np.uint32).reshape(2, 3, 4))
    elsewhere = Chunk(labels.array, (0, 0, 1))
    told = []
    with Viewer("image", "labels") as body:
        url = body._server.url
        with pytest.raises(VolumeError, match=r"cannot listen on 127.0.0.1:\d+: .*--port"):
            Viewer(port=int(url.rstrip("/").rpartition(":")[2])).__enter__()
        with pytest.raises(ChunkError, match="cut both to 0-2_0-3_1-4"):
            body(Task(items={"image": image, "labels": elsewhere}))
        task = Task(items={"image": image, "labels": labels})
        thread = threading.Thread(target=lambda: told.append(body(task)))
        thread.start()
        while thread.is_alive():
            if not told and body._server._cutouts:
                assert json.loads(get(f"{url}parameters"))["viewtype"] == "hyper"
                got = np.frombuffer(get(f"{url}segmentation"), np.uint32)
                assert np.array_equal(got.reshape((4, 3, 2), order="F").T, labels.array)
                told.append(None)
            if told:
                body.close()
            thread.join(0.02)
    assert told == [None, task]
