"""A plugin that writes down that a task begins, in the file of `counting_network`.

The first tasks wait until a number of workers, which have a file each in the same folder, have come
so far: otherwise the first worker would have done much of the work before the others have started.
"""

import os
import time
from pathlib import Path
from typing import Any

LONGEST_WAIT_S = 120.0


def execute(bbox: Any, workers: int = 1) -> None:
    """Write down the box of the task.

    Args:
        bbox: box of the task.
        workers: number of workers to wait for.
    """
    counts = Path(os.environ["BENCHMARK_COUNTS"])
    with counts.open("a") as file:
        file.write(f"task {bbox}\n")
    end = time.monotonic() + LONGEST_WAIT_S
    while len(list(counts.parent.iterdir())) < workers and time.monotonic() < end:
        time.sleep(0.01)
