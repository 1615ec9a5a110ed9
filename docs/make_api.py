"""Write docs/api.md: what each operator and the main types are called in Python.

python docs/make_api.py [--check]

Names, parameters and first paragraphs are read from the files, without importing them.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import chunkflow_py
from chunkflow_py.cli import catalog

PAGE = Path(__file__).with_name("api.md")
ROOT = Path(chunkflow_py.__file__).parent

HEAD = """# The parts in Python

<!-- written by docs/make_api.py -->

Every operator is a function or a class that works without a command line; its parameters are the
options of the command. A function takes chunks and returns what it makes; an object of a class is
called with a `chunkflow_py.Task`, as a line does it.

```python
from chunkflow_py import Chunk, Task
from chunkflow_py.ops.create_chunk import create_chunk
from chunkflow_py.ops.threshold import threshold

mask = threshold(create_chunk((8, 64, 64), "uint8", "sin"), threshold=100)
assert mask.kind == "segmentation"
```

A whole line, in Python:

```python
from chunkflow_py import Pipeline
from chunkflow_py.cli.line import read_line

operators = read_line("create-chunk -s 8 64 64 threshold -t 100 -o mask".split())
(task,) = Pipeline(operators).run()
assert task["mask"].array.max() == 1
```
"""

# Operators whose function lies a layer down, where other operators share it.
ELSEWHERE = {
    "create-info": "volume:create_volume",
    "create-volume": "volume:create_volume",
    "downsample-upload": "volume.pyramid:PyramidOutput",
    "fetch-task-from-sqs": "queue.protocol:open_queue",
    "generate-tasks": "task_source:TaskGenerator",
    "inference": "inference.inferencer:Inferencer",
    "load-n5": "volume:open_volume",
    "load-precomputed": "volume:open_volume",
    "load-tensorstore": "volume.tensorstore_volume:loader_of",
    "load-volume": "volume:open_volume",
    "load-zarr": "volume:open_volume",
    "save-points": "points:Points",
    "save-precomputed": "volume.saver:VolumeSaver",
    "save-synapses": "synapses:Synapses",
    "save-volume": "volume.saver:VolumeSaver",
    "save-zarr": "volume.saver:VolumeSaver",
    "setup-env": "environment:Environment",
}

Node = ast.FunctionDef | ast.ClassDef


def parse(module: str) -> list[Node]:
    """Return the public functions and classes of a module of the package, but for ``command``."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, Node)]
    return [node for node in found if node.name[0] != "_" and node.name != "command"]


def parts_of(name: str) -> tuple[str, list[Node]]:
    """Return the module in which the function or class of an operator lies, and it, first.

    Raises:
        LookupError: there is none.
    """
    module, wanted = f"ops.{name.replace('-', '_')}", {name.replace("-", "_"), _camel(name)}
    nodes = parse(module)
    if not nodes and name in ELSEWHERE:
        module, _, word = ELSEWHERE[name].partition(":")
        nodes, wanted = [node for node in parse(module) if node.name == word], {word}
    elif name in ELSEWHERE:
        msg = f"{name} has {nodes[0].name} of its own; take it out of ELSEWHERE"
        raise LookupError(msg)
    if not nodes:
        msg = f"{name} has no public function or class beside command; add one, or to ELSEWHERE"
        raise LookupError(msg)
    return module, sorted(nodes, key=lambda node: node.name not in wanted)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def describe(node: Node) -> str:
    """Return signature and first paragraph of a function or class, as Markdown.

    Raises:
        LookupError: it has no docstring.
    """
    text = ast.get_docstring(node)
    if not text:
        msg = f"{node.name} has no docstring"
        raise LookupError(msg)
    told = " ".join(text.partition("\n\n")[0].split())
    told = told.replace("``", "`")
    return f"`{node.name}({_parameters(node)})`: {told}"


def _parameters(node: Node) -> str:
    if isinstance(node, ast.FunctionDef):
        return ast.unparse(node.args)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return ast.unparse(each.args).removeprefix("self").removeprefix(", ")
    fields = [
        ast.unparse(each).split(" = field(")[0]
        for each in node.body
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target)[0] != "_"
    ]
    return re.sub(r"\s+", " ", ", ".join(fields))


def page() -> str:
    """Return the page."""
    lines = [HEAD, "## Main types\n"]
    for name, module in sorted(chunkflow_py._HOMES.items()):
        inside = module.removeprefix("chunkflow_py.")
        (node,) = (node for node in parse(inside) if node.name == name)
        lines.append(f"- {describe(node)} (`from chunkflow_py import {name}`)")
    for kind, title in catalog.SECTIONS.items():
        names = [name for name in catalog.names() if catalog.describe(name).kind == kind]
        if not names:
            continue
        lines.append(f"\n## {title}\n")
        for name in names:
            module, nodes = parts_of(name)
            node = nodes[0]
            home = f"from chunkflow_py.{module} import {node.name}"
            lines.append(f"- **{name}** {describe(node)} (`{home}`)")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page() else "stale")
    PAGE.write_text(page(), encoding="utf-8")
