"""Figures of the scores of a hierarchy: real images of all formats, and what is refused."""

from __future__ import annotations

import io
import shlex
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.cli.subcommands.evaluate_hierarchy import FIGURE_SUFFIXES
from chunkflow_py.segmentation.agglomeration.hierarchy_scores import FIGURES, figure_of
from chunkflow_py.segmentation.evaluate import evaluate

pytest.importorskip("matplotlib")


def run(line, code):
    """Run a command line, require its exit code, and return its output."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture
def scores():
    """Scores of three segmentations; the second one is right."""
    truth = np.repeat(np.array([1, 2], np.uint64), 32).reshape(4, 4, 4)
    fine = np.arange(1, 65, dtype=np.uint64).reshape(4, 4, 4)
    return [
        (threshold, evaluate(labels, truth))
        for threshold, labels in ((0.2, fine), (0.5, truth), (0.9, np.ones_like(truth)))
    ]


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_is_an_image(scores, kind):
    """Each format begins as it must, shows labels with units, and has the same bytes each time."""
    assert f".{kind}" in FIGURE_SUFFIXES
    image = figure_of(scores, kind)
    assert image.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    assert figure_of(scores, kind) == image
    assert figure_of(scores[:1], kind) != image
    if kind == "png":
        pixels = pytest.importorskip("PIL.Image").open(io.BytesIO(image))
        assert pixels.size == (1050, 900)
        assert len(pixels.convert("RGB").getcolors(10**6)) > 10
    if kind == "svg":
        text = image.decode()
        assert "<!-- best threshold: 0.5 (VOI sum 0.000 bits) -->" in text
        for label in ("variation of information (bits)", "adapted Rand error (0 to 1)"):
            assert f"<!-- {label} -->" in text
        assert "<!-- threshold (1 - mean affinity) -->" in text


def test_figures_that_cannot_be_written_are_refused_first(tmp_path, monkeypatch):
    """Suffix, folder and library are checked before WORK is opened."""
    monkeypatch.chdir(tmp_path)
    line = "evaluate-hierarchy nothing truth --figure"
    assert "give --figure scores.png" in run(f"{line} scores.jpeg", 2)
    assert "give --figure scores.png" in run(f"{line} scores", 2)
    assert "give --figure scores.png" in run(f"{line} ''", 2)
    assert "the folder figures, which does not exist" in run(f"{line} figures/scores.png", 2)
    (tmp_path / "folder.svg").mkdir()
    assert "folder.svg is a folder" in run(f"{line} folder.svg", 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = run(f"{line} scores.PNG", 1)
    assert "evaluate-hierarchy --figure needs matplotlib, which is not installed" in output
    assert "pip install 'chunkflow_py[view]'" in output
