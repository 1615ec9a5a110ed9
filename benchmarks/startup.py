"""Start-up: `chunkflow --help` beside `python -c "import click"`, interleaved, medians.

The limit is 2.5 times; both run as whole processes.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

RESULTS = Path(__file__).parent / "results"
ROUNDS = 15


def seconds(command: list[str]) -> float:
    """Return the wall time of one run of *command*."""
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


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
    RESULTS.mkdir(exist_ok=True)
    machine = {"cpu": platform.processor() or platform.machine(), "python": sys.version.split()[0]}
    report = {"seconds": times, "ratio": ratio, "machine": machine}
    (RESULTS / "startup.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
