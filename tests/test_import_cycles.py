"""No module of the package imports itself through others, at the top or inside a function.

A cycle of imports means that one idea is spread over several modules, none of which can be read,
tested or moved alone. The linter compares layers; within a layer it would accept a cycle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "chunkflow_py"


def is_for_types_only(node: ast.AST) -> bool:
    """Return whether *node* is an ``if TYPE_CHECKING``, which does not run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each node of a module that may run."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        nodes += node.orelse if is_for_types_only(node) else ast.iter_child_nodes(node)


def imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the absolute name of each module or object that a module of *package* imports."""
    for node in executed_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return the modules that each module of a package imports.

    An import of an object counts as one of its module. Left out are the parent packages that Python
    imports first, and modules that are imported by a name that is computed.
    """
    files = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        own = module if file.name == "__init__.py" else module.rpartition(".")[0]
        names = imported_names(ast.parse(file.read_text(encoding="utf-8")), own)
        modules = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = modules & files.keys() - {module}
    return graph


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """Return a cycle of modules, each followed by one that it imports; empty if none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]  # graphlib puts the imported module first
    return []


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    """The import graph has no cycle, imports inside functions included."""
    cycle = cycle_of(import_graph(PACKAGE))
    assert not cycle, f"move down what causes the cycle {' -> '.join(cycle)}"


def test_cycle_through_a_function_is_found(tmp_path: Path) -> None:
    """Lazy and relative imports close a cycle; imports for type checkers do not."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").touch()
    (package / "a.py").write_text("from package.inner.b import value\n")
    lower = package / "inner" / "b.py"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.a import c\n"
    lower.write_text(f"import os.path\n{typed}")
    assert import_graph(package)["package.a"] == {"package.inner.b"}
    assert cycle_of(import_graph(package)) == []
    lower.write_text("def function():\n    from ..a import value\n")
    cycle = cycle_of(import_graph(package))
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"package.a", "package.inner.b"}
