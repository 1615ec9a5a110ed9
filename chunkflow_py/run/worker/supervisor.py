"""One worker on one stage: receives tasks, has children work them off, records, acknowledges.

```
queue -> TaskReceiver --> Supervisor --> Crew --> children       one thread each; the supervisor
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

from chunkflow_py.core.interrupts import on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, as_error
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.run.worker.acknowledger import Acknowledger
from chunkflow_py.run.worker.child import Broken, Ended, Ready, Said
from chunkflow_py.run.worker.completion import CompletionWatch
from chunkflow_py.run.worker.crew import Crew
from chunkflow_py.run.worker.failure_policy import AttemptLimits
from chunkflow_py.run.worker.holding import Holding
from chunkflow_py.run.worker.looks import WorkerLook
from chunkflow_py.run.worker.outcome_recorder import OutcomeRecorder
from chunkflow_py.run.worker.settings import Listener, Outcome
from chunkflow_py.run.worker.task_receiver import MessageFilter, PoisonTaskGuard, TaskReceiver
from chunkflow_py.run.worker.worker_interruption import InterruptionWatch
from chunkflow_py.run.worker.worker_limits import TaskDurations, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.queue.protocol import Counts, Queue
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.worker.children import Child, ChildStart
    from chunkflow_py.run.worker.settings import EndState
    from chunkflow_py.run.worker.task_receiver import Job
    from chunkflow_py.tasks.plan import Plan

logger = logging.getLogger(__name__)

TICK_S = 0.2
RELEASE_S = 2.0  # in which what has not begun is given back


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
        is_wanted: whether a message of another stage is to be kept; see `MessageFilter`.
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
        settings: WorkerSettings,
        check_profile: Callable[[dict[str, str] | None], None],
        worker: str,
        run: str | None = None,
        stages: Mapping[str, str | None] | None = None,
        is_wanted: Callable[[str], bool] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Start nothing yet."""
        self._plan, self._queue, self._ledger, self._start = plan, queue, ledger, start
        self._settings, self._spec, self._worker = settings, spec, worker
        self._check_profile = check_profile
        self._listener = listener or Listener()
        self._stage = stage
        self._messages = MessageFilter(plan, stage, {**(stages or {}), stage: run}, is_wanted)
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._outcome = Outcome()
        self._watch_at = 0.0
        self._queued: Counts | None = None
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
        self._listener.stage_started(self._stage, len(self._plan))
        began = time.monotonic()
        bound_s = settings.limits.deadline_s
        self._deadline = None if bound_s is None else began + bound_s
        post = self._post
        with ExitStack() as stack:
            self._keeper = stack.enter_context(
                LeaseKeeper(self._queue, settings.lease_s, on_lost=lambda held: post("lost", held))
            )
            self._acknowledger = Acknowledger(self._keeper, lambda error: post("fatal", error))
            stack.callback(self._acknowledger.close)
            caps = AttemptLimits(
                settings.max_failures,
                settings.max_transient,
                settings.retry_s,
                settings.max_worker_lost,
            )
            guard = PoisonTaskGuard(
                self._ledger, caps, self._spec, keeps_attempts=settings.records_attempts
            )
            self._recorder = OutcomeRecorder(
                self._ledger,
                self._acknowledger,
                caps,
                self._spec,
                guard,
                post,
                records_attempts=settings.records_attempts,
            )
            stack.callback(self._recorder.close)
            self._receiver = TaskReceiver(
                self._messages,
                secrets.token_hex(6),
                self._keeper,
                self._ledger,
                self._acknowledger,
                post,
                settings.receive_wait_s,
                guard,
            )
            stack.callback(self._receiver.close)
            self._holding = Holding(
                self._spec,
                self._worker,
                settings,
                self._keeper,
                self._acknowledger,
                self._recorder,
                self._outcome,
                self._listener,
                self._stop,
            )
            durations = TaskDurations(settings.task_limit, self._ledger.durations)
            self._crew = Crew(
                self._start, settings, self._from_child, self._holding.failed, durations
            )
            self._holding.crew = self._crew
            stack.callback(self._crew.kill)
            if settings.watches_notices:
                stack.callback(InterruptionWatch(self.stop).close)
            self._listen_to_signals(stack)
            while not self._is_over:
                self._step()
            self._listener.may_look(self._look, is_last=True)
            self._leave()
        self._listener.stage_ended(self._outcome)
        if self._error is not None:
            raise self._error
        return self._outcome

    def _look(self) -> WorkerLook:
        """Return what is done now."""
        keeper = self._keeper
        leases = len(keeper.held), keeper.renewals, keeper.losses
        return WorkerLook(self._crew.seen(), *leases, self._queued)

    def _listen_to_signals(self, stack: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # The handler only leaves a note: it may run between any two steps of this thread.
        stack.callback(restore_signals, on_stop_signals(self._signalled))

    def _signalled(self, number: int) -> None:
        self._outcome.signal = signal.Signals(number).name
        self._post("signal", self._outcome.signal)

    def _post(self, kind: str, content: Any) -> None:
        self._events.put((kind, content))

    def _from_child(self, child: Child[Job], messages: Sequence[Any] | None) -> None:
        """Post what a child says; called in the thread that reads its pipe."""
        for message in messages or ():
            if isinstance(message, Ready):
                try:
                    with self._profile_lock:  # this may ask a store; nobody else waits for it
                        self._check_profile(message.profile)
                except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
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
        if now >= self._watch_at:
            self._watch_at = now + TICK_S / 2
            self._holding.watch_leases()
            self._listener.may_look(self._look, is_last=False)
        if self._drains_until is not None:
            self._holding.release_untouched()
            if not self._holding or now >= self._drains_until:
                self._is_over = True
            return
        self._keep_limits(now)
        self._crew.feed()
        self._receiver.want(self._holding.wanted(now))
        self._look_whether_complete(now)

    # --- events ----------------------------------------------------------------------------------

    def _handle(self, kind: str, content: Any) -> None:
        match kind:
            case "child":
                self._heard(*content)
            case "received":
                self._receiver.seen(len(content))
                self._completion.busy()
                self._holding.received(content)
            case "recorded":
                self._holding.settled(content)
            case "lost":
                self._holding.lost(content)
            case "signal":
                self._signals += 1
                self._stop(f"got {content}")
                if self._signals > 1:
                    self._is_over = self._leaves_at_once = True
            case "stop":
                self._stop(content)
            case "closed-stage":
                if self._drains_until is None:
                    self._outcome.state = "stage-closed"
                self._stop(f"the run has come to stage {content}")
            case "stuck":
                self._listener.changed(f"waits: {content}")
            case "checked":
                self._checked(*content)
            case "fatal":
                self._fatal(content)

    def _fatal(self, error: BaseException) -> None:
        if self._error is None:
            self._error = as_error(error, "a thread of the worker")

    def _heard(self, child: Child[Job], messages: Sequence[Any] | None) -> None:
        if messages is None:
            try:
                self._crew.exited(child)
            except ChunkflowError as error:
                self._fatal(error)
            return
        ended: list[Ended] = []
        for message in messages:
            match message:
                case Ended():
                    ended.append(message)
                case Ready():
                    self._crew.ready(child, message)
                    if message.profile:
                        profile = ", ".join(f"{k} {v}" for k, v in message.profile.items())
                        self._holding.profile = profile
                    if self._settings.records_attempts:
                        self._receiver.profile = self._holding.profile
                    self._listener.child_ready(child.number, message.profile)
                case Broken():
                    self._crew.broken(child, message)
                case Said(level, text):
                    logger.log(level, "child %d: %s", child.number, text)
        self._holding.ended_in(child, ended)

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
        self._receiver.close()
        self._holding.release_untouched()
        left = self._holding.active
        words = f"stopping: {reason}; {left} tasks have begun and are finished first"
        logger.warning("%s", words)
        self._listener.changed(words)

    def _keep_limits(self, now: float) -> None:
        limits = self._settings.limits
        if limits.max_tasks is not None and self._holding.ended >= limits.max_tasks:
            self._stop(f"{self._holding.ended} tasks have ended, as many as were asked for")
        elif self._deadline is not None and now + self._crew.longest_s >= self._deadline:
            left, longest = max(0.0, self._deadline - now), self._crew.longest_s
            self._stop(
                f"{left:.1f} s are left of {limits.reason}, and a task took up to {longest:.0f} s"
            )

    def _leave(self) -> None:
        """Give back all that is left, and end the children."""
        self._receiver.close()
        start = time.monotonic()
        self._holding.release_all()
        if self._leaves_at_once or self._outcome.state == "stopped":
            self._crew.kill()
        else:
            self._crew.end()
        patience_s = RELEASE_S if self._leaves_at_once else max(RELEASE_S, 10.0)
        if self._drains_until is not None and not self._leaves_at_once:
            patience_s = max(RELEASE_S, min(patience_s, self._drains_until - start))
        if not self._recorder.flush(patience_s):
            self._recorder.give_up()
            self._recorder.flush(RELEASE_S)
        # A request under way may still bring messages, which others would wait for.
        waits_s = min(self._settings.receive_wait_s, self._settings.lease_s / 3) + 1
        self._receiver.join(min(waits_s, RELEASE_S) if self._leaves_at_once else waits_s)
        with suppress(Empty):
            while True:
                kind, content = self._events.get_nowait()
                if kind == "recorded":  # what was recorded meanwhile counts
                    self._holding.settled(content)
                elif kind == "received":
                    for job in content:
                        self._holding.give_back(job)
        self._recorder.flush(RELEASE_S)
        self._acknowledger.flush(RELEASE_S)

    # --- the end of the work ---------------------------------------------------------------------

    def _look_whether_complete(self, now: float) -> None:
        if self._holding or self._is_over:
            self._completion.busy()
            return
        idle_s = self._completion.idle(now)
        idle_exit_s = self._settings.limits.idle_exit_s
        # A worker that is not ready yet is not idle: its start may take longer than that.
        if idle_exit_s is not None and min(idle_s, self._crew.ready_s(now)) > idle_exit_s:
            self._stop(f"there was nothing to do for {idle_exit_s:g} s")

    def _checked(self, queued: Counts | None, ended: int | None, dead: int | None) -> None:
        self._queued = queued or self._queued
        words = self._completion.checked(time.monotonic(), queued, ended)
        if ended is not None and dead is not None and ended >= len(self._plan):
            self._is_over = True
            state, words = "complete", f"all {ended} tasks are recorded"
            if dead:
                state, words = "complete-with-failures", f"{words}, {dead} as failed"
            if self._drains_until is None:
                self._outcome.state, self._outcome.words = cast("EndState", state), words
        elif words is not None and not self._holding:
            self._stop(words)
