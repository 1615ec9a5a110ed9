"""What we write is what Neuroglancer shows, in a real browser.

Every volume holds one bright square, of another grey at each level and in each pair of sections,
so that the picture says which level and which section is seen, and where. One voxel is 10 pixels.
"""

import io
import re
import time
from pathlib import Path

import numpy as np
import pytest
from rigs.browser import DEADLINE_S, browser
from rigs.static_server import static_server

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec, coarser

PIXELS = 10  # a voxel of level 0
BOUNDS = BoundingBox(Zyx(-3, 7, 100), Zyx(6, 40, 145))  # 9 x 33 x 45: odd, ends inside of blocks
BLOCK, SHARD, FACTOR = Zyx(8, 16, 16), Zyx(8, 32, 32), Zyx(2, 2, 2)
SQUARE = BoundingBox(Zyx(0, 16, 112), Zyx(2, 24, 120))  # on whole voxels of level 1, across blocks
GREYS = {0: 200, 1: 160}  # of the square, by level; 50 lower in other sections; around it 40
SHADER = "void main() { emitGrayscale(toNormalized(getDataValue())); }"

__all__ = ["browser"]  # a fixture

# name -> (scheme of ours, further description, settings, scheme of Neuroglancer)
VOLUMES = {
    "OME-Zarr 0.4": ("zarr", {}, {"ome_version": "0.4"}, "zarr2"),
    "OME-Zarr 0.5": ("zarr", {"shard_size": SHARD}, {}, "zarr3"),
    "channels": ("zarr", {"channels": 2}, {}, "zarr3"),
    "raw": ("precomputed", {"encoding": "raw"}, {"compress": False}, "precomputed"),
    "gzip": ("precomputed", {"encoding": "raw"}, {}, "precomputed"),
    "sharded": ("precomputed", {"shard_size": SHARD}, {}, "precomputed"),
    "labels": (
        "precomputed",
        {"kind": "segmentation", "encoding": "compressed_segmentation"},
        {},
        "precomputed",
    ),
}

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def picture(bounds, square, grey):
    """Return voxels with a square of one grey in its sections, of another in all others."""
    array = np.full(bounds.size, 40, np.uint8)
    sections, rows, columns = square.slices(bounds.start)
    array[:, rows, columns] = grey - 50
    array[sections, rows, columns] = grey
    return Chunk(array, bounds.start)


def write(url, settings, **more):
    """Write a volume with two levels, described by *more*."""
    described = {"channels": None, "kind": "image", "factor": FACTOR, "max_mip": 1} | more
    dtype = np.dtype("uint8" if described["kind"] == "image" else "uint64")
    size = (40.0, 8.0, 8.0)
    spec = VolumeSpec(BOUNDS, size, dtype, block_size=BLOCK, **described)
    create_volume(spec, url, **settings)
    for mip, factor in enumerate((Zyx(1, 1, 1), FACTOR)):
        chunk = picture(coarser(BOUNDS, factor), coarser(SQUARE, factor), GREYS[mip])
        array = chunk.array.astype(dtype)
        if spec.channels is not None:
            array = np.stack([array, 255 - array])
        open_volume(url, mip, "r+").write(chunk.with_array(array))


@pytest.fixture(scope="module")
def neuroglancer():
    """Neuroglancer's server."""
    library = pytest.importorskip("neuroglancer", reason="neuroglancer is not installed")
    library.set_server_bind_address("127.0.0.1", 0)
    yield library
    library.stop()


def layer(library, name, source):
    """Return the layer that shows a volume in the greys that it holds."""
    if name != "labels":
        channel = [0] if name == "channels" else []
        return library.ImageLayer(source=source, shader=SHADER, local_position=channel)
    greys = [40, *GREYS.values(), *(grey - 50 for grey in GREYS.values())]
    return library.SegmentationLayer(
        source=source,
        segments=greys,
        segment_colors={grey: f"#{grey:02x}{grey:02x}{grey:02x}" for grey in greys},
        selected_alpha=1,
        hover_highlight=False,
    )


def squares(png):
    """Return {grey: its first row, end row, first column, end column}.

    Counted from the middle of the picture in halves of a voxel, so that a pixel is no difference.
    """
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    row, column = (length // 2 for length in image.shape[:2])
    image = image[row - 100 : row + 100, column - 100 : column + 100].astype(int)
    found = {}
    for grey in (*GREYS.values(), *(grey - 50 for grey in GREYS.values())):
        rows, columns = np.nonzero((abs(image - grey) <= 1).all(axis=-1))
        if len(rows):
            edges = (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)
            area = (edges[1] - edges[0]) * (edges[3] - edges[2])
            halves = tuple(round(int(edge - 100) / (PIXELS / 2)) for edge in edges)
            found[grey] = halves if len(rows) == area else f"not solid in {halves}"
    return found


def look(browser, viewer, wanted):
    """Return what is seen: *wanted* as soon as it is there, else what is there in the end."""
    deadline = time.monotonic() + DEADLINE_S
    seen = None
    while seen != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
        png = browser.get_screenshot_as_png()
        seen = squares(png)
    return seen, png


@pytest.mark.timeout(300)
def test_neuroglancer_shows_what_was_written(neuroglancer, browser, tmp_path):
    """All formats, at both levels: the right greys at the right place.

    The origin of OME-Zarr is the centre of voxel 0, that of precomputed its corner: in
    Neuroglancer the one is seen half a voxel of level 0 before the other, at every level. A level
    whose translation is not that of its voxels' centres would be seen elsewhere.
    """
    expected, seen = {}, {}
    viewer = neuroglancer.Viewer()
    with viewer.config_state.txn() as config:
        config.show_ui_controls = config.show_panel_borders = False
    browser.get(str(viewer.get_viewer_url()))
    with static_server(tmp_path) as address:
        for name, (scheme, described, settings, shown) in VOLUMES.items():
            folder = re.sub(r"\W", "-", name)
            write(f"{scheme}://{tmp_path}/{folder}", settings, **described)
            for mip, grey in GREYS.items():
                wanted = {grey: (-9, 7, -9, 7) if scheme == "zarr" else (-8, 8, -8, 8)}
                with viewer.txn() as state:
                    state.dimensions = neuroglancer.CoordinateSpace(
                        names=["x", "y", "z"], units="nm", scales=[8, 8, 40]
                    )
                    state.position = [116, 20, 0.25]
                    state.cross_section_scale = 1 / PIXELS
                    state.layout = "xy"
                    state.show_axis_lines = state.show_scale_bar = False
                    state.show_default_annotations = False
                    state.layers.clear()
                    state.layers[name] = layer(neuroglancer, name, f"{shown}://{address}/{folder}")
                    # the larger, the coarser the level that is good enough
                    state.layers[name].layer.cross_section_render_scale = 1000 if mip else 1
                key = f"{name}, mip {mip}"
                expected[key] = wanted
                seen[key], png = look(browser, viewer, wanted)
                if seen[key] != wanted:
                    Path(tmp_path / f"{folder}-{mip}.png").write_bytes(png)
    assert seen == expected, f"screenshots are in {tmp_path}"
