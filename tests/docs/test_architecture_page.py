"""The drawing of the layers is the list that the linter checks, and no module is missing."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def layers_of_the_linter() -> list[set[str]]:
    """Return the modules of each layer that `lint-imports` checks, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [contract for contract in contracts if contract["type"] == "layers"]
    assert layers["containers"] == ["chunkflow_py"]
    assert layers["exhaustive"] is True
    return [{part.strip(" ()") for part in re.split("[|:]", line)} for line in layers["layers"]]


def layers_of_the_page() -> list[set[str]]:
    """Return the modules of each layer that is drawn, the highest first."""
    drawing = PAGE.read_text(encoding="utf-8").split("## The layers")[1].split("```")[1]
    return [set(re.findall(r"^(\w+)  ", part, re.MULTILINE)) for part in drawing.split("-----\n")]


def test_drawing_is_what_the_linter_checks() -> None:
    """Each layer of the page is the layer of the linter, in the same order."""
    assert layers_of_the_page() == layers_of_the_linter()


def test_every_module_has_one_layer() -> None:
    """A module that is added without a layer, or in two, is found."""
    names = [path.stem for path in (ROOT / "chunkflow_py").glob("*.py") if path.stem != "__init__"]
    names += [path.parent.name for path in (ROOT / "chunkflow_py").glob("*/__init__.py")]
    listed = [name for layer in layers_of_the_linter() for name in layer]
    assert sorted(listed) == sorted(names)
