"""The screenshots of the documentation are what its scripts make."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rigs.browser import missing

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
COLOURS = 16  # a page that shows something has more


def looks(path):
    """Return the pixels of a picture: (row, column, 3)."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=int)


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize("page", ["dashboard", "report", "viewing"])
def test_the_pictures_of_a_page_can_be_made_again(page, tmp_path):
    """Its script makes every picture that the page shows, of the same size and with as much on it.

    Not pixel by pixel: times, rates and the date of a run are on some.
    """
    if program := missing():
        pytest.skip(f"{program} is not installed; apt-get install chromium chromium-driver")
    subprocess.run(
        [sys.executable, str(FIGURES / f"{page}.py"), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=110,
    )
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"figures/([\w-]+\.png)", text))
    assert shown
    assert {path.name for path in tmp_path.glob("*.png")} >= shown
    for name in shown:
        made, kept = looks(tmp_path / name), looks(FIGURES / name)
        assert made.shape == kept.shape, f"python docs/figures/{page}.py draws {name} anew"
        colours = len(np.unique(made.reshape(-1, 3), axis=0))
        assert colours > COLOURS
        assert abs(made.mean() - kept.mean()) < 20
