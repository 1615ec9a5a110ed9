"""Let this package send, receive or work; ``what`` of the job says which."""

from __future__ import annotations

import json
import resource
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time
from typing import Any

BOX = ("64", "512", "512")


def command_line(*words: str) -> None:
    """Run a line of commands in this process, as it is typed.

    Raises:
        SystemExit: it failed.
    """
    from chunkflow_py.cli.main import main

    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def peak_bytes() -> int:
    """Return the peak of the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])


def kind_of(queue: str) -> Any:
    """Return the class of a queue."""
    from chunkflow_py.queue.queue_protocol import SCHEMES

    module, name = SCHEMES[queue.partition("://")[0]]
    return getattr(__import__(module, fromlist=[name]), name)


def grid_of(tasks: int) -> tuple[str, ...]:
    """Return the words that make so many tasks, a multiple of 100."""
    return ("-s", "0", "0", "0", "-g", "1", str(tasks // 100), "100", "-c", *BOX)


def send(job: dict[str, Any]) -> dict[str, Any]:
    """Send boxes by generate-tasks; the time is that of the queue's `send`, grid included."""
    kind = kind_of(job["queue"])
    whole, found = kind.send, {}

    def timed(queue: Any, bodies: Any) -> int:
        start, cpu = perf_counter(), process_time()
        sent: int = whole(queue, bodies)
        found.update(wall_s=perf_counter() - start, cpu_s=process_time() - cpu, tasks=sent)
        return sent

    kind.send = timed
    words = ("-q", job["queue"], "--create-queue")
    command_line("generate-tasks", *grid_of(job["tasks"]), *words)
    return {**found, "peak_bytes": peak_bytes()}


def receive(job: dict[str, Any]) -> dict[str, Any]:
    """Receive and acknowledge in batches of ten."""
    from chunkflow_py.queue.queue_protocol import open_queue

    queue = open_queue(job["queue"])
    done = 0
    start, cpu = perf_counter(), process_time()
    while done < job["tasks"]:
        messages = queue.receive(10, 120)
        assert messages, "the queue is empty"
        assert not queue.acknowledge(messages)
        done += len(messages)
    return {"wall_s": perf_counter() - start, "cpu_s": process_time() - cpu, "tasks": done}


def fetch(job: dict[str, Any]) -> dict[str, Any]:
    """Run the line of today's users, which takes and deletes one task at a time."""
    tasks = str(job["tasks"])
    line = ("fetch-task-from-sqs", "-q", job["queue"], "-n", tasks, "plugin", "-f", job["plugin"])
    from chunkflow_py.queue import queue_tasks as module

    opened: list[float] = []
    enter = module.QueueTasks.__enter__

    def timed(source: Any) -> Any:
        result = enter(source)
        opened[:] = perf_counter(), process_time()
        return result

    module.QueueTasks.__enter__ = timed  # type: ignore[method-assign]
    command_line(*line, "delete-task-in-queue")
    wall, cpu = perf_counter() - opened[0], process_time() - opened[1]
    return {"wall_s": wall, "cpu_s": cpu, "tasks": job["tasks"]}


def line(job: dict[str, Any]) -> dict[str, Any]:
    """Run the line of `work` over as many tasks in this process: no queue, lease or ledger."""
    from chunkflow_py.ops.plugin import Plugin

    begun: list[float] = []
    call = Plugin.__call__

    def timed(plugin: Any, task: Any) -> Any:
        if not begun:
            begun.append(perf_counter())
        return call(plugin, task)

    Plugin.__call__ = timed  # type: ignore[method-assign]
    command_line("generate-tasks", *grid_of(job["tasks"]), "plugin", "-f", job["plugin"])
    return {"wall_s": perf_counter() - begun[0], "tasks": job["tasks"]}


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Submit a run of a plugin, and work it off; times are those that the processes have seen."""
    from timed_line import read_times, timed_line

    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import WorkOptions
    from chunkflow_py.run.worker.worker import work as work_off
    from chunkflow_py.run.worker.worker_limits import WorkerSettings

    kind, last, folding = kind_of(job["queue"]), [0.0], [0.0]
    acknowledge, fold = kind.acknowledge, Ledger.compact

    def timed_acknowledge(queue: Any, messages: Any) -> Any:
        result = acknowledge(queue, messages)
        last[0] = monotonic()
        return result

    def timed_fold(ledger: Any) -> None:
        start = monotonic()
        fold(ledger)
        folding[0] += monotonic() - start

    kind.acknowledge, Ledger.compact = timed_acknowledge, timed_fold  # type: ignore[method-assign]
    with TemporaryDirectory(dir=job["folder"]) as folder:
        run, times = f"{folder}/noop.run", Path(folder, "times")
        times.mkdir()
        plugin = ("plugin", "-f", job["plugin"], "-a", f"seconds={job['seconds']}")
        submit = ("submit", "--run", run, "--queue", job["queue"], "--no-rehearse")
        command_line(*submit, "generate-tasks", *grid_of(job["tasks"]), *plugin)
        settings = WorkerSettings(processes=job["processes"], watches_notices=False)
        cpu, start = process_time(), monotonic()
        code, words = work_off(
            RunDirectory(run), WorkOptions(settings, "benchmark"), partial(timed_line, str(times))
        )
        end, cpu = monotonic(), process_time() - cpu
        assert code == 0, words
        found = judged(read_times(str(times)), last[0])
        counts = RunDirectory(run).ledger("plugin").counts()
        assert counts.done == job["tasks"], counts
        files = sum(path.is_file() for path in Path(run, "ledger").rglob("*"))
    return {
        **found,
        "wall_s": found["wall_s"] + folding[0],
        "fold_s": folding[0],
        "whole_s": end - start,
        "ledger_files": files,
        "tasks": job["tasks"],
        "supervisor_cpu_s": cpu,
        "children_cpu_s": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    }


def judged(processes: list[list[tuple[float, float]]], end: float) -> dict[str, Any]:
    """Return what times of tasks say.

    Args:
        processes: for each begin and end of its tasks, seconds of one clock.
        end: when all was recorded and acknowledged.

    Returns:
        ``wall_s`` from the begin of the first task to *end*; ``last_s`` from the end of the last
        one to *end*; ``gap_s`` and ``mean_gap_s`` between two tasks of a process, median and mean;
        ``at_work``, the share of time in tasks from when all processes have begun until the first
        has no more.
    """
    processes = [times for times in processes if times]  # others began too late to get any
    gaps = [
        max(0.0, after[0] - before[1]) for times in processes for before, after in pairwise(times)
    ]
    since = max(times[0][0] for times in processes)
    until = min(times[-1][1] for times in processes)
    busy = sum(
        max(0.0, min(stop, until) - max(start, since))
        for times in processes
        for start, stop in times
    )
    return {
        "wall_s": end - min(times[0][0] for times in processes),
        "last_s": end - max(times[-1][1] for times in processes),
        "gap_s": median(gaps),
        "mean_gap_s": fmean(gaps),
        "at_work": busy / (len(processes) * max(1e-9, until - since)),
        "processes": len(processes),
    }


def main() -> None:
    """Do what the job says."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    found = globals()[job["what"]](job)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
