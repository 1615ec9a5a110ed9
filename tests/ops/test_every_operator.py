"""What holds for every command: a new file in chunkflow_py/ops is tested here at once."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.testing.operator_contract import OperatorContract, TransformContract

NAMES = catalog.names()

# Nothing of these may be imported before a line is known to be right.
HEAVY = {
    "PIL", "boto3", "botocore", "cc3d", "cloudfiles", "cloudvolume", "dask", "fastremap", "h5py",
    "matplotlib", "neuroglancer", "numcodecs", "numpy", "obstore", "scipy", "skimage",
    "tensorstore", "tifffile", "torch", "tqdm", "waterz", "zarr",
}  # fmt: skip


def options_of(name):
    """Return the options of a command, without --help."""
    return [p for p in catalog.load(name).params if isinstance(p, click.Option)]


def decorator_of(name):
    """Return the name of the decorator of a command's function."""
    tree = ast.parse(Path(catalog.path_of(name)).read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            first = node.decorator_list[0]
            return first.func.id if isinstance(first, ast.Call) else first.id
    pytest.fail(f"{name} has no function command")


class TestEveryOperator(OperatorContract):
    """Every operator keeps the promises that operators of others are held to."""

    @pytest.fixture(params=NAMES, name="operator")
    def _operator(self, request):
        self.takes_unknown_options = request.param == "plugin"
        return catalog.load(request.param)


class TestEveryTransform(TransformContract):
    """Those without required options; the others are covered by tests of their own."""

    @pytest.fixture(
        name="operator",
        params=[
            name
            for name in NAMES
            if decorator_of(name) == "transform"
            and not any(o.required for o in options_of(name))
            and name != "inference"  # needs a patch size, unless the network is a MONAI bundle
        ],
    )
    def _operator(self, request):
        return catalog.load(request.param)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_options_exist(name):
    """The options of the example are those of its commands."""
    doc = ast.get_docstring(ast.parse(Path(catalog.path_of(name)).read_text()))
    lines = re.search(r"Example: chunkflow (.*?)(\n\n|\Z)", doc, re.DOTALL)[1]
    current = cli
    for word in lines.replace("\\\n", " ").split():
        if word in NAMES:
            current = catalog.load(word)
        elif re.match(r"--?[a-z]", word):
            known = {o for p in current.params for o in (*p.opts, *p.secondary_opts)}
            assert word.partition("=")[0] in known, f"{word} is no option of {current.name}"


def test_importing_every_operator_imports_nothing_heavy():
    """All commands together import click and the standard library, no NumPy and no torch."""
    program = (
        "import sys\n"
        "from chunkflow_py.cli import catalog\n"
        "for name in catalog.names(): catalog.load(name)\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())
