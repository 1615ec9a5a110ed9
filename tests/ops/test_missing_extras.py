"""Optional libraries that are not installed: told when the line is read, not by its first task."""

import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli

MAP = "create-chunk --size 4 8 8 --dtype float32"
NEEDS = [
    ("adjust-pre", "scipy"),
    ("agglomerate", "waterz"),
    ("agglomerate --fragments seeded", "skimage"),
    ("aggregate-skeleton-fragments -f file://skeletons", "kimimaro"),
    ("clahe", "skimage"),
    ("connected-components", "cc3d"),
    ("detect-duplicate-post", "scipy"),
    ("detect-points", "scipy"),
    ("detect-post-synapses", "scipy"),
    ("detect-pre-synapses", "scipy"),
    ("evaluate-segmentation --relabel", "scipy"),
    ("fill-segmentation-holes", "cc3d"),
    ("fragment-affinity --edges-path file://edges", "cc3d"),
    ("mask-out-objects", "fastremap"),
    ("median-filter", "scipy"),
    ("mesh", "zmesh"),
    ("mesh --dust-threshold 8", "fastremap"),
    ("preview --output-path x.png", "PIL"),
    ("relabel --table-path file://table", "fastremap"),
    ("save-nrrd -f x.nrrd", "nrrd"),
    ("save-precomputed -v precomputed://file://x", "zlib_ng"),
    ("skeletonize", "kimimaro"),
]
LATE = {"napari"}  # shows what others have made, when it is entered: before the first task as well


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "library"), NEEDS)
def test_told_before_the_first_task(command, library, monkeypatch, tmp_path):
    """The line says what to install, and nothing has run; a run of the line is not made."""
    monkeypatch.setitem(sys.modules, library, None)  # it cannot be found or imported
    line = f"{MAP} save-h5 -f made.h5 {command}"
    told = CliRunner().invoke(cli, shlex.split(line))
    assert told.exit_code == 1
    assert f"needs {library}, which is not installed; install it with" in told.output
    assert "pip install 'chunkflow_py[" in told.output
    assert "failed" not in told.output
    assert not (tmp_path / "made.h5").exists()
    tasks = "generate-tasks --roi-size 4 8 8 --chunk-size 4 8 8"
    told = CliRunner().invoke(cli, shlex.split(f"submit --no-rehearse --run r {tasks} {line}"))
    assert told.exit_code == 1
    assert f"needs {library}" in told.output
    assert not (tmp_path / "r").exists()


def test_a_source_tells_it_too(monkeypatch):
    """mesh-manifest needs a library for levels of detail only."""
    monkeypatch.setitem(sys.modules, "DracoPy", None)
    told = CliRunner().invoke(cli, shlex.split("mesh-manifest -v file://meshes --multires"))
    assert told.exit_code == 1
    assert "mesh-manifest --multires needs DracoPy" in told.output


@pytest.mark.parametrize("name", sorted(catalog.names()))
def test_every_operator_that_imports_one_checks_it(name):
    """Who translates the failing import of a library has looked for it before."""
    text = Path(catalog.path_of(name)).read_text()
    assert name in LATE or "with needs_extra(" not in text or "check_extra(" in text
