"""Takes messages out of a queue for a supervisor, in a thread of its own, as many as it wants.

```
receive -> lease renewed from here on -> which task? -> in the ledger? --no--> job for the children
                                            |                |
                                       none: buried       yes: acknowledged, or buried if given up
```
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.failpoints import reached
from chunkflow_py.errors import ChunkflowError, GeometryError
from chunkflow_py.queue.body import BodyError, parse_body
from chunkflow_py.run.worker.failure_policy import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.queue.leases import Held, LeaseKeeper
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.worker.doubt import Doubt
    from chunkflow_py.run.worker.returns import Returns
    from chunkflow_py.tasks.plan import Plan

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
FIRST_WAIT_S = 1.0  # for a message; doubles while none comes, so that who has work leaves soon
FOREIGN_DELAY_S = 60.0  # for which a message of another run is left to its own workers
PARSED = 4096  # messages received at once, at most


@dataclass(eq=False, slots=True)
class Job:
    """A task that this worker has received and not yet settled.

    Attributes:
        number: of the task.
        box: of the task.
        leases: of its messages; more than one if it was delivered twice meanwhile.
        attempt: names this attempt.
        is_suspect: several tasks were in a child when it died, this one among them: it runs alone.
        is_doubtful: workers may have ended with it; see `chunkflow_py.run.worker.doubt`.
        is_cancelled: its child was told to stop it, since its lease is lost or about to be.
        is_given_up: nothing that its child still says of it counts.
    """

    number: int
    box: str
    leases: list[Held]
    attempt: str
    is_suspect: bool = False
    is_doubtful: bool = False
    is_cancelled: bool = False
    is_given_up: bool = False

    @property
    def lost(self) -> bool:
        """Whether no lease of it lasts."""
        return all(lease.lost for lease in self.leases)

    @property
    def lease_ends(self) -> float:
        """When the last of its leases ends, by the keeper's clock."""
        return max(lease.ends for lease in self.leases)


@dataclass(frozen=True)
class Work:
    """Which messages are for this worker.

    Attributes:
        attempts: what all attempts of this worker are called by, with a number.
        plan: the tasks.
        stage: its name.
        runs: what messages of each stage of the run say to be of, in the order of the stages;
            ``None`` accepts all.
        is_wanted: whether a message of another stage is to be kept; if it is not told, those of
            later stages are.
    """

    attempts: str
    plan: Plan
    stage: str
    runs: Mapping[str, str | None]
    is_wanted: Callable[[str], bool] | None = None


