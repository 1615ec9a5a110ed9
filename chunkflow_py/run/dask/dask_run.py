"""Runs on an existing Dask cluster, whose scheduler takes the place of the queue.

```
tasks without a record -> scheduler: a few tasks per thread -> workers: run tasks -> ledger
                              ^                                      |
                              '-- retry after a delay <-- failure <--'
```

Workers record finished tasks themselves. So if this process, the scheduler or a worker dies, only
the running tasks are lost, and a repeated call of `run_on_dask` runs the missing tasks. Several
calls on one run at the same time are harmless.

If a worker dies, Dask blames all tasks that the worker had. After a few such deaths, Dask gives up
on a task (``KilledWorker``). The task is then retried while no other task runs. If Dask gives up on
the task again, each death of a worker during this retry counts as one failure of the task.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import secrets
import signal
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.interrupts import Interrupted, on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, OptionError, needs_extra
from chunkflow_py.run.dask.dask_worker import (
    PACKAGE,
    SAME_VERSIONS,
    NotEndedError,
    WorkOrder,
    perform,
    release,
    versions_here,
)
from chunkflow_py.run.exchange_store import PartRemover, remove_parts
from chunkflow_py.run.ledger.ledger_record import FailedAttempt
from chunkflow_py.run.sending_order import tasks_in_order
from chunkflow_py.run.worker.failure_policy import (
    AttemptLimits,
    FailurePolicy,
    Fault,
    count_failure,
    fault_of,
)
from chunkflow_py.run.worker.worker import (
    COMPLETE,
    FAILURES,
    WORK_LEFT,
    check_version,
    pipeline_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.dask.dask_worker import TaskNotEnded
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import MakeSourcedPipeline, WorkOptions

logger = logging.getLogger(__name__)

CONNECT_S = 30.0
TASKS_PER_THREAD = 4  # simultaneous tasks of the scheduler
LEAST_AT_ONCE = 128  # enough queued work to make an adaptive cluster grow
CLUSTER_CHECK_S = 5.0  # time between two checks of the size of the cluster
TICK_S = 0.2
LOG_S = 60.0
BROKEN_PIPELINES = 3  # consecutive failures to create the pipeline that end the step


def run_on_dask(
    home: RunDirectory,
    address: str,
    make_pipeline: MakeSourcedPipeline,
    working: WorkOptions,
) -> tuple[int, str]:
    """Run the steps of a run on a Dask cluster; return the exit code and a message for the user.

    Args:
        home: the run directory.
        address: address of the scheduler, ``tcp://HOST:PORT``.
        make_pipeline: picklable function that takes the `PipelineSource` of a step and a source of
            tasks, and returns the pipeline of the step.
        working: options of the subcommand that runs the tasks. On Dask, only these options apply:
            the limits of failures, tasks and time, the permission to run code, the number of
            threads, and the worker name. The worker name is recorded for tasks whose Dask worker
            has died.

    Raises:
        OptionError: the command line is wrong, a worker would compute different bytes than the
            first worker of the run, or the cluster and this process have different versions of a
            package.
        ChunkflowError: the ledger refuses access, or the pipeline cannot be created.
    """
    _check(working)
    check_version(home, must_be_same=working.same_version)
    for stage in home.spec.steps:
        # check that code is allowed before anything is sent
        pipeline_source(home, stage, allow_code=working.allow_code)
    settings = working.settings
    limits = AttemptLimits(settings.max_failures, settings.max_transient, settings.retry_s)
    with needs_extra("dask", "run --on dask://"):
        import distributed  # noqa: F401
    with StopCondition() as stop:
        bound_s = settings.limits.deadline_s
        stop.deadline = None if bound_s is None else time.monotonic() + bound_s
        try:
            client = _connect(address)
        except OSError as error:
            message = (
                f"no Dask scheduler answers at {address} ({error}); correct the address, or start "
                "the scheduler"
            )
            return WORK_LEFT, message
        try:
            check_cluster(client, address)
            while (name := home.current_step()) is not None:
                order = WorkOrder(
                    home.address,
                    name,
                    make_pipeline,
                    limits,
                    settings.task_limit,
                    working.allow_code,
                    working.threads,
                    settings.ahead,
                    versions_here(),
                    working.same_version,
                )
                home.renew(name)
                Dispatcher(client, home, order, working, stop).run()
                counts, tasks = home.ledger(name).counts(), len(home.plan(name))
                if counts.finished < tasks:
                    missing = tasks - counts.finished
                    message = (
                        f"stopped: {stop.reason or 'a repair or retry has reopened tasks'}; "
                        f"{missing} of {tasks} tasks of step {name} are not finished"
                    )
                    return WORK_LEFT, message
                home.ledger(name).compact()  # few objects instead of one per task
                if (exchange := home.exchange_of(name)) is not None:
                    remove_parts(exchange)
                if counts.dead:
                    message = (
                        f"all {tasks} tasks are recorded, {counts.dead} of them as failed; "
                        f"run chunkflow status {home.shown} to list the failed tasks"
                    )
                    return FAILURES, message
                home.close(name)
        finally:
            _leave(client, home.address)
    return COMPLETE, f"{home.shown} is complete"


def _check(working: WorkOptions) -> None:
    """Check that all options that are set apply to a Dask cluster.

    Raises:
        OptionError: some options do not apply. The message names these options.
    """
    settings, limits = working.settings, working.settings.limits
    given = {
        "--processes": settings.processes > 1,
        "--gpus": bool(settings.devices),
        "--no-until-complete": not working.until_complete,
        "--idle-exit": limits.idle_exit_s is not None,
        "--max-cost": limits.max_cost is not None,
    }
    if refused := [name for name, is_given in given.items() if is_given]:
        msg = (
            f"--on dask:// does not support {', '.join(refused)}; omit these options, and "
            "configure the Dask workers instead"
        )
        raise OptionError(msg)


# --- the cluster ---------------------------------------------------------------------------------


def _connect(address: str) -> Any:
    import distributed
    from distributed.versions import VersionMismatchWarning

    client: Any = distributed.Client  # mostly untyped
    with warnings.catch_warnings():
        # check_cluster refuses the mismatches that matter.
        warnings.simplefilter("ignore", VersionMismatchWarning)
        return client(address, timeout=CONNECT_S, set_as_default=False)


def _leave(client: Any, run: str) -> None:
    """Ask all reachable workers to release the pipelines of a run, and close the client."""
    with suppress(OSError, ValueError, TimeoutError):  # workers that have left hold no resources
        if client.status == "running":
            client.run(release, run, on_error="ignore")
    client.close()


def check_cluster(client: Any, address: str) -> None:
    """Check that the scheduler and the workers have the same package versions as this process.

    A worker that joins the cluster later compares its versions itself, before its first task.

    Raises:
        OptionError: a version differs, or a package is missing. The message names the process.
    """
    versions: Any = client.get_versions(packages=[PACKAGE])
    here = versions["client"]["packages"]
    processes = {"the scheduler": versions["scheduler"], **versions["workers"]}
    for name, each in processes.items():
        there = each["packages"]
        process = name if name == "the scheduler" else f"worker {name}"
        for package in (*SAME_VERSIONS, PACKAGE):
            ours, theirs = (_version(package, packages) for packages in (here, there))
            if theirs is None:
                msg = (
                    f"{process} of {address} does not have the package {package}; install version "
                    f"{ours}, the version on this machine"
                )
                raise OptionError(msg)
            if ours != theirs and package == PACKAGE:
                logger.warning(
                    "%s of %s has %s %s, but this machine has version %s",
                    process,
                    address,
                    PACKAGE,
                    theirs,
                    ours,
                )
            elif ours != theirs:
                msg = (
                    f"{process} of {address} has {package} {theirs}, but this machine has version "
                    f"{ours}; install the same version of {package} on all machines"
                )
                raise OptionError(msg)


def _version(package: str, versions: dict[str, str | None]) -> str | None:
    version = versions.get(package)
    return ".".join(version.split(".")[:2]) if package == "python" and version else version


class StopCondition:
    """The first reason to stop a run on Dask: a signal, the deadline, or a call of `set`.

    Attributes:
        reason: the first reason to stop; ``None`` if there is no reason.
        deadline: time at which to stop, in seconds of the monotonic clock; ``None`` for no
            deadline.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.deadline: float | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopCondition:
        """Install handlers of stop signals if the calling thread is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = on_stop_signals(self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        restore_signals(self._handlers)

    def _signalled(self, number: int) -> None:
        if self.reason is not None:
            raise Interrupted  # the second signal: leave at once
        self.reason = f"got {signal.Signals(number).name}"

    def set(self, reason: str) -> None:
        """Set *reason* as the reason to stop, unless there is an earlier reason."""
        self.reason = self.reason or reason

    def is_met(self) -> bool:
        """Return whether there is a reason to stop, including a deadline that has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.set("the time limit is reached")
        return self.reason is not None


