"""Meshes that we write are what Neuroglancer shows, in a real browser.

A box of labels is seen from the front, without perspective: its outline is a rectangle.
"""

import numpy as np
import pytest
from rigs.browser import browser, look
from rigs.static_server import static_server

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.task import Task
from chunkflow_py.ops.mesh_manifest import mesh_manifest
from chunkflow_py.segmentation import mesh_files
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder
from chunkflow_py.segmentation.mesh_creation import MeshSaver
from chunkflow_py.segmentation.skeletonize import SkeletonAggregator

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HEIGHT_NM = 1000  # of what is seen
DOMAIN = BoundingBox.parse("0-20_0-70_0-70")
BOX = BoundingBox.parse("5-15_10-40_20-60")  # of 10 nm a voxel: 300 high and 400 wide
WANTED = (-15, 15, -20, 20)


@pytest.fixture(scope="module")
def neuroglancer():
    """Neuroglancer's server."""
    library = pytest.importorskip("neuroglancer", reason="neuroglancer is not installed")
    library.set_server_bind_address("127.0.0.1", 0)
    yield library
    library.stop()


def outline(image):
    """Return rows and columns where red starts and ends, from the middle, in % of the height."""
    height, width = image.shape[:2]
    image = image[height // 4 : -height // 4, width // 5 : -width // 5]  # without the letters
    rows, columns = np.nonzero((image[..., 0] > 60) & (image[..., 1] < 30))
    if not len(rows):
        return None
    row, column = image.shape[0] / 2, image.shape[1] / 2
    edges = (rows.min() - row, rows.max() + 1 - row, columns.min() - column,
             columns.max() + 1 - column)  # fmt: skip
    return tuple(round(float(edge) / height * 100) for edge in edges)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("levels", "shards"), [(0, None), (1, None), (3, None), (1, 2), (3, 2)])
def test_neuroglancer_shows_the_surface(
    levels, shards, neuroglancer, browser, tmp_path, monkeypatch
):
    """Fragments with manifests, meshes of levels, and shards appear where the labels are."""
    array = np.zeros(DOMAIN.size, np.uint32)
    array[BOX.slices()] = 70
    chunk = Chunk(array, voxel_size_nm=(10, 10, 10))
    save = MeshSaver(f"{tmp_path}/mesh", settings={"simplification_factor": 0})
    for box in ("0-20_0-70_0-35", "0-20_0-70_35-70"):
        save(Task(Region.parse(box), {"chunk": chunk}))
    if levels:
        monkeypatch.setattr(mesh_files, "_CELL_FACES", 10**6 if levels == 1 else 500)
    if shards is None:
        tasks = mesh_manifest(f"{tmp_path}/mesh", 2, 70, multires=levels > 0)
    else:
        tasks = mesh_manifest(f"{tmp_path}/mesh", shards=shards)
    for task in tasks:
        tasks.work(task)
    folder = "mesh_sharded" if shards else "mesh_multires" if levels else "mesh"
    assert seen(neuroglancer, browser, tmp_path, folder, WANTED) == WANTED


def test_neuroglancer_shows_the_skeletons_of_shards(neuroglancer, browser, tmp_path):
    """The outline of a rectangle, stored as a skeleton, appears where its vertices are."""
    pytest.importorskip("kimimaro")
    z = 10 * (BOX.start.z + BOX.stop.z) / 2
    corners = [(z, 10 * y, 10 * x) for y in (BOX.start.y, BOX.stop.y)
               for x in (BOX.start.x, BOX.stop.x)]  # fmt: skip
    frame = Skeleton.of(corners, [(0, 1), (1, 3), (3, 2)])  # a loop would be opened
    ObjectFolder(f"{tmp_path}/lines").put([("70:0-1_0-1_0-1", frame.to_precomputed())])
    SkeletonAggregator(f"{tmp_path}/lines", shards=2, dust_threshold=0, tick_threshold=0)(Task())
    # a line is a few pixels wide
    assert seen(neuroglancer, browser, tmp_path, "lines_sharded", WANTED, within=1) == WANTED


def seen(neuroglancer, browser, tmp_path, folder, wanted, within=0):
    """Return the outline of object 70, seen from the front."""
    viewer = neuroglancer.Viewer()
    with viewer.config_state.txn() as config:
        config.show_ui_controls = config.show_panel_borders = False
    browser.get(str(viewer.get_viewer_url()))
    with static_server(tmp_path) as address:
        with viewer.txn() as state:
            state.dimensions = neuroglancer.CoordinateSpace(
                names=["x", "y", "z"], units="nm", scales=[1, 1, 1]
            )
            middle = [10 * (a + b) / 2 for a, b in zip(BOX.start, BOX.stop)]
            state.position = middle[::-1]
            state.layout = "3d"
            state.layout.orthographic_projection = True
            state.show_slices = state.show_axis_lines = state.show_default_annotations = False
            state.projection_scale = HEIGHT_NM
            state.layers["m"] = neuroglancer.SegmentationLayer(
                source=f"precomputed://{address}/{folder}",
                segments=[70],
                segment_colors={70: "#ff0000"},
            )
        return look(browser, lambda image: near(outline(image), wanted, within), wanted)


def near(found, wanted, within):
    """Return *wanted* if each edge that was found is as near as that, else what was found."""
    if found is not None and all(abs(a - b) <= within for a, b in zip(found, wanted)):
        return wanted
    return found
