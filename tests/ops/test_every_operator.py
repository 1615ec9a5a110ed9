"""What holds for every command: a new file in chunkflow_py/ops is tested here at once."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import Operator

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


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_summary_and_example(name):
    """--help works, begins with the summary and shows an example line that uses the command."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert catalog.describe(name).summary in text
    assert f"Usage: cli {name}" in text
    assert "None]" not in text, "a range or a default that is none"
    assert re.search(rf"Example: chunkflow .*\b{name}\b", text)


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


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_is_one_short_sentence(name):
    """The summary is the docstring's first line, short, capitalised, with a full stop."""
    path = Path(catalog.path_of(name))
    doc = ast.get_docstring(ast.parse(path.read_text()))
    summary, _, rest = doc.partition("\n")
    assert catalog.describe(name).summary == summary
    assert summary.endswith(".")
    assert summary[0].isupper()
    assert len(summary) <= 72
    assert not rest or rest.startswith("\n"), "a blank line follows the first"
    assert catalog.load(name).help.startswith(summary)


@pytest.mark.parametrize("name", NAMES)
def test_options_say_their_default_and_what_they_do(name):
    """Each option has a help text, and one with a default shows it."""
    for option in options_of(name):
        assert option.help, f"{name} {option.opts[0]} has no help"
        settings = option.to_info_dict()
        switch = option.is_flag and not option.secondary_opts  # off unless it is given
        if settings["default"] is not None and not option.required and not switch:
            shown = option.show_default or "[default:" in option.help
            assert shown, f"{name} {option.opts[0]} does not show {settings['default']}"


@pytest.mark.parametrize("name", NAMES)
def test_short_options_are_used_once(name):
    """No two options of a command share a spelling."""
    spellings = [o for p in options_of(name) for o in (*p.opts, *p.secondary_opts)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("name", NAMES)
def test_bad_values_end_with_2(name):
    """A value of the wrong type, and an unknown option, are usage errors, without a traceback."""
    runner = CliRunner()
    for option in options_of(name):
        if isinstance(option.type, (click.types.StringParamType, click.Path)) or option.is_flag:
            continue
        values = [","] * option.nargs  # no number, no choice, no box, no list of names
        if getattr(option.type, "name", "") == "name":
            continue
        result = runner.invoke(cli, [name, option.opts[0], *values])
        assert result.exit_code == 2, f"{option.opts[0]}: {result.output}"
        assert "Traceback" not in result.output
    if name != "plugin":  # which hands unknown options on
        result = runner.invoke(cli, [name, "--no-such-option"])
        assert result.exit_code == 2
        assert "No such option" in result.output


@pytest.mark.parametrize("name", NAMES)
def test_missing_options_end_with_2(name):
    """Without an option that is required the line is a usage error."""
    required = [option for option in options_of(name) if option.required]
    if required:
        result = CliRunner().invoke(cli, [name])
        assert result.exit_code == 2
        assert "Missing option" in result.output


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


# --- transforms ---------------------------------------------------------------------------------

# With default options; a transform that has none for an option is covered by its own tests.
TRANSFORMS = [
    name
    for name in NAMES
    if decorator_of(name) == "transform" and not any(o.required for o in options_of(name))
]
BOX = BoundingBox.from_size((3, 4, 5), (4, 8, 8))


def arrays():
    """Return one array of each kind that flows through lines."""
    rng = np.random.default_rng(0)
    return {
        "image zyx": (rng.integers(0, 256, (4, 8, 8)).astype(np.uint8), "image"),
        "image czyx": (rng.integers(0, 256, (2, 4, 8, 8)).astype(np.uint8), "image"),
        "probability zyx": (rng.random((4, 8, 8), np.float32), "probability"),
        "affinity czyx": (rng.random((3, 4, 8, 8), np.float32), "affinity"),
        "segmentation zyx": (rng.integers(0, 9, (4, 8, 8)).astype(np.uint32), "segmentation"),
    }


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("key", list(arrays()))
def test_a_transform_keeps_the_place_and_its_input(name, key):
    """A transform keeps offset and voxel size and leaves its input alone, or says what it needs."""
    stage = catalog.load(name).main([], standalone_mode=False)
    assert isinstance(stage, Operator)
    array, kind = arrays()[key]
    before = array.copy()
    domain = BoundingBox.from_size((0, 0, 0), (16, 16, 16))
    chunk = Chunk(array, BOX.start, (40, 4, 4), kind, domain)
    task = Task(Region(BOX), {"chunk": chunk})
    result = error = None
    try:
        result = stage.call(task)["chunk"]
    except ChunkflowError as failure:
        error = failure
    assert np.array_equal(array, before)
    assert (chunk.voxel_offset, chunk.voxel_size_nm) == (BOX.start, (40, 4, 4))
    if result is None:
        assert len(str(error)) > 20
        return
    assert result is not chunk
    assert result.voxel_offset == BOX.start
    assert result.voxel_size_nm == (40, 4, 4)
    assert result.size == BOX.size
    assert result.domain == domain
