"""The site is built without a warning, and holds every command and every type of the API."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import chunkflow_py
from chunkflow_py.cli import catalog

ROOT = Path(__file__).parents[2]


def build(sources: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site from *sources* with our settings, as `make docs` does."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-c", ROOT / "docs"]
    commands = [sys.executable, "-m", "sphinx", *options, "-d", target / "pages", sources, target]
    return subprocess.run(commands, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_site_is_clean(tmp_path: Path) -> None:
    """No link is broken and no page lost; all commands and types are there; nothing is fetched."""
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Run a 3D neural network" in (tmp_path / "index.html").read_text(encoding="utf-8")
    commands = (tmp_path / "docs" / "commands.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<section id="([^"]+)">\n<h3>', commands))
    assert shown == set(catalog.commands())
    assert "--input-patch-size" in commands
    api = (tmp_path / "docs" / "api.html").read_text(encoding="utf-8")
    for name in chunkflow_py.__all__:
        assert re.search(rf'id="chunkflow_py\.[\w.]*{name}"', api), name
    for page in tmp_path.rglob("*.html"):
        fetched = r'<(?:script|img|iframe)[^>]*src="(\w*:?//[^"]*)|<link[^>]*href="(\w*:?//[^"]*)'
        assert not re.findall(fetched, page.read_text(encoding="utf-8")), page


def test_what_is_wrong_with_a_page_fails_the_build(tmp_path: Path) -> None:
    """A link that leads nowhere, a picture that is missing and a page without an entry are told."""
    sources = tmp_path / "sources"
    (sources / "docs").mkdir(parents=True)
    (sources / "README.md").write_text("# A\n\n[b](docs/none.md) ![c](none.png)\n", "utf-8")
    (sources / "docs" / "lost.md").write_text("# B\n", "utf-8")
    done = build(sources, tmp_path / "site")
    assert done.returncode == 1
    assert "'docs/none.md'" in done.stderr
    assert "image file not readable: none.png" in done.stderr
    assert re.search(r"lost\.md: WARNING: document isn't included in any toctree", done.stderr)


def test_drawings_are_as_the_code_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of the concepts are what patches, windows and the script give today."""
    figures = ROOT / "docs" / "figures"
    monkeypatch.syspath_prepend(figures)
    drawings = import_module("concepts").DRAWINGS
    for name, draw in drawings.items():
        stale = f"python docs/figures/concepts.py draws {name} anew"
        assert (figures / name).read_text(encoding="utf-8") == draw(), stale
