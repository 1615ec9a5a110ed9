"""Classification of errors, and the consequences for the task and for its worker.

`fault_of` classifies an error:

| kind      | examples                                     | consequence of the error              |
|-----------|----------------------------------------------|---------------------------------------|
| permanent | wrong shapes, a bug in a plugin              | it is counted; a few such errors end  |
|           |                                              | the task                              |
| transient | the network, a store or the queue is still   | it is counted; the task is retried    |
|           | down after retries                           | later                                 |
| resource  | disk full, out of memory, no access to a     | it is not counted at first, because   |
|           | store, a GPU that computes wrong values      | the machine may be at fault           |

`FailurePolicy` considers all failures of one worker, and decides whether a failure counts against
its task, and whether the worker pauses or stops. `AttemptLimits` sets the number of failures that
ends a task. Workers and runs on Dask use the same rules.
"""

from __future__ import annotations

import random
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from chunkflow_py.core.plain_text import tail
from chunkflow_py.errors import OperatorError, text_of
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.worker.failure_cause import cause_of_error
from chunkflow_py.store.store_address import public

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.core.task import Skip
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, FailureCause, FailureKind

Shortage = Literal["disk", "memory", "access", "device"]

LONGEST_TRACEBACK = 16_000  # characters
LONGEST_RETRY_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0

# The missing resource, by cause. The other causes are no lack of a resource.
_SHORTAGES: dict[FailureCause, Shortage] = {
    "host-memory": "memory",
    "gpu-memory": "memory",
    "disk-full": "disk",
    "no-access": "access",
    "faulty-device": "device",
}
# After one of these errors, a process cannot use its device any more.
_BROKEN_DEVICE = ("CUDA error:", "CUDNN_STATUS_INTERNAL_ERROR", "device-side assert")


# --- classification ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """The classified cause of a failed task.

    Attributes:
        kind: ``permanent``, ``transient`` or ``resource``; see the table of this module.
        reason: description of the failure, in one sentence.
        traceback: traceback of the exception; if the process crashed, the output of the process.
        shortage: the missing resource if the kind is ``resource``, else ``None``. The value
            ``device`` means that the GPU of this machine is faulty.
        breaks_process: whether the next task in the same process would also fail.
        cause: name of the cause for records, such as ``gpu-memory``.
    """

    kind: FailureKind
    reason: str
    traceback: str = ""
    shortage: Shortage | None = None
    breaks_process: bool = False
    cause: FailureCause = "error"

    def __post_init__(self) -> None:
        """Remove secrets from the reason and the traceback, because both are recorded."""
        object.__setattr__(self, "reason", public(self.reason))
        object.__setattr__(self, "traceback", public(self.traceback))

    @property
    def is_final(self) -> bool:
        """Whether the same request would fail again, so that it is not repeated."""
        return self.kind == "permanent" or self.shortage == "access"


def fault_of(error: BaseException) -> Fault:
    """Classify *error* by the types and messages of the error itself and of its causes."""
    chain = list(_causes(error))
    text = _traceback_of(error)
    reason = text_of(error) or type(error).__name__
    cause = cause_of_error(chain)
    shortage = _SHORTAGES.get(cause)
    if shortage is not None:
        return Fault("resource", reason, text, shortage, cause=cause)
    broken = any(pattern in text_of(each) for each in chain for pattern in _BROKEN_DEVICE)
    kind: FailureKind = "transient" if cause == "network" else "permanent"
    return Fault(kind, reason, text, breaks_process=broken, cause=cause)


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as problem:  # noqa: BLE001  (formatting calls methods of foreign classes)
        text = "".join(traceback.format_tb(error.__traceback__))
        text += f"the exception cannot be shown ({type(problem).__name__})\n"
    return tail(text, LONGEST_TRACEBACK)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and the chain of errors that caused it, each error once."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        cause = following.cause if isinstance(following, OperatorError) else None
        following = following.__cause__ or cause


def skip_reason(skip: Skip) -> str:
    """Return the reason why a task was skipped, with secrets removed."""
    return public(text_of(skip)) or "no reason given"


# --- the task ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits of the numbers of failures of a task, and the delay before a retry.

    A task is given up when the number of its failures of one kind reaches the limit.

    Attributes:
        permanent: limit of the number of failures caused by the task itself.
        transient: limit of the number of failures caused by the network or a service.
        delay_s: seconds before the second attempt; the delay doubles with each further attempt.
        worker_lost: limit of the number of attempts during which the whole worker disappeared. The
            default is high, because many workers disappear for reasons that the task has not
            caused, such as a preemption. But the default is finite, because a task may kill its
            workers.
    """

    permanent: int = 3
    transient: int = 20
    delay_s: float = 5.0
    worker_lost: int = 20

    def judge(
        self, failure: FailedAttempt, counts: Mapping[FailureKind, int], spec: str
    ) -> tuple[Record | None, float]:
        """Decide whether a failed task is retried or given up.

        Args:
            failure: the latest failure of the task, which the ledger has already counted.
            counts: number of failures of this task in the ledger, with their kind as key.
            spec: hash of the step.

        Returns:
            The record of the task if the task is given up, else ``None``; and the delay before a
            retry, in seconds.
        """
        number = counts.get(failure.kind, 1)
        limits = {"transient": self.transient, "worker-lost": self.worker_lost}
        if number < limits.get(failure.kind, self.permanent):
            # Jitter, so that tasks that failed together are not retried together.
            delay_s = min(LONGEST_RETRY_S, self.delay_s * 2 ** min(number - 1, 30))
            return None, round(delay_s * random.uniform(0.5, 1), 1)  # noqa: S311 not a secret
        record = Record(
            failure.number,
            failure.box,
            "dead",
            spec,
            failure.attempt,
            failure.worker,
            reason=f"failed {number} times, the last time: {failure.reason}",
        )
        return record, 0.0