class Intake:
    """Receives, parses and asks the ledger; posts jobs.

    Args:
        work: which messages are wanted.
        keeper: of leases, and the queue.
        ledger: of finished tasks.
        returns: takes what is not for the children.
        post: called in the thread with ``received`` and a list of jobs, ``closed-stage`` and a
            name, ``stuck`` and why, ``fatal`` and an error.
        wait_s: how long one request waits for a message at most.
        doubt: of tasks that may end their workers; without, none is doubted.

    Attributes:
        profile: of this worker, if attempts are to be told to the ledger before they begin.
    """

    def __init__(
        self,
        work: Work,
        keeper: LeaseKeeper,
        ledger: Ledger,
        returns: Returns,
        post: Callable[[str, Any], None],
        wait_s: float,
        doubt: Doubt | None = None,
    ) -> None:
        """Start the thread; it receives nothing before it is asked."""
        self._doubt = doubt
        self._work, self._keeper, self._ledger, self._returns = work, keeper, ledger, returns
        self._post, self._longest_wait_s = post, wait_s
        self._wait_s = min(wait_s, FIRST_WAIT_S)
        self.profile: str | None = None
        self._attempts = itertools.count()
        self._changed = threading.Condition()
        self._wanted = self._unseen = 0
        self._closed = threading.Event()
        self._foreign: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def want(self, number: int) -> None:
        """Say how many jobs are wanted beyond those that were seen."""
        with self._changed:
            self._wanted = max(0, number - self._unseen)
            if self._wanted:
                self._changed.notify_all()

    def seen(self, number: int) -> None:
        """Say how many of the posted jobs have been seen."""
        with self._changed:
            self._unseen -= number

    def close(self) -> None:
        """Take no more; what a request under way still brings is released."""
        self._closed.set()
        with self._changed:
            self._wanted = 0
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for a request under way; return whether it has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._once()
        except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
            self._post("fatal", error)

    def _once(self) -> None:
        with self._changed:
            while not self._wanted and not self._closed.is_set():
                self._changed.wait()
            most = min(self._wanted, PARSED)
        if not most:
            return
        held = self._tried(lambda: self._keeper.receive(most, self._wait_s))
        if held is None:
            return
        if held:
            reached("leased")
        if self._closed.is_set():
            self._returns.release(held)
            return
        jobs = self._jobs(held) if held else []
        with self._changed:
            self._wanted = max(0, self._wanted - len(jobs))
            self._unseen += len(jobs)
        if jobs:
            self._post("received", jobs)
        longest = self._longest_wait_s
        self._wait_s = min(longest, FIRST_WAIT_S if held else 2 * self._wait_s)
        if not held and not longest:
            self._closed.wait(FIRST_PAUSE_S)

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Return what *call* returns, trying again what may pass; ``None`` when closed."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return call()
            except ChunkflowError as error:
                fault = fault_of(error)
                if fault.is_final:
                    raise
                logger.warning("no tasks for now: %s", fault.reason)
                self._post("stuck", fault.reason)
            if self._closed.wait(pause * random.uniform(0.5, 1)):  # noqa: S311 jitter
                return None
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def _jobs(self, held: Sequence[Held]) -> list[Job]:
        tasks: dict[int, Job] = {}
        for each in held:
            found = self._task(each)
            if found is None:
                continue
            number, box = found
            if number in tasks:
                tasks[number].leases.append(each)
            else:
                attempt = f"{self._work.attempts}-{next(self._attempts)}"
                tasks[number] = Job(number, box, [each], attempt)
        if not tasks:
            return []
        states = self._tried(lambda: self._ledger.find(tasks))
        if states is None:
            self._returns.release([lease for job in tasks.values() for lease in job.leases])
            return []
        for number, state in states.items():
            leases = tasks.pop(number).leases
            if state == "dead":
                self._returns.bury(leases, "was given up before; see the failures of the run")
            else:
                self._returns.acknowledge(leases)
        return [job for job in tasks.values() if self._begins(job)]

    def _begins(self, job: Job) -> bool:
        """Tell the ledger of an attempt, where it has to know; return whether it is to be made."""
        doubt, profile = self._doubt, self.profile
        if doubt is not None and not doubt.is_next(job):
            self._returns.release(job.leases, doubt.delay_s())
            return False
        if doubt is not None and job.is_doubtful:
            record = self._tried(lambda: doubt.begin(job, profile))
            if record is not None:
                logger.error("gave up task %s: %s", job.box, record.reason)
                self._returns.bury(job.leases, record.reason)
                return False
        elif profile is not None:
            self._tried(partial(self._ledger.begin, job.number, job.attempt, profile))
        return True

    def _task(self, held: Held) -> tuple[int, str] | None:
        """Return number and box, or ``None`` for a message that is dealt with here."""
        try:
            body = parse_body(held.message.body)
        except BodyError as error:
            self._bury(held, str(error))
            return None
        ours, runs = self._work.stage, self._work.runs
        stage = body.stage or ours
        known = [runs[stage]] if stage in runs else list(runs.values())
        if body.run is not None and None not in known and body.run not in known:
            self._leave(held, body.run)
            return None
        if stage not in runs:
            self._bury(held, f"the run has no stage {stage!r}; its stages are {', '.join(runs)}")
            return None
        if stage != ours:
            order, is_wanted = list(runs), self._work.is_wanted
            wanted = order.index(stage) > order.index(ours)
            if is_wanted is not None:
                wanted = self._tried(lambda: is_wanted(stage)) is not False
            if wanted:
                self._returns.release([held])
                self._post("closed-stage", stage)
            else:
                # That stage has ended, or a repair has reopened one before it, and the worker that
                # opens it again sends its tasks.
                self._returns.acknowledge([held])
            return None
        try:
            return self._work.plan.number(body.region), str(body.region)
        except GeometryError as error:
            self._bury(held, str(error))
            return None

    def _leave(self, held: Held, run: str) -> None:
        if run not in self._foreign:
            self._foreign.add(run)
            logger.error(
                "the queue holds tasks of run %s, and this worker is of run %s: they are left to "
                "its workers; give each run a queue of its own",
                run,
                self._work.runs[self._work.stage],
            )
        self._returns.release([held], FOREIGN_DELAY_S)

    def _bury(self, held: Held, reason: str) -> None:
        logger.warning("put aside: %s", reason)
        self._returns.bury([held], reason)
