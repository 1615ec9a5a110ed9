"""Run the tasks of a pipeline in several processes of this machine, without queue and ledger.

```
this process                              each worker process
make and check the pipeline               make the pipeline again, and receive its tasks
send tasks                          --->  run the tasks
call the listener                   <---  report the outcome and the time of each operator
```

The processes are worker processes (see `chunkflow_py.run.worker.worker_process`), as in a run. They
are killed if this process ends, even by SIGKILL.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.host_memory import available_host_bytes, describe_bytes
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import ChunkflowError, OperatorError, OptionError
from chunkflow_py.pipeline.operator import Source
from chunkflow_py.run.worker.task_receiver import Job
from chunkflow_py.run.worker.worker_pool import ProcessStart, WorkerProcess
from chunkflow_py.run.worker.worker_process import LogMessage, PipelineBroken, PipelineReady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot
    from chunkflow_py.run.worker.worker_process import TaskEnded, TaskFeed

logger = logging.getLogger(__name__)

_WATCH_S = 0.25


def run_in_processes(
    make: Callable[..., Pipeline],
    pipeline: Pipeline,
    processes: int,
    *,
    ahead: int | None = None,
    threads: int | None = None,
    seen: Callable[[tuple[ProcessSnapshot, ...]], None] = lambda _: None,
) -> Iterator[Task]:
    """Check a pipeline, run all its tasks in several processes, and yield the failed tasks.

    Args:
        make: picklable function that makes the pipeline in a process; its only argument is
            ``ahead``.
        pipeline: the pipeline that *make* returns. Its source provides the tasks, and its listener
            is called in this process.
        processes: number of processes.
        ahead: number of tasks to prefetch per stage; ``None`` chooses 1 if memory suffices, else 0.
        threads: number of threads of compute libraries in each process; ``None`` for the number
            that the environment sets.
        seen: function that is called regularly with the states of the processes, to display
            progress.

    Raises:
        OptionError: the processes are expected to need more memory than is available.
        ChunkflowError: a check of the pipeline failed, or a process has died.
    """
    pipeline.check()
    chosen = _choose_ahead(pipeline, processes, ahead)
    start = ProcessStart(partial(_fed_pipeline, make, chosen), threads=threads)
    tasks: Any = pipeline.source.body if pipeline.source else [Task()]
    listener = pipeline.listener
    missing = 0
    with ExitStack() as stack:
        listener.run_started(pipeline.operators, len(tasks))
        stack.callback(listener.run_finished)
        pool = _Pool(tasks)
        stack.callback(pool.kill)
        pool.start(start, min(processes, len(tasks)))
        for task in pool.run(seen):
            for name, seconds in task.seconds.items():
                listener.operator_finished(name, task, seconds)
            listener.task_finished(task)
            missing += task.missing_blocks
            if task.failed:
                yield task
    if missing:
        logger.info(
            "%d %s missing in the volume and read as the fill value (--fill-missing)",
            missing,
            "block was" if missing == 1 else "blocks were",
        )


def _fed_pipeline(make: Callable[..., Pipeline], ahead: int, feed: TaskFeed) -> Pipeline:
    pipeline = make(ahead=ahead)
    feed.boxes = pipeline.source.hooks.boxes if pipeline.source else None
    pipeline.source = Source("tasks", feed)
    pipeline.check()
    return pipeline


def _choose_ahead(pipeline: Pipeline, processes: int, ahead: int | None) -> int:
    """Return how many tasks each stage can prefetch so that all processes fit into memory.

    Raises:
        OptionError: the processes do not fit into memory with any allowed number.
    """
    available = available_host_bytes()
    each = 0
    for chosen in (1, 0) if ahead is None else (ahead,):
        each = pipeline.estimated_memory(chosen).bytes
        if available is None or processes * each <= available:
            logger.info("expected peak: %d times %s", processes, describe_bytes(each))
            return chosen
    msg = (
        f"--processes {processes} is expected to take {processes} times {describe_bytes(each)} of "
        f"memory, but {describe_bytes(available or 0)} are available; use fewer "
        "processes or a smaller --task-size"
    )
    raise OptionError(msg)


class _Pool:
    """The processes, and the tasks that are not yet sent to a process.

    Args:
        tasks: the tasks of the pipeline.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._messages: SimpleQueue[tuple[WorkerProcess, Sequence[Any] | None]] = SimpleQueue()
        self._jobs = (Job(n, str(task.region), [], "") for n, task in enumerate(tasks))
        self._processes: list[WorkerProcess] = []

    def start(self, start: ProcessStart, number: int) -> None:
        def post(process: WorkerProcess, messages: Sequence[Any] | None) -> None:
            self._messages.put((process, messages))

        for each in range(number):
            self._processes.append(WorkerProcess(each, start, None, post))

    def run(self, seen: Callable[[tuple[ProcessSnapshot, ...]], None]) -> Iterator[Task]:
        """Yield each task when it has ended, with its outcome.

        Args:
            seen: function to call with the current states of the processes.

        Raises:
            ChunkflowError: a process has died.
        """
        running = len(self._processes)
        while running:
            seen(tuple(each.snapshot() for each in self._processes))
            try:
                process, messages = self._messages.get(timeout=_WATCH_S)
            except Empty:
                continue
            if messages is None:
                self._check_ended(process)
                running -= 1
                continue
            for message in messages:
                if isinstance(message, PipelineReady):
                    process.ready(message)
                elif isinstance(message, PipelineBroken):
                    process.broken = message
                elif isinstance(message, LogMessage):
                    logger.log(message.level, "%s", message.text)
                else:
                    yield _ended_task(process.take(message.slot), message)
            self._feed(process)

    def _feed(self, process: WorkerProcess) -> None:
        """Send a process as many tasks as its pipeline accepts; if none remain, end the process."""
        while len(process.jobs) < process.window and not process.is_ending:
            job = next(self._jobs, None)
            if job is None:
                process.end()
            else:
                process.give([job])

    def _check_ended(self, process: WorkerProcess) -> None:
        process.reap()
        cause, output, _ = process.how_ended()
        tasks = ", ".join(process.jobs[slot].box for slot in process.begun())
        if process.broken is not None and process.broken.is_usage:
            raise OptionError(cause)
        if process.broken is not None or process.jobs or not process.is_ending:
            logger.debug("process %d: %s", process.number, output)
            during = f" during task {tasks}" if tasks else ""
            msg = (
                f"process {process.number} of {len(self._processes)} has died{during}: {cause}; "
                "the output of finished tasks is stored; run the same command again, with fewer "
                "--processes if memory was short"
            )
            raise ChunkflowError(msg)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.reap()
            process.close()


def _ended_task(job: Job | None, ended: TaskEnded) -> Task:
    task = Task(Region.parse(job.box) if job else None, seconds=dict(ended.seconds))
    task.missing_blocks = ended.missing_blocks
    if ended.fault is not None:
        operator = next(reversed(ended.seconds), "")
        box = None if task.region is None else str(task.region)
        task.outcome = OperatorError.reported(operator, box, ended.fault.reason)
    elif ended.state == "skipped":
        task.outcome = Skip(ended.reason or "")
    return task