# --- the tasks -----------------------------------------------------------------------------------


@dataclass(eq=False)
class _SentTask:
    number: int
    future: Any
    is_alone: bool


class Dispatcher:
    """Sends the tasks of one step to the scheduler, and handles their outcomes.

    Args:
        client: client of the scheduler.
        home: the run directory.
        order: description of the step, which is sent to the workers.
        working: options of the run on Dask, such as the allowed number of failures of a task.
        stop: condition that is checked regularly; the dispatcher stops when the condition is met.

    Raises:
        OptionError: the command line is wrong, a worker would compute different bytes than the
            first worker of the run, or chunkflow_py is not installed on a worker.
        ChunkflowError: the ledger refuses access, or the pipeline cannot be created.
    """

    def __init__(
        self,
        client: Any,
        home: RunDirectory,
        order: WorkOrder,
        working: WorkOptions,
        stop: StopCondition,
    ) -> None:
        self._client = client
        self._order = order
        self._stop = stop
        self._worker = working.worker
        self._plan = home.plan(order.stage)
        self._ledger = home.ledger(order.stage)
        self._spec = home.spec.step(order.stage).hash
        self._max_tasks = working.settings.limits.max_tasks
        self._call = partial(perform, order)
        self._numbers: Iterator[int] = self._ledger.missing(tasks_in_order(home, order.stage))
        if self._max_tasks is not None:
            self._numbers = itertools.islice(self._numbers, self._max_tasks)
        self._is_exhausted = False
        self._sent: dict[Any, _SentTask] = {}
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._retries: list[tuple[float, int]] = []  # a heap of (time, task)
        self._alone: deque[int] = deque()  # tasks to retry when no other runs
        self._policy = FailurePolicy(working.settings.disk_wait_s, working.settings.retry_s)
        self._keys = ((f"{order.stage}-{secrets.token_hex(16)}", n) for n in itertools.count())
        self._ended = 0
        self._broken_pipelines = 0
        self._threads = 0
        exchange = home.exchange_of(order.stage)
        self._remover = None if exchange is None else PartRemover(exchange)
        self._check_at = 0.0
        self._log_at = time.monotonic() + LOG_S

    def run(self) -> None:
        """Run tasks until the ledger has a record of each task, or there is a reason to stop."""
        try:
            while not self._stop.is_met():
                now = time.monotonic()
                self._check_cluster(now)
                self._submit(now)
                if self._is_exhausted and not (self._sent or self._retries or self._alone):
                    if self._max_tasks is not None:
                        self._stop.set(
                            f"{self._ended} tasks have ended, which is the limit of --max-tasks"
                        )
                    return
                self._receive()
        finally:
            futures = [each.future for each in self._sent.values()]
            self._sent.clear()
            if futures and self._client.status == "running":
                logger.warning(
                    "this process submits no more tasks; workers finish and record the tasks that "
                    "they have begun"
                )
                self._client.cancel(futures)
            if self._remover is not None:
                self._remover.close()

    def _check_cluster(self, now: float) -> None:
        if self._client.status not in ("running", "connecting"):
            self._stop.set("the connection to the scheduler is lost")
        elif now >= self._check_at and self._client.status == "running":
            self._check_at = now + CLUSTER_CHECK_S
            with suppress(OSError):
                self._threads = sum(self._client.nthreads().values())
        if now >= self._log_at:
            self._log_at = now + LOG_S
            logger.info(
                "step %s: %d tasks have ended since the start; the cluster has %d threads",
                self._order.stage,
                self._ended,
                self._threads,
            )

    def _submit(self, now: float) -> None:
        back_off = self._policy.back_off
        if self._client.status != "running" or now < back_off.until:
            return
        if any(sent.is_alone for sent in self._sent.values()):
            return
        most = max(LEAST_AT_ONCE, TASKS_PER_THREAD * self._threads)
        if back_off.is_probing:
            most = 1
        room = most - len(self._sent)
        if room < most / 4:
            return  # wait until a larger batch can be sent
        chosen: list[int] = []
        while len(chosen) < room and self._retries and self._retries[0][0] <= now:
            chosen.append(heapq.heappop(self._retries)[1])
        if not self._is_exhausted and len(chosen) < room:
            fresh = list(itertools.islice(self._numbers, room - len(chosen)))
            self._is_exhausted = len(fresh) < room - len(chosen)
            chosen += fresh
        if chosen:
            self._send(chosen)
        elif self._is_exhausted and self._alone and not self._sent:
            self._send([self._alone.popleft()], is_alone=True)

    def _send(self, numbers: list[int], *, is_alone: bool = False) -> None:
        keys = list(itertools.islice(self._keys, len(numbers)))
        futures = self._client.map(self._call, numbers, key=keys, pure=False, retries=0)
        for number, future in zip(numbers, futures, strict=True):
            self._sent[future.key] = _SentTask(number, future, is_alone)
            future.add_done_callback(self._done.put)

    def _receive(self) -> None:
        with suppress(Empty):
            self._process(self._done.get(timeout=TICK_S))
            while True:
                self._process(self._done.get_nowait())

    def _process(self, future: Any) -> None:
        sent = self._sent.pop(future.key, None)
        if sent is None:
            return
        if future.status == "finished":
            if self._remover is not None:
                self._remover.recorded(sent.number)
            self._ended += 1
            self._broken_pipelines = 0
            self._policy.succeeded()
        elif future.status == "error":
            self._failed(sent, future.exception())
        else:  # the scheduler was lost, or a user has cancelled the task
            self._retry(sent.number, self._order.limits.delay_s)

    def _retry(self, number: int, delay_s: float) -> None:
        heapq.heappush(self._retries, (time.monotonic() + delay_s, number))

    def _failed(self, sent: _SentTask, error: BaseException) -> None:
        from distributed import KilledWorker

        if isinstance(error, NotEndedError):
            self._not_ended(sent, error.task)
        elif isinstance(error, KilledWorker):
            self._killed(sent, error)
        elif isinstance(error, ImportError) or "deserializ" in str(error):
            msg = (
                f"the Dask cluster cannot run chunkflow_py ({error}); install the same version of "
                "chunkflow_py on all of its machines"
            )
            raise OptionError(msg) from error
        else:
            fault = fault_of(error)
            if fault.is_final:
                raise error
            self._policy.back_off.network_failed(time.monotonic())
            self._retry(sent.number, self._order.limits.delay_s)

    def _not_ended(self, sent: _SentTask, task: TaskNotEnded) -> None:
        box, reason = self._plan.text(sent.number), task.fault.reason
        logger.warning("task %s on worker %s: %s", box, task.worker, reason)
        match task.state:
            case "refused":
                msg = f"worker {task.worker} cannot run tasks of this run: {reason}"
                raise OptionError(msg)
            case "dead":
                self._ended += 1
            case "shortage":
                self._decide(sent, task)
            case "worker-ends":
                self._retry(sent.number, task.delay_s)
            case "failed":
                if task.fault.kind != "permanent":
                    self._policy.back_off.network_failed(time.monotonic())
                self._retry(sent.number, task.delay_s)
            case "pipeline-broken":
                if task.fault.kind != "permanent":
                    self._policy.back_off.network_failed(time.monotonic())
                else:
                    self._broken_pipelines += 1
                if self._broken_pipelines >= BROKEN_PIPELINES:
                    msg = f"the pipeline of step {self._order.stage} cannot be created: {reason}"
                    raise ChunkflowError(msg)
                self._retry(sent.number, self._order.limits.delay_s)

    def _decide(self, sent: _SentTask, task: TaskNotEnded) -> None:
        decision = self._policy.decide(sent.number, task.fault, task.worker, is_alone=task.is_alone)
        match decision.action:
            case "count":
                self._count(sent.number, decision.fault)
            case "retry":
                self._retry(sent.number, decision.delay_s)
            case "retry-alone":
                self._alone.append(sent.number)
            case "pause":
                logger.error("%s", decision.message)
                self._retry(sent.number, decision.delay_s)
            case "stop":
                self._retry(sent.number, decision.delay_s)
                self._stop.set(decision.message)

    def _killed(self, sent: _SentTask, error: Any) -> None:
        deaths = error.allowed_failures + 1
        times = "once" if deaths == 1 else f"{deaths} times"
        last = f"the last worker was {error.last_worker.address}; its log may contain the reason"
        if not sent.is_alone:
            reason = (
                f"a worker with this task and other tasks died {times}; the task is retried alone"
            )
            self._alone.append(sent.number)
            fault = Fault("transient", f"{reason}; {last}", cause="worker-lost")
            self._ledger.fail(self._failure(sent.number, fault))
            return
        reason = f"a worker died {times} while running only this task; {last}"
        fault = Fault("permanent", reason, cause="worker-lost")
        for _ in range(deaths):
            if self._count(sent.number, fault, retries=False):
                return
        self._alone.append(sent.number)

    def _count(self, number: int, fault: Fault, *, retries: bool = True) -> bool:
        failure = self._failure(number, fault)
        record, delay_s = count_failure(self._ledger, failure, self._order.limits, self._spec)
        if record is not None:
            logger.error("gave up on task %s: %s", record.box, record.reason)
            self._ended += 1
        elif retries:
            self._retry(number, delay_s)
        return record is not None

    def _failure(self, number: int, fault: Fault) -> FailedAttempt:
        return FailedAttempt(
            number,
            self._plan.text(number),
            secrets.token_hex(8),
            self._worker,
            fault.kind,
            fault.reason,
            fault.traceback,
            cause=fault.cause,
        )
