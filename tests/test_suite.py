"""Properties of the test suite itself, however it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# Prints the signals that a program ignores when this process starts it.
IGNORED_BY_CHILDREN = """
import signal
import subprocess
import conftest
row = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True).stdout
mask = int(row.split()[1], 16)
# The C library keeps two signals to itself, which no program can set.
print([int(number) for number in signal.valid_signals() if mask >> (number - 1) & 1])
"""


def _ignore_all() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_ignore_no_signal_that_the_suite_was_started_with() -> None:
    """Under nohup, or in the background of a script, tests see the usual signals."""
    result = subprocess.run(
        [sys.executable, "-c", IGNORED_BY_CHILDREN], cwd=TESTS, preexec_fn=_ignore_all,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "[]\n"


LONG_AND_SHORT = """
import pytest

def test_a(): pass

@pytest.mark.slow
def test_b(): pass

@pytest.mark.drill
@pytest.mark.timeout(900)
def test_c(): pass

def test_d(): pass

@pytest.mark.slow
def test_e(): pass

@pytest.mark.drill
def test_f(): pass
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_long_tests_come_first(tmp_path: Path, seed: str) -> None:
    """In any shuffle, tests with own limits come first, then slow ones, then drills."""
    (tmp_path / "test_it.py").write_text(LONG_AND_SHORT)
    options = ["-p", "conftest", "-c", "/dev/null", "--rootdir", tmp_path, "--collect-only", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--randomly-seed={seed}", tmp_path],
        cwd=TESTS, capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )  # fmt: skip
    order = [row[-1] for row in result.stdout.splitlines() if "::" in row]
    assert order[0] == "c"
    assert set(order[1:3]) == {"b", "e"}
    assert order[3] == "f"
    assert set(order[4:]) == {"a", "d"}


def test_quick_runs_the_tests_of_a_changed_file() -> None:
    """`make quick` finds tests by name and by import, and its fixed list names existing files."""
    import quick

    assert "tests/core/test_geometry.py" in quick.core()
    assert "tests/ops/test_threshold.py" in quick.tests_of("chunkflow_py/ops/threshold.py")
    assert "tests/core/test_geometry.py" in quick.tests_of("chunkflow_py/core/geometry.py")
    assert quick.tests_of("tests/test_suite.py") == {"tests/test_suite.py"}
    assert quick.tests_of("README.md") == set()
