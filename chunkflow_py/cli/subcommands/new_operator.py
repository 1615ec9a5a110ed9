"""Write the file of a new operator, and its test.

Run the new operator with `plugin --file NAME.py`. To make the operator a command of chunkflow, add
the file to a package of yours, with an entry point for the operator, and install the package.

Example: chunkflow new-operator double-it --folder operators
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli import catalog
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATOR = '''"""Multiply the voxels of a chunk.

Example: chunkflow create-chunk plugin -f {module}.py --factor 2 save-h5 -f out.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py import Chunk


def {module}(chunk: Chunk, factor: int = 2) -> Chunk:
    """Return *chunk* with its voxels multiplied.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype; it is not changed.
        factor: factor of all voxels.

    Returns:
        A chunk of the same box and shape.
    """
    return chunk.with_array(chunk.array * factor)


@transform
@click.option("--factor", type=int, default=2, show_default=True, help="Factor of all voxels.")
def command(factor: int) -> Callable[[Chunk], Chunk]:
    """Receive the options once; the returned function is called for every task."""
    return partial({module}, factor=factor)
'''

TEST = '''"""Tests of {name}."""

from pathlib import Path

import numpy as np
from {module} import {module}

from chunkflow_py import Chunk, Task
from chunkflow_py.cli.command_line import read_line

FILE = Path(__file__).with_name("{module}.py")
CHUNK = Chunk(np.arange(24).reshape(2, 3, 4), (10, 20, 30), (40, 4, 4))


def test_voxels_are_multiplied():
    """The result has the box and voxel size of the input, which does not change."""
    result = {module}(CHUNK, factor=3)
    np.testing.assert_array_equal(result.array, np.arange(24).reshape(2, 3, 4) * 3)
    assert (result.bbox, result.voxel_size_nm) == (CHUNK.bbox, CHUNK.voxel_size_nm)
    assert CHUNK.array.max() == 23


def test_it_works_in_a_pipeline():
    """The options of the command reach the function."""
    (operator,) = read_line(["plugin", "-f", str(FILE), "--factor", "3", "-o", "result"])
    task = operator.call(Task(items={{"chunk": CHUNK}}))
    assert task["result"].array.max() == 69
'''


@subcommand
@click.argument("name")
@click.option("--folder", default=".", show_default=True,
              help="Folder to write the two files to.")  # fmt: skip
def command(name: str, folder: str) -> Callable[[], None]:
    """Check the name of the operator, and return the function that writes the two files."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        near = "-".join(re.findall(r"[a-z0-9]+", name.lower().lstrip("0123456789")))
        hint = f"; try {near}" if near else ""
        msg = (
            f"{name!r} is not a valid command name; use lower-case words of letters and digits, "
            f"joined by hyphens{hint}"
        )
        raise OptionError(msg)
    if catalog.is_known(name):
        msg = f"a command with the name {name} already exists; choose another name"
        raise OptionError(msg)
    module = name.replace("-", "_")
    texts = {
        Path(folder) / f"{module}.py": OPERATOR,
        Path(folder) / f"test_{module}.py": TEST,
    }
    for path in texts:
        if path.exists():
            msg = f"{path} already exists and is not overwritten; choose another name or folder"
            raise OptionError(msg)

    def act() -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text.format(name=name, module=module), encoding="utf-8")
            echo(path)

    return act
