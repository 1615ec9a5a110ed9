"""The receiver of a worker: takes messages from the queue, in its own thread, and posts jobs.

```
receive -> renew the lease from now on -> parse -> look up in the ledger -> job for the supervisor
                                             |         |
                                    bury if invalid   acknowledge if recorded, bury if given up
```

To bury a message is to move it to the dead letters.

Poison-task detection: if a task kills its worker process, the supervisor counts a failure. If the
task kills the whole worker, for example because a container exceeds its memory limit, nobody counts
the failure, and the queue delivers the message again. So a task whose message was delivered more
than `RECEIVES` times is *suspected*. A suspected task runs alone in its process, and a mark in the
ledger records that the attempt has begun. If the worker releases the task, it removes the mark. If
the worker dies, the mark remains, and the next worker that receives the message counts a failure of
the kind ``worker-lost``. A task is given up only after many workers were lost. A repeated delivery
does not count as a failure, because the worker may have been preempted or drained.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.failpoints import reached
from chunkflow_py.errors import ChunkflowError, GeometryError
from chunkflow_py.queue.message_body import BodyError, parse_body
from chunkflow_py.run.ledger.ledger_record import FailedAttempt
from chunkflow_py.run.worker.failure_policy import AttemptLimits, count_failure, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.queue.leases import Held, LeaseKeeper
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import FailureCause, Record
    from chunkflow_py.run.worker.acknowledger import Acknowledger
    from chunkflow_py.run.worker_records import WorkerFate
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
FIRST_WAIT_S = 1.0  # first wait for a message; doubles while none arrives
FOREIGN_DELAY_S = 60.0  # delay before a message of another run is delivered again
MOST_RECEIVED = 4096  # messages of one request
RECEIVES = 3  # deliveries of a message after which its task is suspected
SUSPECT_DELAY_S = 4.0  # longest delay of a suspected task while another one runs
GIVEN_BACK = "the worker released the task"
WORKER_LOST = (
    "the worker disappeared: either it was killed from outside, or this task killed all processes "
    "of the worker, for example in a container with too little memory"
)
WORKER_STOPPED = "the worker disappeared while it was stopping; the cause of the stop was: {}"


class OperatorTime(NamedTuple):
    """The time in which an operator worked on a task.

    Attributes:
        label: label of the operator.
        stage: stage of the operator: read, compute or write.
        began: time at which the operator began, in seconds since 1970.
        seconds: run time of the operator in seconds.
    """

    label: str
    stage: str
    began: float
    seconds: float


@dataclass(eq=False, slots=True)
class Job:
    """A task that this worker has received, but not yet recorded or released.

    Attributes:
        number: number of the task in its plan.
        box: box of the task, as a string.
        leases: leases of the messages of the task; several if the task was delivered several times.
        attempt: unique name of this attempt.
        is_suspected: whether the task may be a poison task; see the top of this module.
        is_cancelled: whether the worker process was asked to stop the task, because the lease is
            lost or about to expire.
        is_given_up: whether to ignore all further reports of the worker process about the task.
        operators: times of those operators that the worker process has reported for this attempt.
    """

    number: int
    box: str
    leases: list[Held]
    attempt: str
    is_suspected: bool = False
    is_cancelled: bool = False
    is_given_up: bool = False
    operators: tuple[OperatorTime, ...] = ()

    @property
    def lost(self) -> bool:
        """Whether all leases of the task are lost."""
        return all(lease.lost for lease in self.leases)

    @property
    def lease_ends(self) -> float:
        """Time at which the worker no longer has any lease of the task, unless one is renewed.

        The time is in seconds of the clock of the `LeaseKeeper`. A task that was delivered several
        times has several leases; the lease that ends latest counts.
        """
        return max(lease.ends for lease in self.leases)


@dataclass(frozen=True)
class MessageFilter:
    """The messages that a worker accepts.

    Attributes:
        plan: tasks of the step.
        stage: name of the step.
        runs: hash of each step, with the name of the step as key, in the order of the steps. A
            message must contain the hash of its step; ``None`` accepts any hash.
        is_wanted: function that takes the name of another step and returns whether to keep messages
            of that step; by default, messages of later steps are kept.
    """

    plan: Plan
    stage: str
    runs: Mapping[str, str | None]
    is_wanted: Callable[[str], bool] | None = None


class TaskReceiver:
    """Receives and parses messages, looks up their tasks in the ledger, and posts jobs.

    Args:
        messages: filter of the messages to accept.
        attempts: prefix of the names of this worker's attempts.
        keeper: object that receives messages from the queue, and renews their leases.
        ledger: ledger of the step.
        acknowledger: acknowledges or releases messages that need no work, or moves them to the dead
            letters.
        post: function that is called in the receiver's thread with the name and the content of an
            event: ``received`` with a list of jobs; ``closed-stage`` with the name of another step,
            if a message of that step shows that the run has reached that step; ``stuck`` with the
            reason why a request to the queue or the ledger has failed and is repeated; ``fatal``
            with an error.
        wait_s: longest time that one request to the queue waits for a message, in seconds.
        guard: detector of poison tasks; with ``None``, no task is ever suspected.

    Attributes:
        profile: compute profile of this worker, which is recorded when an attempt begins. With
            ``None``, only attempts on suspected tasks are recorded when they begin.
    """

    def __init__(
        self,
        messages: MessageFilter,
        attempts: str,
        keeper: LeaseKeeper,
        ledger: Ledger,
        acknowledger: Acknowledger,
        post: Callable[[str, Any], None],
        wait_s: float,
        guard: PoisonTaskGuard | None = None,
    ) -> None:
        self._messages = messages
        self._attempts = (f"{attempts}-{number}" for number in itertools.count())
        self._keeper = keeper
        self._ledger = ledger
        self._acknowledger = acknowledger
        self._post = post
        self._guard = guard
        self._longest_wait_s = wait_s
        self._wait_s = min(wait_s, FIRST_WAIT_S)
        self.profile: str | None = None
        self._changed = threading.Condition()
        self._wanted = 0
        self._unseen = 0  # posted jobs that the supervisor has not taken yet
        self._closed = threading.Event()
        self._foreign_runs: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()

    def want(self, number: int) -> None:
        """Set the number of jobs that the supervisor can accept.

        Jobs that were posted but not yet reported with `seen` count towards *number*.
        """
        with self._changed:
            self._wanted = max(0, number - self._unseen)
            if self._wanted:
                self._changed.notify_all()

    def seen(self, number: int) -> None:
        """Record that the supervisor has processed *number* of the posted jobs."""
        with self._changed:
            self._unseen -= number

    def close(self) -> None:
        """Stop receiving; release the messages that a pending request still returns."""
        self._closed.set()
        with self._changed:
            self._wanted = 0
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return ``False`` after a timeout."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._receive()
        except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
            self._post("fatal", error)

    def _receive(self) -> None:
        with self._changed:
            while not self._wanted and not self._closed.is_set():
                self._changed.wait()
            most = min(self._wanted, MOST_RECEIVED)
        if not most:
            return
        held = self._retrying(lambda: self._keeper.receive(most, self._wait_s, self._closed))
        if held is None:
            return
        if held:
            reached("leased")
        if self._closed.is_set():
            self._acknowledger.release(held)
            return
        jobs = self._jobs(held) if held else []
        with self._changed:
            self._wanted = max(0, self._wanted - len(jobs))
            self._unseen += len(jobs)
        if jobs:
            self._post("received", jobs)
        self._wait_s = min(self._longest_wait_s, FIRST_WAIT_S if held else 2 * self._wait_s)
        if not held and not self._longest_wait_s:
            self._closed.wait(FIRST_PAUSE_S)

    def _retrying(self, call: Callable[[], Any]) -> Any:
        """Repeat *call* until it succeeds; return ``None`` if the receiver is closed first.

        An error that would occur again at each call is raised.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return call()
            except ChunkflowError as error:
                fault = fault_of(error)
                if fault.is_final:
                    raise
                logger.warning("cannot receive tasks, trying again: %s", fault.reason)
                self._post("stuck", fault.reason)
            if self._closed.wait(pause_s * random.uniform(0.5, 1)):  # noqa: S311 jitter
                return None
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _jobs(self, held: Sequence[Held]) -> list[Job]:
        jobs: dict[int, Job] = {}
        for lease in held:
            task = self._task(lease)
            if task is None:
                continue
            number, box = task
            if number in jobs:
                jobs[number].leases.append(lease)
            else:
                jobs[number] = Job(number, box, [lease], next(self._attempts))
        if not jobs:
            return []
        states = self._retrying(lambda: self._ledger.find(jobs))
        if states is None:
            self._acknowledger.release([lease for job in jobs.values() for lease in job.leases])
            return []
        for number, state in states.items():
            leases = jobs.pop(number).leases
            if state == "dead":
                self._acknowledger.bury(
                    leases, "the task was given up earlier; chunkflow status lists the failures"
                )
            else:
                self._acknowledger.acknowledge(leases)
        return [job for job in jobs.values() if self._may_begin(job)]

    def _may_begin(self, job: Job) -> bool:
        guard, profile = self._guard, self.profile
        if guard is not None and not guard.admits(job):
            self._acknowledger.release(job.leases, guard.delay_s())
            return False
        if guard is not None and job.is_suspected:
            record = self._retrying(lambda: guard.begin(job, profile))
            if record is not None:
                logger.error("gave up on task %s: %s", job.box, record.reason)
                self._acknowledger.bury(job.leases, record.reason)
                return False
        elif profile is not None:
            self._retrying(partial(self._ledger.begin, job.number, job.attempt, profile))
        return True

    def _task(self, held: Held) -> tuple[int, str] | None:
        try:
            body = parse_body(held.message.body)
        except BodyError as error:
            self._bury(held, str(error))
            return None
        expected, runs = self._messages.stage, self._messages.runs
        stage = body.stage or expected
        known = [runs[stage]] if stage in runs else list(runs.values())
        if body.run is not None and None not in known and body.run not in known:
            self._release_foreign(held, body.run)
            return None
        if stage not in runs:
            self._bury(held, f"the run has no step {stage!r}; its steps are {', '.join(runs)}")
            return None
        if stage != expected:
            order, is_wanted = list(runs), self._messages.is_wanted
            keep = order.index(stage) > order.index(expected)
            if is_wanted is not None:
                keep = self._retrying(lambda: is_wanted(stage)) is not False
            if keep:
                self._acknowledger.release([held])
                self._post("closed-stage", stage)
            else:
                # Either the other step has ended, or it is a later step, whose tasks will be sent
                # again when a worker opens it after the repair of an earlier step.
                self._acknowledger.acknowledge([held])
            return None
        try:
            return self._messages.plan.number(body.region), str(body.region)
        except GeometryError as error:
            self._bury(held, str(error))
            return None

    def _release_foreign(self, held: Held, run: str) -> None:
        if run not in self._foreign_runs:
            self._foreign_runs.add(run)
            logger.error(
                "the queue contains tasks of another run (hash %s), which this worker (hash %s) "
                "does not process; give each run its own queue",
                run,
                self._messages.runs[self._messages.stage],
            )
        self._acknowledger.release([held], FOREIGN_DELAY_S)

    def _bury(self, held: Held, reason: str) -> None:
        logger.warning("moved a message to the dead letters: %s", reason)
        self._acknowledger.bury([held], reason)


