"""A folder of small operators, found by file name like the real ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import chunkflow_py.ops
from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD = '''"""{summary}

Example: chunkflow {name}
"""

from __future__ import annotations

import click

from chunkflow_py import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import Skip, TaskSource, operator, source, transform

'''

OPERATORS = {
    "four-boxes": (
        "Make four tasks.",
        "@source\n"
        "def command():\n"
        "    return TaskSource([BoundingBox.from_size((z, 0, 0), (1, 1, 1)) for z in range(4)])\n",
    ),
    "fail-third": (
        "Fail on the third task, and skip the second.",
        "def body(task):\n"
        "    z = 2 if task.bbox is None else task.bbox.start.z\n"
        "    if z == 1:\n"
        "        raise Skip('nothing here')\n"
        "    if z == 2:\n"
        "        raise ChunkError('shapes (1, 2) and (2, 1) differ; crop one of them')\n"
        "    return task\n\n"
        "@operator('compute')\n"
        "def command():\n"
        "    return body\n",
    ),
    "skip-second": (
        "Skip the second task.",
        "def body(task):\n"
        "    if task.bbox.start.z == 1:\n"
        "        raise Skip('nothing here')\n"
        "    return task\n\n"
        "@operator('compute')\n"
        "def command():\n"
        "    return body\n",
    ),
    "refuse": (
        "Refuse options that do not go together.",
        "@operator('write')\n"
        "@click.option('--how', default='option')\n"
        "def command(how):\n"
        "    if how == 'option':\n"
        "        raise OptionError('--a and --b exclude each other; leave one out')\n"
        "    if how == 'ours':\n"
        "        raise ChunkError('no such model')\n"
        "    return 1 / 0\n",
    ),
    "say": (
        "Print that it works, on stdout.",
        "class Body:\n"
        "    def __enter__(self):\n"
        "        click.echo('entered')\n"
        "    def __exit__(self, *_):\n"
        "        pass\n"
        "    def __call__(self, task):\n"
        "        click.echo(f'working on {task}')\n"
        "        return task\n\n"
        "@operator('write')\n"
        "def command():\n"
        "    return Body()\n",
    ),
    "never-end": (
        "Work for a minute, and say so.",
        "import threading, time\n\n"
        "def body(task):\n"
        "    click.echo(threading.current_thread().name)\n"
        "    end = time.monotonic() + 60\n"
        "    while time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "    return task\n\n"
        "@operator('read')\n"
        "def command():\n"
        "    return body\n",
    ),
}

RUNNER = """import sys
import chunkflow_py.ops
from chunkflow_py.cli import catalog
from pathlib import Path
folder = Path(sys.argv.pop(1))
chunkflow_py.ops.__path__ = [str(folder), *chunkflow_py.ops.__path__]
catalog.OPS = folder
from chunkflow_py.cli.main import main
main()
"""


@dataclass
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of operators: two real ones and those of `OPERATORS`."""
    folder = tmp_path_factory.mktemp("ops")
    for name in ("create_chunk", "threshold"):
        shutil.copy(Path(catalog.__file__).parents[1] / "ops" / f"{name}.py", folder)
    for name, (summary, code) in OPERATORS.items():
        text = HEAD.format(summary=summary, name=name) + code
        (folder / f"{name.replace('-', '_')}.py").write_text(text)
    return folder


@pytest.fixture
def chunkflow(
    operators: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    """Return a function that runs a command line over the folder of operators."""
    both = [str(operators), *chunkflow_py.ops.__path__]  # the folder, and what operators share
    monkeypatch.setattr(chunkflow_py.ops, "__path__", both)
    monkeypatch.setattr(catalog, "OPS", operators)
    catalog.names.cache_clear()
    catalog.describe.cache_clear()
    before = set(sys.modules)

    def run(*args: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, *capfd.readouterr())

    yield run
    catalog.names.cache_clear()
    catalog.describe.cache_clear()
    for name in set(sys.modules) - before:
        package, _, operator = name.rpartition(".")
        if package == "chunkflow_py.ops":  # other tests import the real one
            del sys.modules[name]
            delattr(chunkflow_py.ops, operator)


@pytest.fixture
def start(operators: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a command line over the folder in a process of its own."""

    def run(*args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(operators), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run
