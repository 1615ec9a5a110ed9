"""What the site takes from the code is all there, and can be imported as it says."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from chunkflow_py.cli import catalog

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch):
    """Return docs/reference.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield import_module("reference")
    del sys.modules["reference"]


def test_every_operator_works_in_python(reference) -> None:
    """Each operator has a documented function or class, which can be imported."""
    for name in catalog.names():
        module, word = reference.home_of(name)
        thing = getattr(import_module(module), word)
        assert callable(thing), name
        assert inspect.getdoc(thing), name


def test_the_page_says_where_each_operator_is(reference) -> None:
    """Imports on docs/api.md work, and every operator is where the page says, by rule or table."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    said: dict[str, tuple[str, str]] = {}
    for row in re.finditer(r"^\| (`.+`) \| `from (\S+) import (\w+)` \|$", text, re.MULTILINE):
        said |= dict.fromkeys(re.findall(r"`([a-z0-9-]+)`", row[1]), (row[2], row[3]))
    for name in catalog.names():
        word = name.replace("-", "_")
        module, word = said.pop(name, (f"chunkflow_py.ops.{word}", word))
        assert (module, word) == reference.home_of(name), name
        assert hasattr(import_module(module), word)
    assert not said, "the table has what is no operator"


def test_options_are_those_of_help(reference) -> None:
    """A section of the page has the summary, the example and each option of a command."""
    text = reference.commands()
    section = text.partition("### threshold\n")[2].partition("\n### ")[0]
    assert "Turn a map into a mask by a threshold." in section
    example = "load-h5 --file-name map.h5 threshold --threshold 0.5 save-h5 --file-name mask.h5"
    assert f"chunkflow {example}\n```" in section
    option = "`-t, --threshold FLOAT`\n: Voxels above this value become 1, other voxels 0."
    assert f"{option} \\[default: 0.5\\]" in re.sub(" +", " ", section)
