"""No module and no class of the package assigns a constant twice.

The second value would silently replace the first, where functions above it use the name as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "chunkflow_py"


def assigned_names(scope: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield each name that the body of a module or class assigns, outside of conditions."""
    for node in scope.body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    yield each.id


def assigned_twice(source: str) -> list[str]:
    """Return the names that a module or one of its classes assigns more than once."""
    tree = ast.parse(source)
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    return [name for scope in scopes for name, n in Counter(assigned_names(scope)).items() if n > 1]


def test_no_constant_is_assigned_twice() -> None:
    """Each name has one value."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = {file: assigned_twice(file.read_text(encoding="utf-8")) for file in files}
    assert len(files) > 100
    assert {str(file): names for file, names in found.items() if names} == {}


def test_a_second_value_is_noticed() -> None:
    """In a module, in a class, and with an annotation; branches may differ."""
    source = "A = 1\nB: int = 2\nclass C:\n    d = 1\n    d = 2\nB = 3\nif A:\n    A = 4\n"
    assert assigned_twice(source) == ["B", "d"]
