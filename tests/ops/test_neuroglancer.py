"""neuroglancer: a real server, asked over HTTP."""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.ops.neuroglancer import Neuroglancer

pytest.importorskip("neuroglancer")

LINE = "create-chunk -s 8 9 10 -t 3 4 5 -e 40 8 4 -o raw neuroglancer -i raw copy-var -f raw -t end"


@pytest.fixture
def viewer(tmp_path):
    """Start a line that shows a chunk; give the process and the address of its page."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", *LINE.split()], stderr=subprocess.PIPE, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    guard = threading.Timer(60, process.kill)
    guard.start()
    for row in process.stderr:
        if match := re.search(r"http://\S+", row):
            yield process, match[0]
            break
    else:
        pytest.fail("the line ended without an address")
    process.kill()
    process.wait()
    process.stderr.close()
    guard.cancel()


def get(url):
    """Return the body of an HTTP answer."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def state_of(url):
    """Return the viewer's state, as its page is sent it."""
    page = url.replace("/v/", "/events/").rstrip("/")
    with urllib.request.urlopen(f"{page}?c=test&gc=&gs=", timeout=20) as events:
        for row in events:
            if row.startswith(b"data: "):
                event = json.loads(row[6:])
                if event["k"] == "s":
                    return event["s"]
    pytest.fail("the server sent no state")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_chunk_is_served_until_interrupted(viewer, number):
    """Page, state and voxels are served on loopback; an interrupt ends the view, not the line."""
    process, url = viewer
    assert url.startswith("http://127.0.0.1:")
    assert b"<html" in get(url).lower()
    state = state_of(url)
    assert state["dimensions"] == {
        "x": [4e-9, "m"], "y": [8e-9, "m"], "z": [40e-9, "m"],
    }  # fmt: skip
    assert state["position"] == [10, 8.5, 7]
    (layer,) = state["layers"]
    assert (layer["name"], layer["type"]) == ("raw", "image")
    key = re.search(r"python://volume/([\w.]+)", json.dumps(layer))[1]
    root = url.partition("/v/")[0]
    info = json.loads(get(f"{root}/neuroglancer/info/{key}"))
    assert list(map(int, info["voxelOffset"])) == [3, 4, 5]
    assert list(map(int, info["shape"])) == [8, 9, 10]
    assert info["dataType"] == "uint8"
    data = get(f"{root}/neuroglancer/npz/{key}/1,1,1/1,2,3/4,5,6")
    served = np.load(io.BytesIO(zlib.decompress(data)))
    from chunkflow_py.ops.create_chunk import create_chunk

    expected = create_chunk((8, 9, 10), voxel_offset=(3, 4, 5)).array[1:4, 2:5, 3:6]
    assert np.array_equal(served.reshape(expected.shape), expected)
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(20) == 0
    assert "copy-var" in rest


@pytest.mark.parametrize(
    ("array", "kind", "layer", "names"),
    [
        (np.zeros((2, 3, 4), np.uint8), None, "image", ["z", "y", "x"]),
        (np.zeros((3, 2, 3, 4), np.float32), "affinity", "image", ["c^", "z", "y", "x"]),
        (np.zeros((2, 2, 3, 4), np.float16), "probability", "image", ["c^", "z", "y", "x"]),
        (np.zeros((1, 2, 3, 4), np.float64), "probability", "image", ["z", "y", "x"]),
        (np.zeros((2, 3, 4), np.int64), None, "segmentation", ["z", "y", "x"]),
        (np.zeros((2, 3, 4), bool), "segmentation", "segmentation", ["z", "y", "x"]),
    ],
)
def test_layers_by_kind(array, kind, layer, names):
    """Each kind becomes its layer, at the chunk's place and voxel size."""
    from chunkflow_py.ops.viewing.layers import layer_of

    result = layer_of(Chunk(array, (5, 6, 7), (40, 8, 4), kind))
    assert result.type == layer
    volume = result.source[0].url
    assert volume.volume_type == layer
    assert list(volume.dimensions.names) == names
    assert volume.voxel_offset[-3:].tolist() == [5, 6, 7]
    np.testing.assert_allclose(volume.dimensions.scales[-3:], [40e-9, 8e-9, 4e-9])
    if array.ndim == 4 and len(array) > 1:
        assert "emitRGB" in result.shader


def test_a_given_voxel_size_wins():
    """--voxel-size replaces the chunk's own."""
    from chunkflow_py.ops.viewing.layers import layer_of

    volume = layer_of(Chunk(np.zeros((1, 1, 1), np.uint8)), (30, 2, 1)).source[0].url
    np.testing.assert_allclose(volume.dimensions.scales, [30e-9, 2e-9, 1e-9])


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("probability", 0, 1), ("logit", -3, 4), ("embedding", -3, 4)]
)
def test_grey_spans_what_the_values_may_be(kind, low, high):
    """A probability is shown from 0 to 1, what has no bounds from its least to its largest."""
    from chunkflow_py.ops.viewing.layers import GREY, layer_of

    values = np.array([[[-3.0, 4.0]]], np.float32)
    assert layer_of(Chunk(values, kind=kind)).shader == GREY.format(
        low=float(low), high=float(high)
    )


def test_what_cannot_be_shown_is_refused():
    """Labels below zero, or of several channels, are an error."""
    from chunkflow_py.ops.viewing.layers import layer_of

    for array in (np.full((1, 1, 1), -1), np.zeros((2, 1, 1, 1), np.uint32)):
        with pytest.raises(ChunkError, match="integers that are not negative"):
            layer_of(Chunk(array, kind="segmentation"))


def test_a_port_in_use_is_told_before_the_first_task():
    """A port that another program has is one sentence."""
    from chunkflow_py.ops.viewing.server import ViewerServer

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(VolumeError, match=f"cannot listen on 127.0.0.1:{port}"):
            ViewerServer(port=port)


def test_a_dry_run_shows_nothing():
    """With --dry-run nothing is served and nothing waits."""
    result = CliRunner().invoke(cli, ["--dry-run", *LINE.split()])
    assert result.exit_code == 0
    assert "http" not in result.output


def test_from_python_a_view_ends_when_it_is_closed():
    """Without a command line the view runs in any thread until close() is called."""
    chunk = Chunk(np.zeros((2, 3, 4), np.uint16), kind="image")
    task = Task(items={"a": chunk})
    results = []
    with Neuroglancer(("a",)) as body:
        thread = threading.Thread(target=lambda: results.append(body(task)))
        thread.start()
        while thread.is_alive():
            body.close()
            thread.join(0.01)
    assert results == [task]


def test_interrupts_while_nothing_is_shown_interrupt_the_line():
    """Ctrl-C while a chunk is being loaded ends the program as ever."""
    before = signal.getsignal(signal.SIGINT)
    with Neuroglancer(("a",)), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_one_view_and_a_termination_all():
    """After SIGTERM the tasks that follow are not shown; after SIGINT they are."""
    task = Task(items={"a": Chunk(np.zeros((1, 1, 1), np.uint8))})
    for number, ended in ((signal.SIGINT, False), (signal.SIGTERM, True)):
        with Neuroglancer(("a",)) as body:
            timer = threading.Timer(0.2, signal.raise_signal, (number,))
            timer.start()
            body(task)
            timer.join()
            if ended:
                assert body(task) is task
            else:
                timer = threading.Timer(0.2, body.close)
                timer.start()
                start = time.monotonic()
                body(task)
                assert time.monotonic() - start > 0.1
                timer.join()
