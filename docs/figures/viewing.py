"""Make the pictures of docs/viewing.md: neuroglancer.png and preview.png.

Run it in the root of the repository; needs chromium and chromedriver for the first.
"""

import io
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from PIL import Image  # noqa: E402, TID253
from rigs.browser import headless  # noqa: E402

from chunkflow_py.ops.load_h5 import load_h5  # noqa: E402
from chunkflow_py.ops.preview import preview  # noqa: E402
from chunkflow_py.ops.viewing.server import ViewerServer  # noqa: E402

SEGMENTS = (24720, 60683, 57746, 56811, 80907, 37164, 49774)
FIGURES = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "figures"
SAMPLE = ROOT / "examples" / "fib25"


def save(png: bytes, name: str) -> None:
    """Write a picture in few colours, so that it is small."""
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(96).save(FIGURES / name, optimize=True)


chunks = {
    "raw": load_h5(SAMPLE / "raw.h5"),
    "groundtruth": load_h5(SAMPLE / "groundtruth.h5"),
}
save(preview(chunks, 200), "preview.png")
server = ViewerServer()
with headless(820, 620) as browser:
    browser.get(server.show(chunks, segments=SEGMENTS))
    with server.viewer.txn() as state:
        state.cross_section_scale = 0.9
        state.projection_scale = 420
        state.show_slices = False
    time.sleep(15)  # for the meshes
    save(browser.get_screenshot_as_png(), "neuroglancer.png")
server.stop()
