"""Annotations that we write are what Neuroglancer shows, in a real browser.

The planes z = 0 to 40 of a volume are seen from the front; each cell of a raster has one annotation
with a colour of its own, so the colours of the pixels tell which annotation is where.
"""

import numpy as np
import pytest
from rigs.browser import browser, look
from rigs.static_server import static_server

from chunkflow_py.core.annotations import Annotations, Property, Relation
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.store import open_store
from chunkflow_py.volume.precomputed.annotation_merge import MergeSettings, merge_annotations
from chunkflow_py.volume.precomputed.annotation_parts import AnnotationPart, part_key

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BOUNDS = BoundingBox.parse("0-40_0-400_0-400")
SIDE, STEP = 4, 100  # annotations along an axis, and their distance, voxels
COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]
SHADERS = [
    "void main() { setColor(prop_colour()); }",
    "void main() { setColor(prop_colour()); setPointMarkerSize(20.0); }",
]
PITCH = 80  # pixels from one annotation to the next


@pytest.fixture(scope="module")
def neuroglancer():
    """Neuroglancer's server."""
    library = pytest.importorskip("neuroglancer", reason="neuroglancer is not installed")
    library.set_server_bind_address("127.0.0.1", 0)
    yield library
    library.stop()


def raster(kind):
    """Return 4 x 4 annotations of a kind; that at (row, column) has colour (row + column) % 4."""
    rows, columns = (each.ravel() for each in np.mgrid[:SIDE, :SIDE])
    middle = np.stack([np.full(SIDE**2, 20), rows * STEP + 50, columns * STEP + 50], axis=1)
    reach = np.array([10, 30, 30])
    positions = {
        "point": [middle],
        "line": [middle - reach, middle + reach],
        "axis_aligned_bounding_box": [middle - reach, middle + reach],
        "ellipsoid": [middle, np.broadcast_to(reach, middle.shape)],
    }[kind]
    colours = np.array(COLOURS)[(rows + columns) % 4]
    return Annotations(
        kind,
        np.stack(positions, axis=1),
        (8, 8, 8),
        properties=(Property("colour", "rgb", colours),),
        relations=(Relation.to_one("segment", rows + 1),),
    )


def write(folder, kind, **settings):
    """Save the raster by two tasks, and merge it."""
    annotations, parts = raster(kind), open_store(f"{folder}/parts")
    for at, half in (("0-40_0-400_0-200", range(8)), ("0-40_0-400_200-400", range(8, 16))):
        part = AnnotationPart(annotations.take(np.array(half)), BOUNDS, 2)
        parts.put(part_key(BoundingBox.parse(at)), part.encoded())
    small = MergeSettings(limit=5, smallest_cell=Zyx(20, 50, 50), **settings)
    merge_annotations(parts, open_store(f"{folder}/annotations"), small)


def seen(image):
    """Return the colour of most coloured pixels of each cell of the raster, as its index or None.

    The raster lies in the middle of the window.
    """
    image = image[..., :3].astype(int)
    top, left = (np.array(image.shape[:2]) - SIDE * PITCH) // 2
    cells = []
    for row in range(SIDE):
        for column in range(SIDE):
            y, x = top + row * PITCH, left + column * PITCH
            cell = image[y + 5 : y + PITCH - 5, x + 5 : x + PITCH - 5].reshape(-1, 3)
            near = [int((abs(cell - colour).max(axis=1) < 80).sum()) for colour in COLOURS]
            cells.append(int(np.argmax(near)) if max(near) > 15 else None)
    return tuple(cells)


ALL = tuple((row + column) % 4 for row in range(SIDE) for column in range(SIDE))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("kind", ["point", "line", "axis_aligned_bounding_box", "ellipsoid"])
def test_neuroglancer_shows_annotations(kind, sharded, neuroglancer, browser, tmp_path):
    """All annotations of all levels are shown, and only those of a segment if one is chosen."""
    write(tmp_path, kind, sharded=sharded)
    viewer = neuroglancer.Viewer()
    with viewer.config_state.txn() as config:
        config.show_ui_controls = config.show_panel_borders = False
    browser.get(str(viewer.get_viewer_url()))
    with static_server(tmp_path) as address:
        source = f"precomputed://{address}/annotations"
        with viewer.txn() as state:
            state.dimensions = neuroglancer.CoordinateSpace(
                names=["x", "y", "z"], units="nm", scales=[8, 8, 8]
            )
            state.position = [200, 200, 20]
            state.layout = "xy"
            state.show_axis_lines = state.show_default_annotations = False
            state.cross_section_scale = STEP / PITCH
            state.layers["a"] = neuroglancer.AnnotationLayer(
                source=source,
                shader=SHADERS[kind == "point"],
            )
        assert look(browser, seen, ALL) == ALL
        with viewer.txn() as state:
            state.layers["s"] = neuroglancer.SegmentationLayer(segments=[2])
            state.layers["a"].linked_segmentation_layer = {"segment": "s"}
            state.layers["a"].filter_by_segmentation = ["segment"]
        some = tuple(colour if at // SIDE == 1 else None for at, colour in enumerate(ALL))
        assert look(browser, seen, some) == some