def count_failure(
    ledger: Ledger, failure: FailedAttempt, limits: AttemptLimits, spec: str
) -> tuple[Record | None, float]:
    """Count a failure in the ledger; record the task as dead if its limit of failures is reached.

    Returns:
        The record of the task if the task is given up, else ``None``; and the delay before a
        retry, in seconds.
    """
    record, delay_s = limits.judge(failure, ledger.fail(failure), spec)
    if record is not None:
        ledger.record([record])
    return record, delay_s


# --- the worker ----------------------------------------------------------------------------------


class Decision(NamedTuple):
    """The consequence of a failed attempt.

    Attributes:
        action: ``count``: count *fault* as a failure of the task (see `AttemptLimits`). ``retry``:
            do not count *fault*, and retry the task after *delay_s*. ``retry-alone``: do not count
            *fault*, and retry the task with no other task in its process. ``pause``: release the
            task, and receive no tasks for *delay_s*. ``stop``: release the task, and stop this
            worker.
        fault: the cause of the failure.
        delay_s: seconds before the retry, or length of the pause in seconds.
        message: reason for the action ``pause`` or ``stop``; empty for the other actions.
    """

    action: Literal["count", "retry", "retry-alone", "pause", "stop"]
    fault: Fault
    delay_s: float = 0.0
    message: str = ""


