"""Make the pictures of docs/report.md: report.png, report-times.png and report-looks.png.

Run it in the root of the repository, with another folder for the pictures if they are not to be
replaced; needs chromium and chromedriver. The report is that on a run
of the shipped network over a part of the shipped volume, without overlap between its patches, so
that there are seams to see.
"""

import io
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from PIL import Image  # noqa: E402, TID253
from rigs.browser import headless  # noqa: E402

FIGURES = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "figures"
SAMPLE = ROOT / "examples" / "fib25"
RUN = f"""
    --quiet run --on local:2 --threads 1 --run affinity.run
    generate-tasks --roi-start 80 0 0 --roi-size 96 192 192 --chunk-size 32 64 64
    load-h5 -f {SAMPLE}/raw.h5 --expand-margin-size auto
    inference --framework pytorch --output-kind affinity
        --convnet-model {SAMPLE}/unet_fib25_model.py --convnet-weight-path {SAMPLE}/unet_fib25.pt
        --input-patch-size 32 64 64 --output-patch-overlap 0 0 0
    save-zarr --store affinity.zarr --chunk-size 32 64 64
"""
REPORT = "report affinity.run --price 0.53 --verify"


def chunkflow(line: str, folder: str) -> None:
    """Run a line in a folder."""
    subprocess.run(
        [sys.executable, "-m", "chunkflow_py", *shlex.split(line)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )


def save(png: bytes, name: str) -> None:
    """Write a picture in few colours, so that it is small."""
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(128).save(FIGURES / name, optimize=True)


def main() -> None:
    """Make the pictures."""
    with tempfile.TemporaryDirectory() as folder, headless(900, 800) as browser:
        chunkflow(RUN, folder)
        chunkflow(REPORT, folder)
        path = Path(folder) / "report.html"
        page = path.read_text(encoding="utf-8")
        page = page.replace(folder, "/data").replace(str(SAMPLE), "/data/fib25")
        page = page.replace("</style>", "::-webkit-scrollbar { display: none; }</style>")
        path.write_text(page, encoding="utf-8")
        browser.get(f"file://{path}")
        for name, part, height in (
            ("report.png", None, 860),
            ("report-times.png", "took", 1010),
            ("report-looks.png", "slices", 1290),
        ):
            browser.set_window_size(900, height)
            if part:
                browser.execute_script(f"document.getElementById('{part}').scrollIntoView()")
            save(browser.get_screenshot_as_png(), name)


if __name__ == "__main__":
    main()
