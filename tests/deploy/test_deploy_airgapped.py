"""deploy/slurm/airgapped/: an installation from files, its module, and the recipe of an image."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "slurm" / "airgapped"
LMOD = Path("/usr/share/lmod/lmod/libexec/lmod")
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt")


@pytest.fixture
def wheelhouse(tmp_path):
    """A wheelhouse of this package alone, without what it needs, which is large."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "chunkflow_py", source / "chunkflow_py", ignore=ignored)
    shutil.copytree(FOLDER, source / "deploy" / "slurm" / "airgapped")
    said = _run(
        source / "deploy" / "slurm" / "airgapped" / "wheelhouse.sh", tmp_path / "wheels",
        EXTRAS="sqs,zarr",
    )  # fmt: skip
    assert ": 1 wheels," in said
    return tmp_path / "wheels"


def _run(script, *arguments, code=0, **variables):
    """Run a script; pip inside takes this package only, and looks at no index."""
    told = dict.fromkeys(("PIP_NO_DEPS", "PIP_NO_INDEX", "PIP_IGNORE_INSTALLED"), "1")
    told["PIP_NO_BUILD_ISOLATION"] = "0"  # which means yes
    done = subprocess.run(
        [script, *arguments], capture_output=True, text=True, check=False,
        env=os.environ | told | {"PYTHON": sys.executable, **variables},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_wheelhouse_installs_what_it_collected(wheelhouse, tmp_path):
    """What one script collects the other installs, with the same extras; damage is noticed."""
    # The libraries that it needs are those of this environment.
    libraries = str(Path(pytest.importorskip("click").__file__).parents[1])
    prefix = tmp_path / "prefix"
    said = _run(wheelhouse / "install.sh", prefix, PYTHONPATH=libraries)
    assert "chunkflow, version" in said
    assert (prefix / "bin" / "chunkflow").is_file()
    assert (wheelhouse / "extras").read_text() == "sqs,zarr\n"
    (wheel,) = wheelhouse.glob("*.whl")
    with wheel.open("ab") as stream:
        stream.write(b"damage")
    assert "FAILED" in _run(wheelhouse / "install.sh", tmp_path / "other", code=1)
    assert not (tmp_path / "other").exists()


def test_module_finds_the_program(tmp_path):
    """Loaded, the module named by a version puts that version's programs first."""
    if not LMOD.exists():
        pytest.skip("Lmod is not installed; apt-get install lmod")
    (tmp_path / "chunkflow").mkdir()
    shutil.copy(FOLDER / "chunkflow.lua", tmp_path / "chunkflow" / "0.2.0.lua")
    done = subprocess.run(
        [LMOD, "bash", "load", "chunkflow/0.2.0"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "MODULEPATH": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "\nPATH=/shared/apps/chunkflow/0.2.0/bin:" in done.stdout, done.stderr


def test_recipe_runs_what_is_installed():
    """The image is built from the wheelhouse alone, and its program is the process itself."""
    lines = (FOLDER / "chunkflow.def").read_text().splitlines()
    parts = "\n".join(line for line in lines if not line.startswith("#")).split("\n%")
    sections = {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in parts[1:]}
    assert parts[0].split() == ["Bootstrap:", "localimage", "From:", "base.sif"]
    assert sections["files"].split() == ["wheelhouse", "/opt/wheelhouse"]
    assert "/opt/wheelhouse/install.sh /opt/chunkflow" in sections["post"]
    assert 'exec chunkflow "$@"' in sections["runscript"]
