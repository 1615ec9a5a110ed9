"""The check of a GPU machine, as far as it can be tested without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_check import counted, problems
from processes import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu_check.py"

# Hides everything but the core's libraries and pytest, as in an environment that has no more.
IN_THE_CORE = """
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from packaging.requirements import Requirement

def name_of(text):
    return text.lower().replace("_", "-")

core, open_ = set(), ["chunkflow_py", "pytest"]
while open_:
    name = name_of(open_.pop())
    if name in core:
        continue
    core.add(name)
    try:
        needs = map(Requirement, requires(name) or ())
    except PackageNotFoundError:
        continue
    plain = {"extra": ""}
    open_ += [each.name for each in needs if each.marker is None or each.marker.evaluate(plain)]
homes = packages_distributions()
hidden = {name for name, owners in homes.items() if not core & set(map(name_of, owners))}
assert {"hypothesis", "moto", "zarr", "scipy"} <= hidden

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hide())
import gpu_check
import pytest

tests = gpu_check.TESTS
sys.exit(pytest.main(["-q", "--collect-only", "-c", str(tests / "gpu.ini"), str(tests)]))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_fails() -> None:
    """One sentence, exit code 1, no result."""
    done = subprocess.run([sys.executable, SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check needs a CUDA device, and PyTorch ")
    assert done.stderr.count("\n") == 1


def test_it_needs_the_core_and_pytest_only() -> None:
    """Script and tests are imported where no other library is, those of extras and tests hidden."""
    environment = {
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(SCRIPT.parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_CORE], env=os.environ | environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_gpu.py::" in done.stdout


def test_every_test_that_needs_a_gpu_is_in_its_reach() -> None:
    """Nothing outside of tests/gpu is marked gpu."""
    marked = [path for path in (ROOT / "tests").rglob("*.py") if "mark.gpu" in path.read_text()]
    assert {path.parent.name for path in marked if path != Path(__file__)} == {"gpu"}


def test_tests_are_counted(tmp_path: Path) -> None:
    """Failures and errors by name, skips with their reasons; no test at all is a failure."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_error(broken): pass\n"
        "class TestCase:\n"
        "    def test_not_here(self): pytest.skip('no library')\n"
    )
    file = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path]
    subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--junitxml={file}", "test_it.py"], check=False,
        capture_output=True, cwd=tmp_path, env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert counted(file) == {
        "passed": 1,
        "failed": ["test_it::test_bad", "test_it::test_error"],
        "skipped": {"TestCase::test_not_here": "no library"},
    }
    file.write_text("<testsuites><testsuite/></testsuites>")
    assert counted(file)["failed"] == ["no test was found"]


def _report(**changes: Any) -> dict[str, Any]:
    report = {
        "tests": {"passed": 3, "failed": [], "skipped": {}},
        "errors": {"float32": {"largest": 1e-6}, "float16": {"failed": "no memory"}},
        "devices": [{"name": "A"}, {"name": "A"}],
        "engine_errors": [0.0, 1e-6],
        "devices_agree": True,
        "speed": {"runs": {"float32": {"wall_s": 1.0}, "float16": {"failed": "no memory"}}},
    }
    return report | changes


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"tests": {"failed": ["test_bad"]}}, "test test_bad failed"),
        ({"errors": {"float32": {"largest": nan}}}, "float32 differs from the CPU"),
        ({"errors": {"float32": {"failed": "ValueError: x"}}}, "ValueError: x"),
        ({"engine_errors": [0.0, nan]}, "the engine on A differs from the CPU by nan"),
        ({"engine_errors": [0.5, 0.0]}, "the engine on A differs from the CPU by 0.5"),
        ({"devices_agree": False}, "two devices of one model compute different bytes"),
        ({"devices_agree": False, "devices": [{"name": "A"}, {"name": "B"}]}, None),
        ({"speed": {"runs": {"float32": {"failed": "x"}}}}, "float32 was not timed: x"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], found: str | None) -> None:
    """Wrong values, NaN included, failed tests and devices that disagree; slow is not wrong."""
    said = problems(_report(**changes))
    assert len(said) == (found is not None)
    assert found is None or found in said[0]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_all_of_it_runs_on_the_cpu(tmp_path: Path) -> None:
    """With tiny sizes: errors, speed and versions are in the results."""
    file = tmp_path / "results.json"
    command = [sys.executable, SCRIPT, "--smoke", "--output", file]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert json.loads(done.stdout) == report
    assert report["problems"] == report["tests"]["failed"] == []
    assert report["tests"]["skipped"]
    assert report["errors"]["float32"]["largest"] == 0
    assert report["machine"]["torch"] == torch.__version__
    run = report["speed"]["runs"]["float32"]
    assert 0.5 < run["wall_over_bare_forward"] < 20
    assert run["mvoxel_per_s"] > 0
    assert 0 <= run["busy_share"] <= 1
