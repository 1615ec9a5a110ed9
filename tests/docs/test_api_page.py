"""docs/api.md names every operator in Python, and is as the files are."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from chunkflow_py.cli import catalog

ROOT = Path(__file__).parents[2]


def test_the_page_is_fresh() -> None:
    """Every operator has a documented function or class; the page says what the files say."""
    script = ROOT / "docs" / "make_api.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    said = f"{done.stderr}; python docs/make_api.py writes docs/api.md anew"
    assert done.returncode == 0, said


def test_what_the_page_names_can_be_imported() -> None:
    """Each import of the page works, and there is one for each operator."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- \*\*(\S+)\*\* .*\(`from (\S+) import (\w+)`\)$", text, re.MULTILINE)
    assert {name for name, _, _ in rows} == set(catalog.names())
    for _, module, name in rows:
        assert callable(getattr(import_module(module), name))
