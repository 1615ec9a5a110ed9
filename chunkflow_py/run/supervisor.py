"""One worker on one stage: receives tasks, has children work them off, records, acknowledges.

```
queue -> Intake --jobs--> Supervisor --> Crew --> children       one thread each; the supervisor
         renewed by        (events)  <-- outcomes -- |           alone decides, from events
         LeaseKeeper          |
                              +--> Settler: ledger --> Returns: queue
```

No step rests on a polite end: a task is finished when its record is in the ledger, and its message
is acknowledged after that. Whatever dies before leaves a message that is delivered again.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.run.child import DEAF_TO, Broken, Ended, Ready
from chunkflow_py.run.completion import CompletionWatch
from chunkflow_py.run.crew import Crew
from chunkflow_py.run.intake import Intake, Job, Work
from chunkflow_py.run.interruption import InterruptionWatch
from chunkflow_py.run.outcome import Fault
from chunkflow_py.run.patience import Patience
from chunkflow_py.run.record import Failure, Record
from chunkflow_py.run.returns import Caps, Returns, Settler
from chunkflow_py.run.settings import Listener, Outcome, Settings
from chunkflow_py.store.protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.queue.leases import Held
    from chunkflow_py.queue.protocol import Counts, Queue
    from chunkflow_py.run.children import Child, ChildStart
    from chunkflow_py.run.ledger import Ledger, LedgerCounts
    from chunkflow_py.run.settings import EndState
    from chunkflow_py.task_plan import Plan

__all__ = ["Listener", "Outcome", "Settings", "Supervisor"]

logger = logging.getLogger(__name__)

TICK_S = 0.2
RELEASE_S = 2.0  # in which what has not begun is given back
MOST_SETTLING = 2048  # tasks that wait to be recorded; more are not taken
RECENT = 4096
AGAIN_S = 5.0  # before a task comes again that cannot be taken now
LATE_S = 1.0  # at least, before the end of a lease that is not renewed, work on its task stops


class Supervisor:
    """Works off one stage.

    Args:
        stage: its name.
        spec: hash of its spec, for records.
        plan: its tasks.
        queue: where they wait.
        ledger: where they are recorded.
        start: what children run.
        settings: see there.
        check_profile: called with the numerical profile of each child before it gets a task;
            raises one of our errors to refuse it.
        worker: who this is, for records.
        run: what the messages of this stage say to be of; ``None`` accepts those of all runs.
        stages: the same for all stages of the run, in order.
        listener: hears of progress.
    """

    def __init__(
        self,
        *,
        stage: str,
        spec: str,
        plan: Plan,
        queue: Queue,
        ledger: Ledger,
        start: ChildStart,
        settings: Settings,
        check_profile: Callable[[dict[str, str] | None], None],
        worker: str,
        run: str | None = None,
        stages: Mapping[str, str | None] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Start nothing yet."""
        self._plan, self._queue, self._ledger, self._start = plan, queue, ledger, start
        self._settings, self._spec, self._worker = settings, spec, worker
        self._check_profile = check_profile
        self._listener = listener or Listener()
        self._work = Work(secrets.token_hex(6), plan, stage, {**(stages or {}), stage: run})
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._outcome = Outcome()
        self._jobs: dict[int, Job] = {}
        self._recent: dict[int, bool] = {}  # tasks that were settled last
        self._patience = Patience(settings.disk_wait_s)
        self._profile = ""
        self._profile_lock = threading.Lock()
        self._error: Exception | None = None
        self._signals = 0
        self._drains_until: float | None = None  # seconds of the monotonic clock
        self._is_over = self._leaves_at_once = False
        self._completion = CompletionWatch(
            queue, ledger, len(plan), 2 * settings.lease_s, settings.until_complete, self._post
        )

    def stop(self, reason: str) -> None:
        """Ask it to stop, from any thread: what has begun is finished first."""
        self._events.put(("stop", reason))

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Work until the stage is complete, or there is a reason to stop.

        Raises:
            OptionError: the line is wrong, or this machine computes other bytes than the run's.
            ChunkflowError: the queue or the ledger refuses, or no child can begin.
        """
        settings = self._settings
        began = time.monotonic()
        bound_s = settings.limits.deadline_s
        self._deadline = None if bound_s is None else began + bound_s
        post = self._post
        with ExitStack() as stack:
            self._keeper = stack.enter_context(
                LeaseKeeper(self._queue, settings.lease_s, on_lost=lambda held: post("lost", held))
            )
            self._returns = Returns(self._keeper, lambda error: post("fatal", error))
            stack.callback(self._returns.close)
            caps = Caps(settings.max_failures, settings.max_transient, settings.retry_s)
            self._settler = Settler(
                self._ledger,
                self._returns,
                caps,
                self._spec,
                post,
                records_attempts=settings.records_attempts,
            )
            stack.callback(self._settler.close)
            self._intake = Intake(
                self._work, self._keeper, self._ledger, self._returns, post, settings.receive_wait_s
            )
            stack.callback(self._intake.close)
            self._crew = Crew(
                self._start,
                settings,
                self._keeper.clock,
                self._from_child,
                self._failed,
            )
            stack.callback(self._crew.kill)
            if settings.watches_notices:
                stack.callback(InterruptionWatch(self.stop).close)
            self._listen_to_signals(stack)
            while not self._is_over:
                self._step()
            self._leave()
        if self._error is not None:
            raise self._error
        return self._outcome

    def _listen_to_signals(self, stack: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in DEAF_TO:
            # The handler only leaves a note: it may run between any two steps of this thread.
            before = signal.signal(
                number, lambda sent, _: self._post("signal", signal.Signals(sent).name)
            )
            stack.callback(signal.signal, number, before)

    def _post(self, kind: str, content: Any) -> None:
        self._events.put((kind, content))

    def _from_child(self, child: Child[Job], messages: Sequence[Any] | None) -> None:
        """Post what a child says; called in the thread that reads its pipe."""
        for message in messages or ():
            if isinstance(message, Ready):
                try:
                    with self._profile_lock:  # this may ask a store; nobody else waits for it
                        self._check_profile(message.profile)
                except Exception as error:  # noqa: BLE001 raised in the supervisor's thread
                    self._post("fatal", error)
                    return
        self._post("child", (child, messages))

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
            self._crew.tick(now)
        except ChunkflowError as error:
            self._fatal(error)
            return
        self._watch_leases()
        if self._drains_until is not None:
            self._release_untouched()
            active = any(not job.is_ended for job in self._jobs.values())
            if not self._jobs or (now >= self._drains_until and active):
                self._is_over = True
            return
        self._keep_limits(now)
        self._crew.feed()
        self._intake.want(self._wanted(now))
        self._look_whether_complete(now)

    def _wanted(self, now: float) -> int:
        if now < self._patience.until:
            return 0
        active = sum(not job.is_ended for job in self._jobs.values())
        if len(self._jobs) - active > MOST_SETTLING:
            return 0
        target = self._crew.target
        if self._patience.is_probing:
            target = min(1, target)
        if (most := self._settings.limits.max_tasks) is not None:
            target = min(target, most - self._ended - (len(self._jobs) - active))
        return target - active

    @property
    def _ended(self) -> int:
        outcome = self._outcome
        return outcome.done + outcome.skipped + outcome.failures

    # --- events ----------------------------------------------------------------------------------

    def _handle(self, kind: str, content: Any) -> None:
        match kind:
            case "child":
                self._heard(*content)
            case "received":
                self._received(content)
            case "settled":
                self._settled(content)
            case "lost":
                self._lost(content)
            case "signal":
                self._signals += 1
                self._stop(f"got {content}")
                if self._signals > 1:
                    self._is_over = self._leaves_at_once = True
            case "stop":
                self._stop(content)
            case "closed-stage":
                self._outcome.state = "stage-closed"
                self._stop(f"the run has come to stage {content}")
            case "stuck":
                self._listener.changed(f"waits: {content}")
            case "checked":
                self._checked(*content)
            case "fatal":
                self._fatal(content)

    def _fatal(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    def _heard(self, child: Child[Job], messages: Sequence[Any] | None) -> None:
        if messages is None:
            try:
                self._crew.exited(child)
            except ChunkflowError as error:
                self._fatal(error)
            return
        settled: list[tuple[Job, Record | Failure]] = []
        for message in messages:
            match message:
                case Ended():
                    job = self._crew.ended(child, message)
                    if job is not None:
                        self._end(child, job, message, settled)
                case Ready():
                    self._crew.ready(child, message)
                    if message.profile:
                        self._profile = ", ".join(f"{k} {v}" for k, v in message.profile.items())
                    if self._settings.records_attempts:
                        self._intake.profile = self._profile
                    self._listener.child_ready(child.number, message.profile)
                case Broken():
                    self._crew.broken(child, message)
        if settled:
            self._settler.settle(settled)

    def _end(
        self,
        child: Child[Job],
        job: Job,
        ended: Ended,
        settled: list[tuple[Job, Record | Failure]],
    ) -> None:
        if job.lost or ended.state == "lost":
            self._give_back(job)
        elif ended.fault is not None:
            self._sort_failure(job, ended.fault, is_alone=not self._crew.others_begun(child))
        elif ended.state in ("done", "skipped"):
            self._patience.succeeded()
            job.is_ended = True
            record = Record(
                job.number,
                job.box,
                ended.state,  # type: ignore[arg-type]  # one of two
                self._spec,
                job.attempt,
                self._worker,
                self._profile,
                ended.seconds,
                tuple(Stored(*each) for each in ended.written),
                ended.reason,
            )
            settled.append((job, record))

    def _received(self, jobs: Sequence[Job]) -> None:
        self._intake.seen(len(jobs))
        self._completion.busy()
        fresh = []
        for job in jobs:
            known = self._jobs.get(job.number)
            if self._recent.pop(job.number, None):
                # It was settled after the ledger was asked: that is asked again.
                self._returns.release(job.leases)
            elif known is None:
                self._jobs[job.number] = job
                fresh.append(job)
            elif known.is_ended or known.is_given_up:
                self._returns.release(job.leases, 0.0 if known.is_ended else AGAIN_S)
            else:  # delivered twice: both messages share its fate
                known.leases += job.leases
        self._crew.add(fresh)

    def _settled(self, settled: Sequence[tuple[Job, Record | None, Failure | None]]) -> None:
        outcome = self._outcome
        for job, record, failure in settled:
            self._jobs.pop(job.number, None)
            if failure is not None:
                outcome.failures += 1
                self._listener.task_failed(failure)
            if record is not None:
                self._recent[job.number] = True
                if len(self._recent) > RECENT:
                    del self._recent[next(iter(self._recent))]
                if record.state == "done":
                    outcome.done += 1
                elif record.state == "skipped":
                    outcome.skipped += 1
                else:
                    outcome.dead += 1
                    logger.error("gave up task %s: %s", record.box, record.reason)
                self._listener.task_ended(record)

    # --- failures --------------------------------------------------------------------------------

    def _sort_failure(self, job: Job, fault: Fault, *, is_alone: bool) -> None:
        now = time.monotonic()
        if fault.shortage == "disk":
            pause = self._patience.disk_full(now)
            words = f"{fault.reason}; takes no tasks, and tries again in {pause:.0f} s"
            logger.error("%s", words)
            self._listener.changed(words)
            self._give_back(job)
            self._release_untouched()
        elif fault.shortage == "memory" and not is_alone:
            self._crew.run_alone(job)  # others may have had the memory
        elif fault.shortage == "memory":
            match self._patience.memory_short(job.number):
                case "blame":
                    self._failed(job, Fault("permanent", fault.reason, fault.traceback))
                case "release":
                    self._give_back(job, self._settings.retry_s)
                case "stop":
                    self._give_back(job)
                    self._stop(f"there is not enough memory here: {fault.reason}")
        else:
            if fault.kind == "transient":
                self._patience.network_failed(now)
            self._failed(job, fault)

    def _failed(self, job: Job, fault: Fault) -> None:
        logger.warning("task %s failed: %s", job.box, fault.reason)
        job.is_ended = True
        failure = Failure(
            job.number,
            job.box,
            job.attempt,
            self._worker,
            fault.kind,
            fault.reason,
            fault.traceback,
        )
        self._settler.settle([(job, failure)])

    # --- giving back -----------------------------------------------------------------------------

    def _give_back(self, job: Job, delay_s: float = 0.0) -> None:
        """Release a task, and forget it."""
        job.is_given_up = True
        if self._jobs.get(job.number) is job:
            del self._jobs[job.number]
        self._returns.release(job.leases, delay_s)

    def _release_untouched(self) -> None:
        for job in self._crew.untouched():
            self._give_back(job)

    def _lost(self, held: Held) -> None:
        for job in self._jobs.values():
            if held in job.leases and job.lost and not job.is_ended:
                self._listener.changed(f"the lease of task {job.box} is lost")
                self._crew.cancel(job)
                if not self._crew.holds(job):
                    self._give_back(job)
                return

    def _watch_leases(self) -> None:
        """Stop work on tasks whose leases are about to end, and cut it when they have ended."""
        clock = self._keeper.clock()
        lease_s = self._settings.lease_s
        late = clock + min(max(LATE_S, lease_s / 12), lease_s / 4)
        ending = [job for job in self._jobs.values() if not job.is_ended and job.lease_ends < late]
        for job in ending:
            if not self._crew.holds(job):
                self._give_back(job)
            elif job.lease_ends > clock:
                self._crew.cancel(job)
            else:
                words = f"task {job.box} is not leased to this worker any more"
                self._crew.abandon(job, words)
                self._give_back(job)

    # --- stopping --------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        """Take no more, give back what has not begun, let the rest end."""
        if self._drains_until is not None:
            return
        now = time.monotonic()
        self._drains_until = now + self._settings.grace_s
        if self._deadline is not None:
            self._drains_until = min(self._drains_until, self._deadline)
        if self._outcome.state != "stage-closed":
            self._outcome.state = "stopped"
        self._outcome.words = f"stopped: {reason}"
        self._intake.close()
        self._release_untouched()
        left = sum(not job.is_ended for job in self._jobs.values())
        words = f"stopping: {reason}; {left} tasks have begun and are finished first"
        logger.warning("%s", words)
        self._listener.changed(words)

    def _keep_limits(self, now: float) -> None:
        limits = self._settings.limits
        if limits.max_tasks is not None and self._ended >= limits.max_tasks:
            self._stop(f"{self._ended} tasks have ended, as many as were asked for")
        elif self._deadline is not None and now + self._crew.longest_s >= self._deadline:
            left, longest = max(0.0, self._deadline - now), self._crew.longest_s
            self._stop(
                f"{left:.0f} s are left of {limits.reason}, and a task took up to {longest:.0f} s"
            )

    def _leave(self) -> None:
        """Give back all that is left, and end the children."""
        self._intake.close()
        start = time.monotonic()
        for job in list(self._jobs.values()):
            if not job.is_ended:
                self._give_back(job)
        if self._leaves_at_once or self._outcome.state == "stopped":
            self._crew.kill()
        else:
            self._crew.end()
        patience_s = RELEASE_S if self._leaves_at_once else max(RELEASE_S, 10.0)
        if self._drains_until is not None and not self._leaves_at_once:
            patience_s = max(RELEASE_S, min(patience_s, self._drains_until - start))
        if not self._settler.flush(patience_s):
            self._settler.give_up()
            self._settler.flush(RELEASE_S)
        if not self._leaves_at_once:
            # A request under way may still bring messages, which others would wait for.
            self._intake.join(min(self._settings.receive_wait_s, self._settings.lease_s / 3) + 1)
        self._returns.flush(RELEASE_S)
        with suppress(Empty):  # what was recorded meanwhile counts
            while True:
                kind, content = self._events.get_nowait()
                if kind == "settled":
                    self._settled(content)

    # --- the end of the work ---------------------------------------------------------------------

    def _look_whether_complete(self, now: float) -> None:
        if self._jobs or self._is_over:
            self._completion.busy()
            return
        idle_s = self._completion.idle(now)
        idle_exit_s = self._settings.limits.idle_exit_s
        if idle_exit_s is not None and idle_s > idle_exit_s:
            self._stop(f"there was nothing to do for {idle_exit_s:g} s")

    def _checked(self, queued: Counts | None, recorded: LedgerCounts | None) -> None:
        words = self._completion.checked(time.monotonic(), queued, recorded)
        if recorded is not None and recorded.finished >= len(self._plan):
            self._is_over = True
            state, words = "complete", f"all {recorded.finished} tasks are recorded"
            if recorded.dead:
                state, words = "complete-with-failures", f"{words}, {recorded.dead} as failed"
            if self._drains_until is None:
                self._outcome.state, self._outcome.words = cast("EndState", state), words
        elif words is not None and not self._jobs:
            self._stop(words)
