"""What the neuroglancer command shows, in a real browser: the right pixels at the right place.

Everything lies in a box of 4 x 20 x 20 voxels of 40 x 8 x 8 nm at (100, 200, 300); the middle of
the page is its middle, and one voxel is 10 pixels.
"""

import json
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from rigs.browser import browser, look

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.points import Points
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

__all__ = ["browser"]  # a fixture

START, SIZE_NM = np.array((100, 200, 300)), np.array((40.0, 8.0, 8.0))
MIDDLE = START + (2, 10, 10)
SQUARE = np.s_[:, 4:10, 6:14]  # of the box; y 204 to 210, x 306 to 314
EDGES = (-6, 0, -4, 4)  # of the square, from the middle: rows, columns
PIXELS = 10

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server():
    """The server of the command."""
    pytest.importorskip("neuroglancer", reason="neuroglancer is not installed")
    from chunkflow_py.ops.viewing.server import ViewerServer

    made = ViewerServer()
    yield made
    made.stop()


def show(server, browser, items, layout="xy", **more):
    """Open the page of *items*, without what is not data."""
    import neuroglancer

    url = server.show(items, **more)
    with server.viewer.config_state.txn() as config:
        config.show_ui_controls = config.show_panel_borders = False
    with server.viewer.txn() as state:
        state.dimensions = neuroglancer.CoordinateSpace(
            names=["x", "y", "z"], units="nm", scales=SIZE_NM[::-1]
        )
        state.position = [*MIDDLE[::-1].astype(float)]
        state.position[2] = MIDDLE[0] + 0.5
        state.cross_section_scale = 1 / PIXELS
        state.projection_scale = browser.execute_script("return window.innerHeight") / PIXELS
        state.show_axis_lines = state.show_scale_bar = state.show_default_annotations = False
        state.show_slices = False
        orthographic = {"orthographic_projection": True} if layout == "3d" else {}
        state.layout = neuroglancer.DataPanelLayout(layout, **orthographic)
    browser.get(url)


def box(values=None, background=0, dtype=np.uint8, square=SQUARE, kind=None, channels=None):
    """Return the box with one value in the square."""
    shape = (4, 20, 20) if channels is None else (channels, 4, 20, 20)
    array = np.full(shape, background, dtype)
    for index, value in enumerate(np.atleast_1d(values)):
        (array if channels is None else array[index])[square] = value
    return Chunk(array, START, SIZE_NM, kind)


