"""Each name in the package has one meaning."""

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
    """The second value would silently replace the first, also for the functions above it."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = {file: assigned_twice(file.read_text(encoding="utf-8")) for file in files}
    assert len(files) > 100
    assert {str(file): names for file, names in found.items() if names} == {}


def test_a_second_value_is_noticed() -> None:
    """In a module, in a class, and with an annotation; branches may differ."""
    source = "A = 1\nB: int = 2\nclass C:\n    d = 1\n    d = 2\nB = 3\nif A:\n    A = 4\n"
    assert assigned_twice(source) == ["B", "d"]


def public_classes(file: Path) -> Iterator[str]:
    """Yield the names of the public classes of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_no_two_classes_have_one_name() -> None:
    """Two exceptions: classes for plugins of chunkflow 1.x, and the `Pipeline` that users import.

    The latter adds methods to `pipeline.pipeline.Pipeline`.
    """
    files = [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.parent != PACKAGE / "pipeline/compat" and file != PACKAGE / "api.py"
    ]
    classes = Counter(name for file in files for name in public_classes(file))
    assert len(classes) > 300
    assert [name for name, number in classes.items() if number > 1] == []
