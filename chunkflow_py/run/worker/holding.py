"""The tasks that a worker holds: from their receipt until each is recorded or given back.

```
received -> active: with the crew --done, skipped--> settling: to be recorded -> settled
                                  --failed---------> settling: to be counted --> settled
                                  --lost, stopped--> given back
```
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.worker.failure_policy import FailurePolicy
from chunkflow_py.store.protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.queue.leases import Held, LeaseKeeper
    from chunkflow_py.run.worker.acknowledger import Acknowledger
    from chunkflow_py.run.worker.child import Ended
    from chunkflow_py.run.worker.children import Child
    from chunkflow_py.run.worker.crew import Crew
    from chunkflow_py.run.worker.failure_policy import Fault
    from chunkflow_py.run.worker.outcome_recorder import OutcomeRecorder
    from chunkflow_py.run.worker.settings import Listener, Outcome
    from chunkflow_py.run.worker.task_receiver import Job
    from chunkflow_py.run.worker.worker_limits import WorkerSettings

logger = logging.getLogger(__name__)

RECENT = 4096
MOST_SETTLING = 2048  # tasks that wait to be recorded; more are not taken
AGAIN_S = 2.0  # before a task comes again that cannot be taken now
LATE_S = 1.0  # at least, before the end of a lease that is not renewed, work on its task stops


class Holding:
    """All tasks of one worker; used in its thread alone.

    Args:
        spec: hash of the stage's spec, for records.
        worker: who this is, for records.
        settings: of the worker.
        keeper: of leases.
        returns: of messages.
        settler: of tasks that have ended.
        outcome: where it is counted how tasks ended.
        listener: hears of it.
        stop: called with a reason to stop.

    Attributes:
        crew: works on the tasks.
        profile: numerical profile of the crew, as one line.
        policy: what failures mean, and whether tasks are to be taken.
    """

    crew: Crew

    def __init__(
        self,
        spec: str,
        worker: str,
        settings: WorkerSettings,
        keeper: LeaseKeeper,
        acknowledger: Acknowledger,
        recorder: OutcomeRecorder,
        outcome: Outcome,
        listener: Listener,
        stop: Callable[[str], None],
    ) -> None:
        """Hold nothing."""
        self._spec, self._worker, self._settings = spec, worker, settings
        self._keeper, self._acknowledger, self._recorder = keeper, acknowledger, recorder
        self._outcome, self._listener, self._stop = outcome, listener, stop
        self._active: dict[int, Job] = {}
        self._settling: dict[int, Job] = {}
        self._recent: dict[int, bool] = {}  # tasks that were settled last
        self.profile = ""
        self.policy = FailurePolicy(settings.disk_wait_s, settings.retry_s)

    def __len__(self) -> int:
        """Return how many tasks are held."""
        return len(self._active) + len(self._settling)

    @property
    def active(self) -> int:
        """How many tasks have not ended yet."""
        return len(self._active)

    @property
    def ended(self) -> int:
        """How many attempts have ended here."""
        outcome = self._outcome
        return outcome.done + outcome.skipped + outcome.failures

    def wanted(self, now: float) -> int:
        """Return how many more tasks are wanted."""
        if now < self.policy.back_off.until or len(self._settling) > MOST_SETTLING:
            return 0
        target = self.crew.target
        if self.policy.back_off.is_probing:
            target = min(1, target)
        if (most := self._settings.limits.max_tasks) is not None:
            target = min(target, most - self.ended - len(self._settling))
        return target - len(self._active)

    # --- how tasks come and end ------------------------------------------------------------------

    def received(self, jobs: Sequence[Job]) -> None:
        """Take tasks, unless a pause has begun since they were asked for: others may have room."""
        if time.monotonic() < self.policy.back_off.until:
            for job in jobs:
                self._release(job)
            return
        fresh, leaving = [], self.crew.leaving()
        for job in jobs:
            known = self._active.get(job.number)
            if self._recent.pop(job.number, None) or job.number in self._settling:
                # It was settled after the ledger was asked, or is about to be: that is asked again.
                self._release(job)
            elif job.number in leaving or (known and known.is_cancelled):
                self._release(job, AGAIN_S)
            elif known is not None:  # delivered twice: both messages share its fate
                known.leases += job.leases
                job.leases = []
                self._release(job)
            else:
                self._active[job.number] = job
                fresh.append(job)
        self.crew.add(job for job in fresh if not job.is_suspected)
        for job in fresh:
            if job.is_suspected:
                self.crew.run_alone(job)

    def ended_in(self, child: Child[Job], outcomes: Sequence[Ended]) -> None:
        """Take what a child says of the tasks that it is done with."""
        records: list[tuple[Job, Record | FailedAttempt]] = []
        for ended in outcomes:
            job = self.crew.ended(child, ended)
            if job is None:
                continue
            if job.lost or ended.state == "lost":
                self.give_back(job)
            elif ended.fault is not None:
                self._sort_failure(job, ended, ended.fault, is_alone=not child.begun())
            else:
                self.policy.succeeded()
                records.append((job, self._record(job, ended)))
        self._settle(records)

    def _record(self, job: Job, ended: Ended) -> Record:
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
        )

    def _settle(self, ended: Sequence[tuple[Job, Record | FailedAttempt]]) -> None:
        for job, _ in ended:
            self._active.pop(job.number, None)
            self._settling[job.number] = job
        if ended:
            self._recorder.record(ended)

    def settled(self, ended: Sequence[tuple[Job, Record | None, FailedAttempt | None]]) -> None:
        """Take note of what is recorded."""
        outcome = self._outcome
        for job, record, failure in ended:
            self._settling.pop(job.number, None)
            if failure is not None:
                outcome.failures += 1
                self._listener.task_failed(failure)
            if record is None:
                continue
            self._recent[job.number] = True
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
            if record.state == "done":
                outcome.done += 1
            elif record.state == "skipped":
                outcome.skipped += 1
            else:
                outcome.dead += 1
                fields = {"task": record.box, "outcome": "given up", "error": record.reason}
                extra = {"event": "task_finished", "fields": fields}
                logger.error("gave up task %s: %s", record.box, record.reason, extra=extra)
            self._listener.task_ended(record)

    # --- failures --------------------------------------------------------------------------------

    def _sort_failure(self, job: Job, ended: Ended, fault: Fault, *, is_alone: bool) -> None:
        decision = self.policy.decide(job.number, fault, self._worker, is_alone=is_alone)
        match decision.action:
            case "count":
                self.failed(job, decision.fault, sum(ended.seconds.values()))
            case "retry":
                logger.warning("task %s is given back: %s", job.box, fault.reason)
                self.give_back(job, decision.delay_s)
            case "retry-alone":
                self.crew.run_alone(job)
            case "pause":
                logger.error("%s", decision.message)
                self._listener.changed(decision.message)
                self.give_back(job)
                self.release_untouched()
            case "stop":
                self.give_back(job)
                self._stop(decision.message)

    def failed(self, job: Job, fault: Fault, seconds: float | None) -> None:
        """Count a failure of a task after some seconds of work, and give it back or up."""
        fields = {"task": job.box, "kind": fault.kind, "error": fault.reason}
        extra = {"event": "task_failed", "fields": fields | {"attempt": job.attempt}}
        logger.warning("task %s failed: %s", job.box, fault.reason, extra=extra)
        who = job.number, job.box, job.attempt, self._worker
        why = fault.kind, fault.reason, fault.traceback
        self._settle([(job, FailedAttempt(*who, *why, seconds=seconds))])

    # --- giving back -----------------------------------------------------------------------------

    def give_back(self, job: Job, delay_s: float = 0.0) -> None:
        """Release a task, and forget it."""
        job.is_given_up = True
        self._active.pop(job.number, None)
        self._release(job, delay_s)

    def _release(self, job: Job, delay_s: float = 0.0) -> None:
        if job.is_suspected:
            self._recorder.withdraw(job, delay_s)
        else:
            self._acknowledger.release(job.leases, delay_s)

    def release_untouched(self) -> None:
        """Release all that no child has begun."""
        for job in self.crew.untouched():
            self.give_back(job)

    def release_all(self) -> None:
        """Release all that has not ended."""
        for job in list(self._active.values()):
            self.give_back(job)

    def lost(self, held: Held) -> None:
        """Stop work on a task whose lease is lost, unless another of its leases lasts."""
        for job in list(self._active.values()):
            if held in job.leases and job.lost:
                self._listener.changed(f"the lease of task {job.box} is lost")
                self.crew.cancel(job)
                if not self.crew.holds(job):
                    self.give_back(job)
                return

    def watch_leases(self) -> None:
        """Stop work on tasks whose leases are about to end, and cut it when they have ended."""
        clock, lease_s = self._keeper.clock(), self._settings.lease_s
        late = clock + min(max(LATE_S, lease_s / 12), lease_s / 4)
        for job in [job for job in self._active.values() if job.lease_ends < late]:
            if not self.crew.holds(job):
                self.give_back(job)
            elif job.lease_ends > clock:
                self.crew.cancel(job)
            else:
                self.crew.abandon(job, f"task {job.box} is not leased to this worker any more")
                self.give_back(job)