def edges(image, inside):
    """Return where the pixels are that are *inside*: rows, columns from the middle, in voxels.

    Rounded to halves, and ``None`` where there are none.
    """
    row, column = (length // 2 for length in image.shape[:2])  # beyond are names of axes
    rows, columns = np.nonzero(inside[row - 120 : row + 120, column - 120 : column + 120])
    if not len(rows):
        return None
    ends = (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)
    return tuple(round((int(end) - 120) / (PIXELS / 2)) / 2 for end in ends)


def of_colour(colour):
    """Return what finds the edges of all pixels of one colour (give or take one level)."""
    return lambda image: edges(image, (abs(image.astype(int) - colour) <= 1).all(axis=-1))


def saturated(image):
    """Return the edges of all pixels that are neither black nor white nor grey."""
    return edges(image, np.ptp(image.astype(int), axis=-1) > 40)


@pytest.mark.timeout(300)
def test_voxels_are_seen_where_they_lie_and_as_what_they_are(server, browser):
    """Images, maps, affinities, channels and labels: value, colour and place of a square."""
    ramp = box(1000, 200, np.uint16)
    ramp.array[0, 0, 0] = 0  # an image is black at its least voxel, white at its largest

    def affinity(*values):
        return box(values, 0, np.float32, kind="affinity", channels=3)

    scenes = {
        "image": (box(200, 40), (200, 200, 200), EDGES),
        "its ground": (box(200, 40), (40, 40, 40), (-10, 10, -10, 10)),
        "uint16": (ramp, (255, 255, 255), EDGES),
        "probability": (box(0.6, 1, np.float32, kind="probability"), (153,) * 3, EDGES),
        "affinity x": (affinity(1, 0, 0), (255, 0, 0), EDGES),
        "affinity y": (affinity(0, 1, 0), (0, 255, 0), EDGES),
        "affinity z": (affinity(0, 0, 1), (0, 0, 255), EDGES),
        "uint8 affinity": (box((255, 51, 0), 0, kind="affinity", channels=3), (255, 51, 0), EDGES),
        "two channels": (box((255, 255), 0, channels=2), (255, 255, 0), EDGES),
        "nine channels": (box((90, *[7] * 8), 0, channels=9), (90, 90, 90), EDGES),
    }  # fmt: skip
    seen, expected = {}, {}
    for name, (chunk, colour, where) in scenes.items():
        show(server, browser, {"layer": chunk})
        expected[name] = where
        seen[name] = look(browser, of_colour(colour), where)
    labels = box(7, 0, np.uint32)
    show(server, browser, {"below": box(0, 0), "labels": labels})
    expected["labels"] = EDGES
    seen["labels"] = look(browser, saturated, EDGES)
    assert seen == expected


STORED = {
    # name -> (address, description, settings, chunk, colour)
    "zarr": ("zarr://{}", {}, {}, box(200, 40), (200, 200, 200)),
    "zarr v2": ("zarr2://{}", {}, {}, box(1000, 200, np.uint16), (255, 255, 255)),
    "OME-Zarr 0.6": (
        "zarr://{}", {}, {"ome_version": "0.6"}, box(200, 40), (200, 200, 200),
    ),
    "shards": ("zarr://{}", {"shard_size": Zyx(4, 16, 16)}, {}, box(200, 40), (200, 200, 200)),
    "precomputed": ("precomputed://{}", {}, {}, box(200, 40), (200, 200, 200)),
    "precomputed shards": (
        "precomputed://{}", {"shard_size": Zyx(4, 16, 16)}, {}, box(200, 40), (200, 200, 200),
    ),
    "two channels": ("zarr://{}", {}, {}, box((255, 255), 0, channels=2), (255, 255, 0)),
    "time series": ("zarr://{}", {"times": 2}, {}, box(200, 40), (200, 200, 200)),
    "map": (
        "zarr://{}", {}, {}, box(0.6, 1, np.float32, kind="probability"), (153, 153, 153),
    ),
}  # fmt: skip


def stored(url, chunk, described, settings):
    """Write a chunk as a volume."""
    spec = VolumeSpec(
        chunk.bbox, tuple(SIZE_NM), chunk.dtype, chunk.channels if chunk.ndim == 4 else None,
        chunk.kind, Zyx(4, 8, 8), **described,
    )  # fmt: skip
    volume = create_volume(spec, url, **settings)
    for time in range(spec.times or 1):
        volume.write(chunk, time=time if spec.times else None)
    return url


@pytest.mark.timeout(300)
def test_stored_volumes_are_seen_from_where_they_are(server, browser, tmp_path):
    """Each format, with shards, channels and time: value, colour and place of a square."""
    seen, expected = {}, {}
    for name, (address, described, settings, chunk, colour) in STORED.items():
        url = stored(address.format(tmp_path / name.replace(" ", "-")), chunk, described, settings)
        show(server, browser, {}, volumes={"stored": url})
        # The origin of OME-Zarr is the centre of voxel 0, that of precomputed is its corner.
        shift = 0.5 if url.startswith("zarr") else 0
        expected[name] = tuple(edge - shift for edge in EDGES)
        seen[name] = look(browser, of_colour(colour), expected[name])
    labels = stored(f"precomputed://{tmp_path}/labels", box(7, 0, np.uint32, kind="segmentation"),
                    {"encoding": "compressed_segmentation"}, {})  # fmt: skip
    show(server, browser, {"below": box(0, 0)}, volumes={"labels": labels}, segments=[7])
    expected["labels"] = EDGES
    seen["labels"] = look(browser, saturated, EDGES)
    assert seen == expected


def mesh_folder(folder):
    """Write a mesh of segment 7, the square and 2 voxels more along x, as legacy meshes are."""
    corners = START + np.array([(z, y, x) for z in (0, 4) for y in (4, 10) for x in (6, 16)])
    faces = [(0, 1, 3), (0, 3, 2), (4, 5, 7), (4, 7, 6), (0, 1, 5), (0, 5, 4)]
    faces += [(2, 3, 7), (2, 7, 6), (0, 2, 6), (0, 6, 4), (1, 3, 7), (1, 7, 5)]
    vertices = (corners * SIZE_NM)[:, ::-1].astype("<f4")
    folder.mkdir()
    folder.joinpath("7:0").write_text(json.dumps({"fragments": ["7:0:a"]}))
    folder.joinpath("7:0:a").write_bytes(
        struct.pack("<I", len(vertices)) + vertices.tobytes() + np.array(faces, "<u4").tobytes()
    )
    return str(folder)


@pytest.mark.timeout(300)
def test_objects_are_seen_where_they_lie(server, browser, tmp_path):
    """Points, synapses, skeletons, meshes of a segmentation and of a folder."""
    voxels = MIDDLE + [(0, -6, -4), (0, 0, 4), (0, -6, 4)]  # shown by their middles
    size = tuple(SIZE_NM)
    points = Points(voxels[:2], size)
    synapses = Synapses(voxels[:1], voxels[1:2], np.array([0]), size)
    skeleton = Skeleton.of(voxels * SIZE_NM, [(0, 2), (2, 1)])
    meshes = mesh_folder(tmp_path / "meshes")
    wider = (-6, 0, -4, 6)
    made, volume = f"{tmp_path}/made", f"{tmp_path}/volume"
    labels = box(7, 0, np.uint64, np.s_[1:3, 4:10, 6:14])  # a mesh is open where the chunk ends
    np.save(tmp_path / "labels.npy", labels.array)
    load = f"load-npy -f {tmp_path}/labels.npy -t 100 200 300 -s 40 8 8"
    for line in (
        f"{load} mesh -f 1 -o {made} --manifest",
        f"{load} save-precomputed -v {volume} mesh -f 1 -o {volume}",
        f"mesh-manifest -v {volume} --multires",
    ):
        done = CliRunner().invoke(cli, ["--quiet", *line.split()])
        assert done.exit_code == 0, done.output
    seen, expected = {}, {}
    show(server, browser, {"points": points})
    expected["points"] = (-6, 1, -4, 5)  # a marker of 8 pixels is a voxel wide
    seen["points"] = look(browser, of_colour((255, 255, 0)), expected["points"])
    show(server, browser, {"synapses": synapses})
    expected["pre"] = (-6, -5, -4, -3)
    seen["pre"] = look(browser, of_colour((255, 255, 0)), expected["pre"])
    expected["post"] = (0, 1, 4, 5)
    seen["post"] = look(browser, of_colour((0, 255, 255)), expected["post"])
    in_space = {
        "skeleton": ({"skeleton": {7: skeleton}}, {}, EDGES),
        "mesh of a segmentation": ({"labels": labels}, {"segments": (7,)}, EDGES),
        "mesh of a folder": ({"labels": labels}, {"segments": (7,), "mesh_path": meshes}, wider),
        "meshes alone": ({}, {"mesh_path": meshes}, wider),
        "meshes of the mesh command": ({}, {"mesh_path": made}, EDGES),
        "in levels of detail": ({}, {"mesh_path": volume}, EDGES),
    }
    for name, (items, more, wanted) in in_space.items():
        show(server, browser, items, "3d", **more)
        expected[name] = wanted
        seen[name] = look(browser, saturated, wanted)
    assert seen == expected
