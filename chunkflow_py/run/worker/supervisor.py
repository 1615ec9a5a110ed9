"""The supervisor of a worker: receives the tasks of a step, runs them, and records the outcomes.

```
queue -> TaskReceiver --jobs--> Supervisor --> WorkerPool --> worker processes
         LeaseKeeper renews     (events) <------ outcomes --------'
                                   |
                                   '--> OutcomeRecorder: ledger --> Acknowledger: queue
```

Each component has its own threads, which post events. Only the supervisor makes decisions, in one
thread. Correctness does not depend on an orderly exit: a task is finished when its record is in the
ledger, and only then is its message acknowledged. If the worker or one of its processes dies
earlier, the queue delivers the message again.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
import signal
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.core.interrupts import on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, as_error
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, LedgerCounts, Record
from chunkflow_py.run.worker.acknowledger import Acknowledger
from chunkflow_py.run.worker.failure_cause import cause_of_signal
from chunkflow_py.run.worker.failure_policy import AttemptLimits, FailurePolicy, fault_of
from chunkflow_py.run.worker.outcome_recorder import OutcomeRecorder
from chunkflow_py.run.worker.stall_watch import StallWatch
from chunkflow_py.run.worker.task_receiver import (
    MessageFilter,
    OperatorTime,
    PoisonTaskGuard,
    TaskReceiver,
)
from chunkflow_py.run.worker.worker_interruption import InterruptionWatch
from chunkflow_py.run.worker.worker_limits import TaskDurations
from chunkflow_py.run.worker.worker_pool import WorkerPool
from chunkflow_py.run.worker.worker_process import (
    LogMessage,
    PipelineBroken,
    PipelineReady,
    TaskEnded,
)
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.queue.leases import Held
    from chunkflow_py.queue.queue_protocol import Counts, Queue
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.failure_policy import Fault
    from chunkflow_py.run.worker.task_receiver import Job
    from chunkflow_py.run.worker.worker_limits import WorkerSettings
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot, ProcessStart, WorkerProcess
    from chunkflow_py.run.worker_records import WorkerEnd, WorkerFate, WorkerRegistration
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

TICK_S = 0.2
RELEASE_S = 2.0  # longest wait for the release of tasks that have not begun
LEAVE_S = 10.0  # longest wait for the recording of outcomes before a worker leaves

MOST_RECENT = 4096  # recorded tasks that are remembered
MOST_RECORDING = 2048  # tasks that wait to be recorded; above this, no tasks are received
REDELIVERY_S = 2.0  # delay of a task that cannot be accepted now
LATE_S = 1.0  # a task is stopped at least this long before its lease expires

FIRST_CHECK_S, LONGEST_CHECK_S = 0.1, 30.0
DISTRUST_S = 5.0  # interval of checks above which the ledger is asked even if tasks are queued


@dataclass
class WorkerOutcome:
    """The result of one worker's work on a step.

    Attributes:
        state: ``complete``: every task of the plan is recorded, by this or other workers.
            ``complete-with-failures``: every task is recorded, but some were given up.
            ``stopped``: the worker stopped before every task was recorded. ``stage-closed``: the
            run is at another step.
        message: the result in one sentence, for the user.
        done, skipped, dead: number of tasks that this worker has recorded in each state.
        failures: number of failed attempts on this worker.
        signal: name of the latest stop signal, even if the signal arrived after the end of the
            work; ``None`` if no signal arrived.
    """

    state: Literal["complete", "complete-with-failures", "stopped", "stage-closed"] = "stopped"
    message: str = ""
    done: int = 0
    skipped: int = 0
    dead: int = 0
    failures: int = 0
    signal: str | None = None

    @property
    def ended(self) -> int:
        """Number of attempts that have ended on this worker."""
        return self.done + self.skipped + self.failures


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """The state of a worker at one instant.

    Attributes:
        processes: the worker processes of the pool.
        leases: number of leases that the worker holds.
        renewed: number of renewals of leases so far.
        lost: number of leases lost so far.
        queued: numbers of messages in the queue at the latest check; ``None`` before the first
            check.
    """

    processes: tuple[ProcessSnapshot, ...]
    leases: int
    renewed: int
    lost: int
    queued: Counts | None


class WorkerListener:
    """Callbacks that a supervisor calls in its thread; override the methods of interest."""

    def run_started(self, run_directory: RunDirectory) -> None:
        """Called when a worker of a pool begins to work on a run."""

    def stage_started(self, stage: str, tasks: int) -> None:
        """Called when the worker begins a step; *tasks* is the number of tasks of the step."""

    def stage_ended(self, outcome: WorkerOutcome) -> None:
        """Called when the worker has stopped working on the step, with the outcome."""

    def may_observe(self, snapshot: Callable[[], WorkerSnapshot], *, is_last: bool) -> None:
        """Called a few times per second; *snapshot* returns the worker's state.

        *is_last* is true for the last call, at the end of the work on the step.
        """

    def process_ready(self, number: int, profile: dict[str, str] | None) -> None:
        """Called when worker process *number* is ready for tasks, with its compute profile."""

    def task_ended(self, record: Record) -> None:
        """Called when the record of a task is in the ledger."""

    def task_failed(self, failure: FailedAttempt) -> None:
        """Called when a failed attempt is counted in the ledger."""

    def attempt_ended(
        self, ended: Record | FailedAttempt, operators: Sequence[OperatorTime]
    ) -> None:
        """Called when an attempt is recorded, with the times of its operators if they are known."""

    def changed(self, message: str) -> None:
        """Called when the worker pauses, waits, stops or loses a lease; *message* says why."""


class Supervisor:
    """Runs the tasks of one step with a pool of worker processes.

    Args:
        stage: name of the step.
        spec: hash of the step, for records.
        plan: tasks of the step.
        queue: queue of the tasks.
        ledger: ledger of the step.
        start: program and environment of the worker processes.
        settings: settings of the worker.
        check_profile: function that is called with the compute profile of each process before its
            first task, and raises a `ChunkflowError` if the process must not run tasks.
        worker: name of this worker, for records.
        run: hash that a message of this step must contain; ``None`` accepts any hash.
        stages: hash of each step of the run, with the name of the step as key, in the order of the
            steps. A message of another step must contain the hash of that step.
        is_wanted: function that takes the name of another step, and returns whether to leave
            messages of that step in the queue. By default, messages of later steps are kept.
        listener: callbacks that report progress.
        on_recorded: function that is called with the number of each task that this worker has
            recorded.
        stop_reason: function that returns why the worker must take no more tasks of the run, such
            as a spent budget, or ``None`` while the worker may take tasks. The function must return
            at once.
        registration: object that stores the records of this worker, including the reason why the
            worker stops.
        fate_of: function that takes the name of an attempt, and returns the name of the worker that
            made the attempt, and why this worker has ended.
    """

    def __init__(
        self,
        *,
        stage: str,
        spec: str,
        plan: Plan,
        queue: Queue,
        ledger: Ledger,
        start: ProcessStart,
        settings: WorkerSettings,
        check_profile: Callable[[dict[str, str] | None], None],
        worker: str,
        run: str | None = None,
        stages: Mapping[str, str | None] | None = None,
        is_wanted: Callable[[str], bool] | None = None,
        listener: WorkerListener | None = None,
        on_recorded: Callable[[int], None] | None = None,
        stop_reason: Callable[[], str | None] = lambda: None,
        registration: WorkerRegistration | None = None,
        fate_of: Callable[[str], WorkerFate] | None = None,
    ) -> None:
        self._stage = stage
        self._spec = spec
        self._plan = plan
        self._queue = queue
        self._ledger = ledger
        self._start = start
        self._settings = settings
        self._check_profile = check_profile
        self._worker = worker
        self._messages = MessageFilter(plan, stage, {**(stages or {}), stage: run}, is_wanted)
        self._listener = listener or WorkerListener()
        self._on_recorded = on_recorded
        self._stop_reason = stop_reason
        self._registration = registration
        self._fate_of = fate_of
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._outcome = WorkerOutcome()
        self._watch_at = 0.0
        self._queued: Counts | None = None
        self._profile_lock = threading.Lock()
        self._error: Exception | None = None
        self._signals = 0
        self._drains_until: float | None = None  # seconds of the monotonic clock
        self._has_worked = False  # whether tasks had begun when the worker was asked to stop
        self._is_over = False
        self._leaves_at_once = False
        self._completion = CompletionWatch(
            queue, ledger, len(plan), 2 * settings.lease_s, settings.until_complete, self._post
        )

    def stop(self, reason: str, why: WorkerEnd = "killed") -> None:
        """Ask the worker to finish the tasks that have begun and then stop; thread-safe."""
        self._events.put(("stop", (reason, why)))

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> WorkerOutcome:
        """Run tasks until the step is complete or the worker must stop.

        Raises:
            OptionError: the command line is wrong, or this machine would compute different bytes
                than the other workers of the run.
            ChunkflowError: the queue or the ledger refuses access, or worker processes cannot
                start.
        """
        self._listener.stage_started(self._stage, len(self._plan))
        bound_s = self._settings.limits.deadline_s
        self._deadline = None if bound_s is None else time.monotonic() + bound_s
        with ExitStack() as stack:
            self._start_parts(stack)
            stall_watch = StallWatch()
            stack.callback(stall_watch.close)
            while not self._is_over:
                stall_watch.tick()
                self._step()
            stall_watch.tick()
            self._listener.may_observe(self._snapshot, is_last=True)
            self._leave()
            self._notice_completion()
        self._listener.stage_ended(self._outcome)
        if self._error is not None:
            raise self._error
        return self._outcome

    def _start_parts(self, stack: ExitStack) -> None:
        settings, post, registration = self._settings, self._post, self._registration
        self._keeper = stack.enter_context(
            LeaseKeeper(self._queue, settings.lease_s, on_lost=lambda held: post("lost", held))
        )
        self._acknowledger = Acknowledger(self._keeper, lambda error: post("fatal", error))
        stack.callback(self._acknowledger.close)
        limits = AttemptLimits(
            settings.max_failures,
            settings.max_transient,
            settings.retry_s,
            settings.max_worker_lost,
        )
        guard = PoisonTaskGuard(
            self._ledger,
            limits,
            self._spec,
            keeps_attempts=settings.records_attempts,
            fate_of=self._fate_of,
        )
        self._recorder = OutcomeRecorder(
            self._ledger,
            self._acknowledger,
            limits,
            self._spec,
            guard,
            post,
            records_attempts=settings.records_attempts,
        )
        stack.callback(self._recorder.close)
        self._receiver = TaskReceiver(
            self._messages,
            secrets.token_hex(6) if registration is None else registration.attempts(),
            self._keeper,
            self._ledger,
            self._acknowledger,
            post,
            settings.receive_wait_s,
            guard,
        )
        stack.callback(self._receiver.close)
        self._pool = WorkerPool(
            self._start,
            settings,
            self._from_process,
            self._blamed,
            TaskDurations(settings.task_limit, self._ledger.durations),
        )
        self._tasks = InFlightTasks(
            self._spec,
            self._worker,
            settings,
            self._keeper,
            self._pool,
            self._acknowledger,
            self._recorder,
            self._outcome,
            self._listener,
            self._stop,
        )
        stack.callback(self._pool.kill)
        if settings.watches_notices:
            watch = InterruptionWatch(
                partial(self.stop, why="preempted"),
                on_machine=None if registration is None else registration.learned_machine,
            )
            stack.callback(watch.close)
        if threading.current_thread() is threading.main_thread():
            # The handler only posts an event: it may run between any two steps of this thread.
            stack.callback(restore_signals, on_stop_signals(self._signalled))

    def _signalled(self, number: int) -> None:
        self._outcome.signal = signal.Signals(number).name
        self._post("signal", self._outcome.signal)

    def _post(self, kind: str, content: Any) -> None:
        self._events.put((kind, content))

    def _from_process(self, process: WorkerProcess, messages: Sequence[Any] | None) -> None:
        """Post the messages of a process as an event; called in the thread that reads its pipe."""
        for message in messages or ():
            if isinstance(message, PipelineReady):
                try:
                    with self._profile_lock:  # may ask a store; the supervisor does not wait for it
                        self._check_profile(message.profile)
                except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
                    self._post("fatal", error)
                    return
        self._post("process", (process, messages))

    def _blamed(self, job: Job, fault: Fault, seconds: float | None) -> None:
        self._tasks.failed(job, fault, seconds)

    def _snapshot(self) -> WorkerSnapshot:
        keeper = self._keeper
        leases = len(keeper.held), keeper.renewals, keeper.losses
        return WorkerSnapshot(self._pool.snapshots(), *leases, self._queued)

    def _step(self) -> None:
        with suppress(Empty):
            self._handle(*self._events.get(timeout=TICK_S))
            for _ in range(64):
                self._handle(*self._events.get_nowait())
        if self._error is not None:
            self._is_over = self._leaves_at_once = True
            return
        now = time.monotonic()
        try:
            self._pool.tick(now)
        except ChunkflowError as error:
            self._fatal(error)
            return
        if now >= self._watch_at:
            self._watch_at = now + TICK_S / 2
            self._tasks.watch_leases()
            self._listener.may_observe(self._snapshot, is_last=False)
        if self._drains_until is not None:
            self._tasks.release_untouched()
            if not self._tasks or now >= self._drains_until:
                self._is_over = True
            return
        self._keep_limits(now)
        self._pool.feed()
        self._receiver.want(self._tasks.wanted(now))
        self._check_complete(now)

    # --- events ----------------------------------------------------------------------------------

    def _handle(self, kind: str, content: Any) -> None:
        match kind:
            case "process":
                self._process_reported(*content)
            case "received":
                self._receiver.seen(len(content))
                self._completion.busy()
                self._tasks.received(content)
            case "recorded":
                self._recorded(content)
            case "lost":
                self._tasks.lost(content)
            case "signal":
                self._signals += 1
                self._stop(f"got {content}", cause_of_signal(signal.Signals[content]))
                if self._signals > 1:
                    self._is_over = self._leaves_at_once = True
            case "stop":
                self._stop(*content)
            case "closed-stage":
                if self._drains_until is None:
                    self._outcome.state = "stage-closed"
                self._stop(f"the run is now at step {content}")
            case "stuck":
                self._listener.changed(f"waiting: {content}")
            case "checked":
                self._checked(*content)
            case "fatal":
                self._fatal(content)

    def _recorded(
        self, outcomes: Sequence[tuple[Job, Record | None, FailedAttempt | None]]
    ) -> None:
        self._tasks.recorded(outcomes)
        for job, record, _ in outcomes:
            if record is not None and self._on_recorded is not None:
                self._on_recorded(job.number)

    def _fatal(self, error: BaseException) -> None:
        if self._error is None:
            self._error = as_error(error, "a thread of the worker")

    def _process_reported(self, process: WorkerProcess, messages: Sequence[Any] | None) -> None:
        if messages is None:
            try:
                self._pool.exited(process)
            except ChunkflowError as error:
                self._fatal(error)
            return
        ended: list[TaskEnded] = []
        for message in messages:
            match message:
                case TaskEnded():
                    ended.append(message)
                case PipelineReady():
                    self._ready(process, message)
                case PipelineBroken():
                    process.broken = message
                case LogMessage(level, text):
                    logger.log(level, "worker process %d: %s", process.number, text)
        self._tasks.ended_in(process, ended)

    def _ready(self, process: WorkerProcess, ready: PipelineReady) -> None:
        self._pool.ready(process, ready)
        if ready.profile:
            self._tasks.profile = ", ".join(f"{k} {v}" for k, v in ready.profile.items())
        if self._settings.records_attempts:
            self._receiver.profile = self._tasks.profile
        if self._registration is not None:
            self._registration.learned(device=(ready.profile or {}).get("device", ""))
        self._listener.process_ready(process.number, ready.profile)

    # --- stopping --------------------------------------------------------------------------------

    def _stop(self, reason: str, why: WorkerEnd = "limit", grace_s: float | None = None) -> None:
        """Receive no more tasks, release tasks that have not begun, and let begun tasks finish.

        Args:
            reason: why the worker stops, for messages. A second call does not change the reason.
            why: name of the cause, for the record of the worker.
            grace_s: seconds in which begun tasks may finish (default: `WorkerSettings.grace_s`).
        """
        grace_s = self._settings.grace_s if grace_s is None else grace_s
        until = time.monotonic() + grace_s
        if self._drains_until is not None:
            self._drains_until = min(self._drains_until, until)
            return
        self._drains_until = until
        if self._deadline is not None:
            self._drains_until = min(self._drains_until, self._deadline)
        if self._outcome.state != "stage-closed":
            self._outcome.state = "stopped"
            if self._registration is not None:
                self._registration.stopping(why, reason)
        self._outcome.message = f"stopped: {reason}"
        self._receiver.close()
        self._tasks.release_untouched()
        self._has_worked = len(self._tasks) > 0 or self._outcome.ended > 0
        message = f"stopping: {reason}; finishing the tasks that have begun ({self._tasks.active})"
        logger.warning("%s", message)
        self._listener.changed(message)

    def _keep_limits(self, now: float) -> None:
        limits = self._settings.limits
        ended, longest_s = self._outcome.ended, self._pool.longest_s
        if limits.max_tasks is not None and ended >= limits.max_tasks:
            self._stop(f"{ended} tasks have ended, which is the limit of --max-tasks")
        elif self._deadline is not None and now + longest_s >= self._deadline:
            remaining_s = max(0.0, self._deadline - now)
            self._stop(
                f"only {remaining_s:.1f} s remain of {limits.reason}, but the slowest task so far "
                f"took {longest_s:.0f} s"
            )
        elif (reason := self._stop_reason()) is not None:
            # What is being computed is finished, however long it takes: most of it is done.
            self._tasks.release_loaded()
            self._stop(reason, grace_s=math.inf)

    def _leave(self) -> None:
        self._receiver.close()
        start = time.monotonic()
        self._tasks.release_all()
        if self._leaves_at_once or self._outcome.state == "stopped":
            self._pool.kill()
        else:
            self._pool.end()
        flush_s = RELEASE_S if self._leaves_at_once else LEAVE_S
        if self._drains_until is not None and not self._leaves_at_once:
            flush_s = max(RELEASE_S, min(flush_s, self._drains_until - start))
        if not self._recorder.flush(flush_s):
            self._recorder.give_up()
            self._recorder.flush(RELEASE_S)
        # A pending request may still return messages, which must be released for other workers.
        join_s = min(self._settings.receive_wait_s, self._settings.lease_s / 3) + 1
        self._receiver.join(min(join_s, RELEASE_S) if self._leaves_at_once else join_s)
        with suppress(Empty):
            while True:
                kind, content = self._events.get_nowait()
                if kind == "recorded":  # count what was recorded meanwhile
                    self._recorded(content)
                elif kind == "received":
                    for job in content:
                        self._tasks.give_back(job)
        self._recorder.flush(RELEASE_S)
        self._acknowledger.flush(RELEASE_S)

    # --- the end of the work ---------------------------------------------------------------------

    def _check_complete(self, now: float) -> None:
        if self._tasks or self._is_over:
            self._completion.busy()
            return
        idle_s = self._completion.idle(now)
        idle_exit_s = self._settings.limits.idle_exit_s
        # A worker whose processes still start is not idle: that may take longer than idle_exit_s.
        if idle_exit_s is not None and min(idle_s, self._pool.ready_s(now)) > idle_exit_s:
            self._stop(f"no task arrived for {idle_exit_s:g} s")

    def _checked(self, queued: Counts | None, ended: int | None, dead: int | None) -> None:
        self._queued = queued or self._queued
        reason = self._completion.checked(time.monotonic(), queued, ended)
        if ended is not None and dead is not None and ended >= len(self._plan):
            self._is_over = True
            if self._drains_until is None:
                self._complete(ended, dead)
        elif reason is not None and not self._tasks:
            self._stop(reason)

    def _complete(self, ended: int, dead: int) -> None:
        self._outcome.state = "complete-with-failures" if dead else "complete"
        failed = f", {dead} as failed" if dead else ""
        self._outcome.message = f"all {ended} tasks are recorded{failed}"

    def _notice_completion(self) -> None:
        """Report the step as complete if its last tasks were recorded during the stop.

        The ledger must answer within `LEAVE_S`, or within the rest of the grace period if that is
        shorter. Otherwise, the next worker notices that the step is complete.
        """
        if self._outcome.state != "stopped" or self._leaves_at_once or not self._has_worked:
            return
        left_s = (self._drains_until or 0.0) - time.monotonic()
        answers: SimpleQueue[LedgerCounts | None] = SimpleQueue()

        def ask() -> None:
            counts = None
            with suppress(ChunkflowError):
                if self._ledger.ended() >= len(self._plan):
                    counts = self._ledger.counts()
            answers.put(counts)

        threading.Thread(target=ask, name="completion", daemon=True).start()
        with suppress(Empty):
            counts = answers.get(timeout=max(RELEASE_S, min(LEAVE_S, left_s)))
            if counts is not None and counts.finished >= len(self._plan):
                self._complete(counts.finished, counts.dead)


class InFlightTasks:
    """The tasks of a worker, from their receipt until each is recorded or released.

    ```
    received -> active: in the pool --done, skipped--> recording -> recorded
                                    --failed---------> recording: counted
                                    --lost, stopped--> released
    ```

    Use an instance only in the thread of the supervisor.

    Args:
        spec: hash of the step, for records.
        worker: name of the worker, for records.
        settings: settings of the worker.
        keeper: object that renews the leases of the tasks.
        pool: worker processes that run the tasks.
        acknowledger: returns messages to the queue.
        recorder: writes outcomes to the ledger.
        outcome: result of the worker, to which the numbers of tasks are added.
        listener: callbacks that report progress.
        stop: function that is called with the reason and the cause when the worker must stop.

    Attributes:
        profile: compute profile of the pool, as one line.
    """

    def __init__(
        self,
        spec: str,
        worker: str,
        settings: WorkerSettings,
        keeper: LeaseKeeper,
        pool: WorkerPool,
        acknowledger: Acknowledger,
        recorder: OutcomeRecorder,
        outcome: WorkerOutcome,
        listener: WorkerListener,
        stop: Callable[[str, WorkerEnd], None],
    ) -> None:
        self._spec = spec
        self._worker = worker
        self._settings = settings
        self._keeper = keeper
        self._pool = pool
        self._acknowledger = acknowledger
        self._recorder = recorder
        self._outcome = outcome
        self._listener = listener
        self._stop = stop
        self._active: dict[int, Job] = {}
        self._recording: dict[int, Job] = {}
        self._recent: dict[int, bool] = {}  # the `MOST_RECENT` tasks recorded last, in order
        self._policy = FailurePolicy(settings.disk_wait_s, settings.retry_s)
        self.profile = ""

    def __len__(self) -> int:
        return len(self._active) + len(self._recording)

    @property
    def active(self) -> int:
        """Number of received tasks that have not ended yet."""
        return len(self._active)

    def wanted(self, now: float) -> int:
        """Return the number of further tasks to receive at time *now* (monotonic clock)."""
        back_off = self._policy.back_off
        if now < back_off.until or len(self._recording) > MOST_RECORDING:
            return 0
        target = self._pool.target
        if back_off.is_probing:
            target = min(1, target)
        if (most := self._settings.limits.max_tasks) is not None:
            target = min(target, most - self._outcome.ended - len(self._recording))
        return target - len(self._active)

    # --- how tasks arrive and end ----------------------------------------------------------------

    def received(self, jobs: Sequence[Job]) -> None:
        """Accept received tasks; if the worker pauses (back-off), release them instead."""
        if time.monotonic() < self._policy.back_off.until:
            for job in jobs:
                self._release(job)
            return
        accepted, given_up = [], self._pool.given_up()
        for job in jobs:
            active = self._active.get(job.number)
            if self._recent.pop(job.number, None) or job.number in self._recording:
                # The task may have been recorded since the receiver's look-up: repeat the look-up.
                self._release(job)
            elif job.number in given_up or (active and active.is_cancelled):
                self._release(job, REDELIVERY_S)
            elif active is not None:  # delivered twice: both messages share one outcome
                active.leases += job.leases
                job.leases = []
                self._release(job)
            else:
                self._active[job.number] = job
                accepted.append(job)
        self._pool.add(job for job in accepted if not job.is_suspected)
        for job in accepted:
            if job.is_suspected:
                self._pool.run_alone(job)

    def ended_in(self, process: WorkerProcess, outcomes: Sequence[TaskEnded]) -> None:
        """Process the reports of a worker process about tasks that have ended."""
        records: list[tuple[Job, Record | FailedAttempt]] = []
        for ended in outcomes:
            job = self._pool.ended(process, ended)
            if job is None:
                continue
            job.operators = _operator_times(process, ended)
            if job.lost or ended.state == "lost":
                self.give_back(job)
            elif ended.fault is not None:
                self._decide(job, ended, ended.fault, is_alone=not process.begun())
            else:
                self._policy.succeeded()
                records.append((job, self._record_of(job, ended)))
        self._record(records)

    def _record_of(self, job: Job, ended: TaskEnded) -> Record:
        return Record(
            job.number,
            job.box,
            "skipped" if ended.state == "skipped" else "done",
            self._spec,
            job.attempt,
            self._worker,
            self.profile,
            ended.seconds,
            tuple(Stored(*each) for each in ended.written),
            ended.reason,
            missing_blocks=ended.missing_blocks,
            patches=ended.patches,
        )

    def _record(self, outcomes: Sequence[tuple[Job, Record | FailedAttempt]]) -> None:
        for job, _ in outcomes:
            self._active.pop(job.number, None)
            self._recording[job.number] = job
        if outcomes:
            self._recorder.record(outcomes)

    def recorded(self, outcomes: Sequence[tuple[Job, Record | None, FailedAttempt | None]]) -> None:
        """Count the outcomes that the recorder has written to the ledger."""
        outcome = self._outcome
        for job, record, failure in outcomes:
            self._recording.pop(job.number, None)
            if failure is not None:
                outcome.failures += 1
                self._listener.task_failed(failure)
                self._listener.attempt_ended(failure, job.operators)
            elif record is not None:
                self._listener.attempt_ended(record, job.operators)
            if record is None:
                continue
            self._recent[job.number] = True
            if len(self._recent) > MOST_RECENT:
                del self._recent[next(iter(self._recent))]
            if record.state == "done":
                outcome.done += 1
            elif record.state == "skipped":
                outcome.skipped += 1
            else:
                outcome.dead += 1
                fields = {"task": record.box, "outcome": "given up", "error": record.reason}
                extra = {"event": "task_finished", "fields": fields}
                logger.error("gave up on task %s: %s", record.box, record.reason, extra=extra)
            self._listener.task_ended(record)

    # --- failures --------------------------------------------------------------------------------

    def _decide(self, job: Job, ended: TaskEnded, fault: Fault, *, is_alone: bool) -> None:
        decision = self._policy.decide(job.number, fault, self._worker, is_alone=is_alone)
        match decision.action:
            case "count":
                self.failed(job, decision.fault, sum(ended.seconds.values()))
            case "retry":
                logger.warning("task %s is released for a retry: %s", job.box, fault.reason)
                self.give_back(job, decision.delay_s)
            case "retry-alone":
                self._pool.run_alone(job)
            case "pause":
                logger.error("%s", decision.message)
                self._listener.changed(decision.message)
                self.give_back(job)
                self.release_untouched()
            case "stop":
                self.give_back(job)
                self._stop(decision.message, decision.fault.cause)

    def failed(self, job: Job, fault: Fault, seconds: float | None) -> None:
        """Pass a failed attempt to the recorder; *seconds* is the run time of the attempt."""
        fields = {"task": job.box, "kind": fault.kind, "cause": fault.cause, "error": fault.reason}
        extra = {"event": "task_failed", "fields": fields | {"attempt": job.attempt}}
        logger.warning("task %s failed: %s", job.box, fault.reason, extra=extra)
        failure = FailedAttempt(
            job.number,
            job.box,
            job.attempt,
            self._worker,
            fault.kind,
            fault.reason,
            fault.traceback,
            seconds=seconds,
            cause=fault.cause,
        )
        self._record([(job, failure)])

    # --- releasing -------------------------------------------------------------------------------

    def give_back(self, job: Job, delay_s: float = 0.0) -> None:
        """Release a task, and ignore further reports about the task."""
        job.is_given_up = True
        self._active.pop(job.number, None)
        self._release(job, delay_s)

    def _release(self, job: Job, delay_s: float = 0.0) -> None:
        if job.is_suspected:
            self._recorder.withdraw(job, delay_s)
        else:
            self._acknowledger.release(job.leases, delay_s)

    def release_untouched(self) -> None:
        """Release all tasks that no worker process has begun."""
        for job in self._pool.withdraw_untouched():
            self.give_back(job)

    def release_loaded(self) -> None:
        """Release all tasks that worker processes have loaded but do not compute yet."""
        for job in self._pool.withdraw_loaded():
            self.give_back(job)

    def release_all(self) -> None:
        """Release all tasks that have not ended."""
        for job in list(self._active.values()):
            self.give_back(job)

    def lost(self, held: Held) -> None:
        """Stop the task whose lease *held* is lost, unless the task has another lease."""
        for job in list(self._active.values()):
            if held in job.leases and job.lost:
                self._listener.changed(f"the lease of task {job.box} is lost")
                self._pool.cancel(job)
                if not self._pool.holds(job):
                    self.give_back(job)
                return

    def watch_leases(self) -> None:
        """Stop tasks whose lease is about to expire; kill the process if a lease has expired."""
        clock, lease_s = self._keeper.clock(), self._settings.lease_s
        late = clock + min(max(LATE_S, lease_s / 12), lease_s / 4)
        for job in [job for job in self._active.values() if job.lease_ends < late]:
            if not self._pool.holds(job):
                self.give_back(job)
            elif job.lease_ends > clock:
                self._pool.cancel(job)
            else:
                self._pool.abandon(job, f"the lease of task {job.box} is lost")
                self.give_back(job)


def _operator_times(process: WorkerProcess, ended: TaskEnded) -> tuple[OperatorTime, ...]:
    stages = dict(zip(process.operators, process.stages, strict=True))
    return tuple(
        OperatorTime(label, stages.get(label, ""), ended.began[label], seconds)
        for label, seconds in ended.seconds.items()
        if label in ended.began
    )


class CompletionWatch:
    """Checks periodically, while a worker is idle, whether its step is complete.

    Only the ledger shows whether the step is complete. An empty queue does not show this, because a
    task that another worker has leased may return to the queue. Each check first counts the
    messages in the queue, because this is cheap. The check reads the ledger only if no task waits,
    or if the worker stays idle although tasks wait, for example tasks of another run.

    Args:
        queue: queue of the tasks.
        ledger: ledger of the step.
        total: number of tasks of the step.
        quiet_s: missing tasks are reported after the queue has been empty for this many seconds.
        until_complete: whether to wait for tasks that other workers have leased.
        post: function that is called in a thread with the name and the content of an event:
            ``checked`` with the counts of the queue, the number of ended tasks and the number of
            dead tasks (each ``None`` if it is unknown); ``stuck`` with the reason why a check has
            failed; ``fatal`` with an error.
    """

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        total: int,
        quiet_s: float,
        until_complete: bool,
        post: Callable[[str, Any], None],
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._total = total
        self._post = post
        self._quiet_s = quiet_s
        self._until_complete = until_complete
        self._idle_since: float | None = None
        self._quiet_since: float | None = None
        self._check_at = 0.0
        self._interval_s = FIRST_CHECK_S
        self._is_checking = False

    def busy(self) -> None:
        """Record that the worker has tasks."""
        self._idle_since = None
        self._quiet_since = None

    def idle(self, now: float) -> float:
        """Record that the worker has no tasks; return the seconds since it became idle."""
        if self._idle_since is None:
            self._idle_since = now
            self._check_at = now + FIRST_CHECK_S
            self._interval_s = FIRST_CHECK_S
        elif not self._is_checking and now >= self._check_at:
            self._is_checking = True
            threading.Thread(target=self._check, name="check", daemon=True).start()
        return now - self._idle_since

    def _check(self) -> None:
        queued: Counts | None = None
        ended: int | None = None
        dead: int | None = None
        try:
            queued = self._queue.counts(dead=False)
            if queued.waiting == 0 or self._interval_s > DISTRUST_S:
                ended = self._ledger.ended()
                if ended >= self._total:
                    recorded = self._ledger.counts()
                    ended, dead = recorded.finished, recorded.dead
        except ChunkflowError as error:
            if fault_of(error).is_final:
                self._post("fatal", error)
            else:
                self._post("stuck", str(error))
        except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
            self._post("fatal", error)
        self._post("checked", (queued, ended, dead))

    def checked(self, now: float, queued: Counts | None, ended: int | None) -> str | None:
        """Process the result of a check; return a reason to stop waiting, or ``None``.

        Args:
            now: current time, in seconds of the monotonic clock.
            queued: numbers of messages in the queue; ``None`` if they are unknown.
            ended: number of tasks that have ended; ``None`` if it is unknown.
        """
        self._is_checking = False
        # Jitter, so that workers that wait for the last task do not all check at the same time.
        self._check_at = now + self._interval_s * random.uniform(0.7, 1.3)  # noqa: S311
        self._interval_s = min(LONGEST_CHECK_S, 1.5 * self._interval_s)
        if self._idle_since is None or queued is None or ended is None or queued.waiting:
            self._quiet_since = None
            return None
        missing = self._total - ended
        if not self._until_complete:
            return f"the queue is empty; {missing} tasks are not recorded yet"
        if queued.leased:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since > self._quiet_s:
            return (
                f"{missing} tasks are neither queued nor recorded; run chunkflow repair to queue "
                "them again"
            )
        return None
