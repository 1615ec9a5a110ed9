"""Run a line of commands by this package's command line, and tell when which lane was at work.

Keys of the job: ``line``, the words of the command line after ``chunkflow``; ``network``: whether
seconds inside of the network are told too.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

from measure import job, memory_bytes, report

from chunkflow_py.core import allocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator

LANES = ("read", "compute", "write")


class Forecast(logging.Handler):
    """Catches the forecast of memory that the line logs."""

    found: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the object that is printed."""
        if str(record.msg).startswith("expected peak:") and isinstance(record.args, tuple):
            self.found = record.args[0]


def busy_seconds(intervals: list[tuple[float, float]]) -> float:
    """Return how long at least one of (start, stop) was going on."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def run(line: list[str]) -> dict[str, Any]:
    """Run the line; return its times.

    Returns:
        ``wall_s``: from the beginning of the first operator to the end of the run; ``lanes``:
        seconds in which at least one task was in each lane; ``tasks``: how many there were;
        ``forecast_bytes``.

    Raises:
        SystemExit: the line failed.
    """
    from chunkflow_py.cli import main, progress_report

    intervals: dict[str, list[tuple[float, float]]] = {lane: [] for lane in LANES}
    lanes: dict[str, str] = {}
    done: dict[str, float] = {"tasks": 0, "end": 0.0}

    class Watch(progress_report.PipelineReport):
        def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:
            lanes.update({stage.name: stage.stage for stage in operators})
            super().run_started(operators, tasks)

        def operator_finished(self, label: str, task: Task, seconds: float) -> None:
            end = perf_counter()
            intervals[lanes[label]].append((end - seconds, end))
            super().operator_finished(label, task, seconds)

        def task_finished(self, task: Task) -> None:
            done["tasks"] += task.outcome is None
            super().task_finished(task)

        def run_finished(self) -> None:
            done["end"] = perf_counter()
            super().run_finished()

    watched: Any = progress_report
    watched.PipelineReport = Watch
    handler = Forecast()
    logging.getLogger("chunkflow_py").addHandler(handler)
    try:
        main.main(line)
    except SystemExit as stop:
        if stop.code:  # what went wrong has been printed
            raise
    start = min(first for spans in intervals.values() for first, _ in spans)
    return {
        "wall_s": done["end"] - start,
        "lanes": {lane: busy_seconds(spans) for lane, spans in intervals.items()},
        "tasks": int(done["tasks"]),
        "forecast_bytes": handler.found.bytes if handler.found else None,
    }


def forward_seconds() -> list[float]:
    """Return a list to which every engine adds its seconds in the network when it is closed."""
    from chunkflow_py.inference.engine import Engine

    found: list[float] = []
    close = Engine.close

    def closed(engine: Engine) -> None:
        found.append(engine.forward_seconds)
        close(engine)

    patched: Any = Engine
    patched.close = closed
    return found


def main() -> None:
    """Measure one line."""
    allocator.keep_freed_memory()
    allocator.sleep_while_waiting()
    asked = job()
    forward = forward_seconds() if asked.get("network") else []
    result = run(asked["line"])
    report({**result, "forward_s": sum(forward), "peak_bytes": memory_bytes("VmHWM")})


if __name__ == "__main__":
    main()
