"""How busy GPUs are, as nvidia-smi says; here by a program of that name with its output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from rigs.workers import wait_for

from chunkflow_py.cli.gpu_use import GpuUse, GpuWatch, gpu_use

if TYPE_CHECKING:
    from pathlib import Path

TOLD = """#!/bin/sh
cat <<'END'
0, GPU-aaaa-1, 37, 1024, 81559
1, GPU-bbbb-2, [N/A], 2048, 81559
END
"""
FIRST = GpuUse("0", 0.37, 1024 * 2**20, 81559 * 2**20)
SECOND = GpuUse("1", None, 2048 * 2**20, 81559 * 2**20)


@pytest.fixture(autouse=True)
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, first on the path."""
    program = tmp_path / "nvidia-smi"
    program.write_text(TOLD)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [FIRST, SECOND]),
        ("0", [FIRST]),
        ("1,0", [FIRST, SECOND]),
        ("GPU-bbbb", [SECOND]),
        ("", []),
    ],
)
def test_those_that_the_process_may_use(
    visible: str | None, found: list[GpuUse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES selects GPUs by number or by UUID."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_use() == found


def test_they_are_watched() -> None:
    """A thread polls until the watch is left."""
    with GpuWatch() as watch:
        wait_for(lambda: bool(watch.now))
        assert watch.text() == "GPU 37% busy, 3.2 of 171 GB"
    assert GpuWatch().text() == ""


def test_a_machine_without_any_is_quiet(nvidia_smi: Path) -> None:
    """A program that fails, as without a driver, is none."""
    nvidia_smi.write_text("#!/bin/sh\necho no driver\nexit 9\n")
    assert gpu_use() == []
