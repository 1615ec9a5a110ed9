"""Start-up and overhead: `chunkflow --help`, and a pipeline whose operator does nothing.

`chunkflow --help` is compared with `python -c "import click"`, as whole processes, interleaved,
medians; the limit is 2.5 times. The overhead of a task is the time of a pipeline divided by its
number of tasks; the limit is 35 microseconds.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from chunkflow_py import Pipeline, ops
from chunkflow_py.core.operator_base import OperatorBase
from chunkflow_py.core.task import Task
from chunkflow_py.pipeline import pipeline
from chunkflow_py.pipeline.operator import Operator

RESULTS = Path(__file__).parent / "results"
ROUNDS = 15
TASKS = 20_000


def seconds(command: list[str]) -> float:
    """Return the wall time of one run of *command*."""
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


class Nothing(OperatorBase):
    """An operator that does nothing."""

    def __call__(self, task: Task) -> Task:
        """Return the task."""
        return task


def task_seconds(ahead: int) -> float:
    """Return the time of a task, if the pipeline prefetches *ahead* tasks for each stage."""
    source = ops.generate_tasks(roi_start=(0, 0, 0), roi_size=(1, 1, TASKS), chunk_size=(1, 1, 1))
    body = Nothing()
    line = Pipeline([source, Operator("nothing", "compute", body, body, (), ())], ahead=ahead)
    line.check()
    start = perf_counter()
    count = sum(1 for _ in pipeline.Pipeline.run(line))
    return (perf_counter() - start) / count


def main() -> None:
    """Measure, print the ratio beside its limit, and write the results."""
    commands = {
        "import click": [sys.executable, "-c", "import click"],
        "chunkflow --help": [str(Path(sys.executable).with_name("chunkflow")), "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            times[name].append(seconds(command))
    medians = {name: median(values[1:]) for name, values in times.items()}
    ratio = medians["chunkflow --help"] / medians["import click"]
    for name, value in medians.items():
        print(f"{name:<18} {value * 1000:6.0f} ms")
    print(f"ratio {ratio:.2f} (limit 2.50)")
    overhead = {str(ahead): [task_seconds(ahead) for _ in range(ROUNDS)] for ahead in (0, 1)}
    for ahead, values in overhead.items():
        print(f"a task, --ahead {ahead}  {1e6 * median(values):6.1f} microseconds (limit 35)")
    RESULTS.mkdir(exist_ok=True)
    machine = {"cpu": platform.processor() or platform.machine(), "python": sys.version.split()[0]}
    report = {"seconds": times, "ratio": ratio, "task_seconds": overhead, "machine": machine}
    (RESULTS / "startup.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
