"""The tables of the measurements on GPUs."""

from __future__ import annotations

from typing import Any

from gpu_report import PAGE, documented, kernel_table, speed_lines
from page import written_between

RUN = {
    "mvoxel_per_s": 20.0, "wall_over_bare_forward": 1.04, "outside_share": 0.01,
    "busy_share": 0.96, "device_bytes": 2e9,
}  # fmt: skip


def _verdicts(engine: float = 1e-6, **changes: float) -> dict[str, str]:
    report: dict[str, Any] = {
        "devices": [{"name": "a GPU"}],
        "tests": {"passed": 2, "failed": [], "skipped": {}},
        "engine_errors": [engine],
        "errors": {},
        "speed": {"runs": {"float32": RUN | changes}},
    }
    return {line.what: line.verdict for line in speed_lines(report) if line.verdict}


def test_speed_and_errors_are_judged() -> None:
    """By the limits of the project: 1.05 times bare passes, busy 95 %, an error of 1e-4."""
    assert set(_verdicts().values()) == {"met"}
    slow = _verdicts(2e-4, wall_over_bare_forward=1.06, busy_share=0.94)
    assert set(slow.values()) == {"not met"}


def test_kernels_that_were_not_measured_are_left_out() -> None:
    """A rule whose process failed has no column."""
    row = {"dtype": "float32", "layout": "contiguous", "ms": 2, "graph_ms": 1, "error": 0.1}
    network = {"patch": [1, 2, 3], "flops": 5e12, "rows": [row]}
    report = {"device": "a GPU", "kernels": {"slow": {"failed": "time"}, "fast": {"N": network}}}
    table = kernel_table(report)
    assert "| float32 | contiguous | 1.00 | 2.00 | 1.0e-01 |" in table
    assert "slow" not in table


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks-gpu.md are those of the results, to the letter."""
    assert written_between(PAGE) == documented(), "run: python benchmarks/gpu_report.py"