class FailurePolicy:
    """Decides the consequences of the failures of one worker.

    As long as no task has succeeded on this worker, no task is blamed for a lack of memory. If
    tasks were blamed, a worker with too little memory would use up the attempts of all tasks.

    Args:
        disk_wait_s: length of the first pause after the disk was full, in seconds.
        retry_s: delay in seconds before the retry of a task whose failure is not counted.

    Attributes:
        back_off: the pauses of the worker after a full disk or a network failure.
    """

    def __init__(self, disk_wait_s: float, retry_s: float) -> None:
        self._retry_s = retry_s
        self._has_succeeded = False
        self._short_of_memory: int | None = None  # the last task that ran out of memory
        self._refused: set[int] = set()  # tasks to which a store refused access
        self._was_refused = False
        self.back_off = BackOff(disk_wait_s)

    def succeeded(self) -> None:
        """Record that a task of this worker has succeeded."""
        self._has_succeeded = True
        self._short_of_memory = None
        self._was_refused = False
        self.back_off.reset()

    def decide(self, task: int, fault: Fault, worker: str, *, is_alone: bool) -> Decision:
        """Decide what to do with a task that has failed.

        Args:
            task: number of the task.
            fault: why the task failed.
            worker: name of the worker, for messages.
            is_alone: whether the task was the only task in its process.
        """
        match fault.shortage:
            case "disk":
                pause_s = self.back_off.disk_full(time.monotonic())
                message = (
                    f"{fault.reason}; worker {worker} receives no tasks for {pause_s:.0f} s, and "
                    "then tries one task"
                )
                return Decision("pause", fault, pause_s, message)
            case "memory" if not is_alone:
                return Decision("retry-alone", fault)  # other tasks may have used the memory
            case "memory":
                blamed, problem = self._blame_memory(task), "too little memory"
            case "access":
                blamed, problem = self._blame_access(task), "no access"
            case "device":
                blamed, problem = "worker", "a faulty device"
            case _:
                if fault.kind == "transient":
                    self.back_off.network_failed(time.monotonic())
                return Decision("count", fault)
        if blamed == "task":
            return Decision("count", replace(fault, kind="permanent", shortage=None))
        if blamed == "nobody":
            return Decision("retry", fault, self._retry_s)
        return Decision("stop", fault, 0.0, f"worker {worker} has {problem}: {fault.reason}")

    def _blame_memory(self, task: int) -> Literal["task", "nobody", "worker"]:
        """Return whether to blame the task, the worker, or nobody yet for a lack of memory.

        If a task has ever succeeded on this worker, the worker probably has enough memory, so
        blame the task. But if different tasks have run out of memory since the last success, blame
        the worker. If no task has ever succeeded, blame nobody for the first failure, and the
        worker for the second.
        """
        last, self._short_of_memory = self._short_of_memory, task
        if self._has_succeeded:
            return "task" if last in (None, task) else "worker"
        return "nobody" if last is None else "worker"

    def _blame_access(self, task: int) -> Literal["task", "nobody", "worker"]:
        """Return whether to blame the task, the worker, or nobody yet for a refused access.

        If no task has succeeded since the last refused access, blame the worker. Otherwise, blame
        the task if it was refused access before, and nobody if this is the first time.
        """
        was_refused, self._was_refused = self._was_refused, True
        if was_refused:
            return "worker"
        if task in self._refused:
            return "task"
        self._refused.add(task)
        return "nobody"


class BackOff:
    """The pause of a worker after a full disk or a network failure.

    Args:
        disk_wait_s: length of the first pause after the disk was full, in seconds.

    Attributes:
        until: time at which the worker may receive tasks again, in seconds of the monotonic clock.
        is_probing: whether to receive only one task, to test whether the disk has space again.
    """

    def __init__(self, disk_wait_s: float) -> None:
        self._disk_wait_s = disk_wait_s
        self._network_failures = 0  # in a row
        self._disk_failures = 0  # in a row
        self.until = 0.0
        self.is_probing = False

    def reset(self) -> None:
        """End the pause, because a task has succeeded."""
        self._network_failures = self._disk_failures = 0
        self.until = 0.0
        self.is_probing = False

    def network_failed(self, now: float) -> None:
        """Begin a pause whose length doubles with each consecutive failure of the network."""
        self._network_failures += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._network_failures, 20))
        self.until = max(self.until, now + pause_s * random.uniform(0.5, 1))  # noqa: S311 jitter

    def disk_full(self, now: float) -> float:
        """Begin a pause, and return its length in seconds.

        After the pause, the worker receives one task, to test whether the disk has space again.
        Tasks that were running when the disk filled up also fail, but do not prolong the pause.
        """
        if self.is_probing and now < self.until:
            return self.until - now
        longest_s = max(LONGEST_PAUSE_S, self._disk_wait_s)
        pause_s = min(longest_s, self._disk_wait_s * (1 << self._disk_failures))
        self._disk_failures = min(self._disk_failures + 1, 10)
        self.until = now + pause_s
        self.is_probing = True
        return pause_s
