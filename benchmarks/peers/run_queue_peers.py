"""Work off tasks that do nothing, by python-task-queue or daisy; ``peer`` of the job says which."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from functools import partial
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import taskqueue


@taskqueue.queueable
def nothing(number: int) -> None:
    """Do nothing."""


def poll(url: str, barrier: Any, times: Any) -> None:
    """Work off a queue of files, one of several processes; tell when it began and ended."""
    queue = taskqueue.TaskQueue(url, progress=False)
    barrier.wait()
    begun = monotonic()
    queue.poll(lease_seconds=120, stop_fn=queue.is_empty, tally=True, backoff_exceptions=[])
    times.put((begun, monotonic()))


def task_queue(job: dict[str, Any]) -> float:
    """Return the seconds that python-task-queue takes, its processes being there."""
    with TemporaryDirectory(dir=job["folder"]) as folder:
        url = f"fq://{folder}"
        queue = taskqueue.TaskQueue(url, progress=False)
        queue.insert([partial(nothing, number) for number in range(job["tasks"])])
        context = multiprocessing.get_context("fork")
        barrier, times = context.Barrier(job["processes"]), context.SimpleQueue()
        processes = [
            context.Process(target=poll, args=(url, barrier, times))
            for _ in range(job["processes"])
        ]
        for process in processes:
            process.start()
        found = [times.get() for _ in processes]
        for process in processes:
            process.join()
        assert queue.completed == job["tasks"], queue.completed
        return float(max(end for _, end in found) - min(begun for begun, _ in found))


def daisy(job: dict[str, Any]) -> float:
    """Return the seconds that daisy takes for its blocks, start of its workers included."""
    import daisy as package

    os.chdir(job["folder"])  # where it leaves its logs
    size = package.Coordinate((1, job["tasks"] // 100, 100))
    block = package.Roi((0, 0, 0), (1, 1, 1))
    task = package.Task(
        "nothing", package.Roi((0, 0, 0), size), block, block, process_function=lambda _: None,
        read_write_conflict=False, num_workers=job["processes"],
    )  # fmt: skip
    start = monotonic()
    assert package.run_blockwise([task])
    return monotonic() - start


def main() -> None:
    """Do what the job says."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    seconds = {"task-queue": task_queue, "daisy": daisy}[job["peer"]](job)
    print(json.dumps({"wall_s": seconds, "tasks": job["tasks"]}))


if __name__ == "__main__":
    main()