class PoisonTaskGuard:
    """Detects tasks that kill the whole worker that runs them; see the top of this module.

    Args:
        ledger: ledger of the step, in which a mark shows that an attempt has begun.
        limits: number of failures after which a task is given up.
        spec: hash of the step, for the records of tasks that are given up.
        keeps_attempts: whether a released attempt keeps its mark (``--device-class any``). If true,
            a failure is recorded at the release, to show that no worker was lost.
        fate_of: function that takes the name of an attempt, and returns the name of the worker that
            made the attempt, and why this worker has ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: AttemptLimits,
        spec: str,
        *,
        keeps_attempts: bool,
        fate_of: Callable[[str], WorkerFate] | None = None,
    ) -> None:
        self._own: set[str] = set()  # attempts that this worker has begun: it has not died
        self._ledger = ledger
        self._limits = limits
        self._spec = spec
        self._keeps_attempts = keeps_attempts
        self._fate_of = fate_of
        self._lock = threading.Lock()
        self._running: Job | None = None  # only one, so that it is clear which task is to blame

    def admits(self, job: Job) -> bool:
        """Set `Job.is_suspected`; return whether the task can run now."""
        job.is_suspected = max(lease.message.receives for lease in job.leases) > RECEIVES
        with self._lock:
            if not job.is_suspected:
                return True
            if self._running is not None and not _is_over(self._running):
                return False
            self._running = job
            return True

    @staticmethod
    def delay_s() -> float:
        """Return a random delay in seconds for a suspected task that cannot run now."""
        return random.uniform(SUSPECT_DELAY_S / 2, SUSPECT_DELAY_S)  # noqa: S311 jitter

    def begin(self, job: Job, profile: str | None) -> Record | None:
        """Count the lost attempts on a suspected task, and mark the new attempt.

        Args:
            job: the suspected task.
            profile: compute profile of this worker, to record with the mark; ``None`` for none.

        Returns:
            The record of the task if the task was given up, because too many attempts were lost;
            the record is then already in the ledger. ``None`` if the new attempt may begin.
        """
        failed = {failure.attempt for failure in self._ledger.failures(job.number)}
        for attempt in self._ledger.attempts(job.number):
            if attempt.record is None and attempt.attempt not in failed | self._own:
                failure = self._lost(job, attempt.attempt)
                record, _ = count_failure(self._ledger, failure, self._limits, self._spec)
                if record is not None:
                    return record
        self._own.add(job.attempt)
        self._ledger.begin(job.number, job.attempt, profile or "")
        return None

    def _lost(self, job: Job, attempt: str) -> FailedAttempt:
        """Return the failure of an attempt whose worker disappeared."""
        worker, reason = "unknown", WORKER_LOST
        cause: FailureCause = "worker-lost"
        if self._fate_of is not None:
            worker, cause = self._fate_of(attempt)
        if cause != "worker-lost":
            reason = WORKER_STOPPED.format(cause)
        return FailedAttempt(
            job.number, job.box, attempt, worker, "worker-lost", reason, cause=cause
        )

    def withdraw(self, job: Job) -> None:
        """Remove the mark of an attempt that was released without an outcome."""
        if not self._keeps_attempts:
            self._ledger.withdraw(job.number, job.attempt)
            return
        # The mark must stay: record a failure, which shows that no worker was lost.
        self._ledger.fail(
            FailedAttempt(job.number, job.box, job.attempt, "unknown", "transient", GIVEN_BACK)
        )


def _is_over(job: Job) -> bool:
    return all(lease.dropped or lease.lost for lease in job.leases)
