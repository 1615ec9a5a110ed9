"""What the page on security promises is held by tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    """Return the tests of a file, as pytest calls them."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + each.name for each in inside if isinstance(each, ast.FunctionDef)}
    return found


def test_tests_exist() -> None:
    """Every test that is named is there, under this name."""
    named = set(re.findall(r"`((?:tests|chunkflow_py/testing)/[^`:]+)::([^`]+)`", PAGE))
    assert len(named) > 20
    missing = [f"{path}::{test}" for path, test in named if test not in names_in(ROOT / path)]
    assert not missing


def test_every_promise_names_a_test() -> None:
    """No line of a table is without a test."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    heads = ("| what |", "| promise |")
    bare = [
        row
        for row in rows
        if not row.startswith(heads)
        and "`tests/" not in row
        and "`chunkflow_py/testing/" not in row
    ]
    assert not bare
