"""The children of a supervisor: fed, watched, restarted; and whose task has killed one.

```
jobs -> ready ------------------> child 0: a b c      evenly, as many as its line can hold
        suspects -> alone ------> child 1: d          were in a child when it died, with others
```

If a child dies with exactly one task running, that task is blamed. If several tasks had begun in
it, none is blamed: each runs again, alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.run.worker.board import SLOTS
from chunkflow_py.run.worker.children import Child, ChildStart
from chunkflow_py.run.worker.failure_policy import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.run.worker.child import Broken, Ended, Ready
    from chunkflow_py.run.worker.looks import ChildLook
    from chunkflow_py.run.worker.task_receiver import Job
    from chunkflow_py.run.worker.worker_limits import TaskDurations, WorkerSettings

logger = logging.getLogger(__name__)

IN_CHILD_S = 0.05  # of work that waits in a child, so that it need not wait for us
IN_HAND_S = 0.25  # of work that waits here
MOST_IN_HAND = 1024
OVERHEAD_S = 0.0003  # of a task in a child, beside its operators
LOOK_S = 0.25
STARTS = 3  # that may fail in a row
TRANSIENT_STARTS = 20
RESTART_S, LONGEST_RESTART_S = 0.5, 30.0
SPEAK_S = 0.3  # for a child that is about to be killed to say where it is
END_S = 10.0


@dataclass(eq=False, slots=True)
class _Seat:
    """One place for a child.

    Attributes:
        number: of the child.
        device: that it sees.
        child: that is in it.
        restart_at: when the next one starts.
        deaths: in a row, without a task that has ended between them.
        unborn: in a row, before the line was ready.
        is_apart: takes suspects only, one at a time.
        kill_at: when its child is killed for *verdict*.
        verdict: the slot that is to blame (or ``None``), and why.
        gone: how often it was seen dead while its pipe was still open.
        idle_since: since when its child has begun none of the tasks that it holds.
    """

    number: int
    device: str | None
    child: Child[Job] | None = None
    restart_at: float = 0.0
    deaths: int = 0
    unborn: int = 0
    is_apart: bool = False
    kill_at: float | None = None
    verdict: tuple[int | None, str] | None = None
    gone: int = 0
    idle_since: float | None = None

    @property
    def at_work(self) -> Child[Job] | None:
        """Its child, if that takes tasks."""
        child = self.child
        return child if child and child.window and not child.is_ending else None


class Crew:
    """All children.

    Args:
        start: what they run.
        settings: how many there are, which devices they see, and how long a task may take.
        post: called in threads with a child and its messages, see `Child`.
        on_failed: called with a task, why it has failed, and after how many seconds.
        durations: of tasks that are done, and the limit that follows from them.

    Attributes:
        mean_s, longest_s: seconds of the tasks so far.
    """

    def __init__(
        self,
        start: ChildStart,
        settings: WorkerSettings,
        post: Callable[[Child[Job], Sequence[Any] | None], None],
        on_failed: Callable[[Job, Fault, float | None], None],
        durations: TaskDurations,
    ) -> None:
        """Start no child yet."""
        self._start, self._durations = start, durations
        self._post, self._on_failed = post, on_failed
        names = list(settings.devices) or [None]
        self._seats = [
            _Seat(number, names[number % len(names)]) for number in range(settings.processes)
        ]
        self._ready: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._look_at = 0.0
        self.mean_s: float | None = None
        self.longest_s = 0.0

    # --- tasks ---------------------------------------------------------------------------------

    def add(self, jobs: Iterable[Job]) -> None:
        """Take tasks."""
        self._ready.extend(jobs)

    def run_alone(self, job: Job) -> None:
        """Run a task again, with nothing else in its child."""
        self._suspects.append(job)
        for seat in self._seats:
            if seat.is_apart:
                return
        self._seats[job.number % len(self._seats)].is_apart = True

    @property
    def target(self) -> int:
        """How many tasks to hold."""
        windows = [self._window(seat.at_work) for seat in self._seats if seat.at_work]
        if not windows or self.mean_s is None:
            return sum(windows)
        return sum(windows) + min(MOST_IN_HAND, int(IN_HAND_S / self.mean_s * len(windows)))

    def ready_s(self, now: float) -> float:
        """Return for how many seconds a child could take tasks; 0 if none can."""
        children = [seat.at_work for seat in self._seats]
        since = [child.ready_at for child in children if child and child.ready_at is not None]
        return now - min(since, default=now)

    def _window(self, child: Child[Job]) -> int:
        short = 0 if self.mean_s is None else int(IN_CHILD_S / self.mean_s)
        return min(SLOTS, child.window + short)

    def feed(self) -> None:
        """Hand tasks to children that have room."""
        if not self._ready and not self._suspects:
            return
        open_children = []
        for seat in self._seats:
            child = seat.at_work
            if child is None:
                continue
            if seat.is_apart and not child.jobs:
                job = self._next_suspect()
                if job is not None:
                    child.give([(job, job.number, job.box)])
                seat.is_apart = job is not None
            if not seat.is_apart:
                open_children.append(child)
        if not open_children:
            return
        held = sum(len(child.jobs) for child in open_children)
        level = -(-(held + len(self._ready)) // len(open_children))
        for child in open_children:
            room = min(level, self._window(child)) - len(child.jobs)
            jobs = [self._ready.popleft() for _ in range(min(room, len(self._ready)))]
            jobs = [job for job in jobs if not job.is_given_up]
            if jobs:
                child.give([(job, job.number, job.box) for job in jobs])

    def _next_suspect(self) -> Job | None:
        while self._suspects:
            job = self._suspects.popleft()
            if not job.is_given_up:
                return job
        return None

    def ended(self, child: Child[Job], ended: Ended) -> Job | None:
        """Return the task that a child is done with, or ``None`` if nobody waits for it."""
        job = child.take(ended.slot)
        if job is None or job.is_given_up:
            return None
        if ended.state != "lost":
            if ended.state == "done":
                self._durations.add(sum(ended.seconds.values()))
            seconds = sum(ended.seconds.values()) + OVERHEAD_S
            self.longest_s = max(self.longest_s, seconds)
            mean = seconds if self.mean_s is None else self.mean_s
            self.mean_s = mean + 0.05 * (seconds - mean)
            seat = self._seats[child.number]
            seat.deaths = 0
        return job

    def seen(self) -> tuple[ChildLook, ...]:
        """Return what all children do now."""
        children = [seat.child for seat in self._seats if seat.child is not None]
        return tuple(child.seen(lambda job: job.box) for child in children)

    def leaving(self) -> set[int]:
        """Return the tasks that were given up, but are still in a child."""
        children = [seat.child for seat in self._seats if seat.child is not None]
        jobs = (job for child in children for job in child.jobs.values())
        return {job.number for job in jobs if job.is_given_up}

    def untouched(self) -> list[Job]:
        """Return the tasks that no child has begun, and forget them."""
        jobs = [*self._ready, *self._suspects]
        self._ready.clear()
        self._suspects.clear()
        for seat in self._seats:
            child = seat.child
            if child is None:
                continue
            here = [
                (slot, job)
                for slot, job in child.jobs.items()
                if child.is_untouched(slot) and not job.is_given_up
            ]
            if here:
                child.cancel((slot, job.number) for slot, job in here)
                jobs += [job for _, job in here]
        return [job for job in jobs if not job.is_given_up]

    def cancel(self, job: Job) -> None:
        """Let a task stop between two operators; it cannot be kept any more."""
        if job.is_cancelled:
            return
        job.is_cancelled = True
        for child, slot in self._places(job):
            child.cancel([(slot, job.number)])

    def abandon(self, job: Job, why: str) -> None:
        """Kill the child that works on a task, whose other tasks run again."""
        for child, _ in self._places(job):
            seat = self._seats[child.number]
            if seat.kill_at is None:
                seat.kill_at, seat.verdict = time.monotonic(), (None, why)

    def holds(self, job: Job) -> bool:
        """Return whether a child still works on a task."""
        return any(True for _ in self._places(job))

    def _places(self, job: Job) -> Iterator[tuple[Child[Job], int]]:
        for seat in self._seats:
            if seat.child is not None:
                for slot, each in seat.child.jobs.items():
                    if each is job:
                        yield seat.child, slot
                        return

    # --- processes -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Start children that are missing, and cut what takes too long."""
        looks = now >= self._look_at
        if looks:
            self._look_at = now + LOOK_S
        for seat in self._seats:
            if seat.child is None:
                if now >= seat.restart_at:
                    self._begin(seat, now)
                continue
            if seat.kill_at is not None and now >= seat.kill_at:
                if now >= seat.kill_at + END_S:  # the kernel does not let it go, as on a dead NFS
                    self.exited(seat.child)
                    continue
                seat.child.kill()
            if looks:
                self._look(seat, seat.child, now)

    def _begin(self, seat: _Seat, now: float) -> None:
        try:
            seat.child = Child(seat.number, self._start, seat.device, self._post)
        except OSError as error:  # there are too many processes, or there is no memory for one
            seat.restart_at = now + RESTART_S
            self._not_born(seat, None, f"no process can be started: {error}")

    def _look(self, seat: _Seat, child: Child[Job], now: float) -> None:
        if not child.look():
            seat.gone += 1
            if seat.gone > 4:  # a process that it has left behind keeps the pipe open
                self.exited(child)
            return
        if seat.kill_at is not None:
            return
        verdict = self._hanging(seat, child, now)
        if verdict is not None:
            seat.verdict, seat.kill_at = verdict, now + SPEAK_S
            if child.window:  # else it may not have said yet what it does when asked
                child.ask_where()

    def _hanging(self, seat: _Seat, child: Child[Job], now: float) -> tuple[int | None, str] | None:
        """Return the slot of a task that takes too long, or ``None`` for its process, and why."""
        if not child.window:
            limit_s = self._durations.limit.start_s
            if now - child.began <= limit_s:
                return None
            return None, f"was not ready for a task within {limit_s:g} s"
        begun = [(at.seconds, slot) for slot in child.begun() if (at := child.progress(slot))]
        if not child.jobs or begun:
            seat.idle_since = None
        elif seat.idle_since is None:
            seat.idle_since = now
        # What has begun first keeps the others waiting.
        taken_s, slot = max(begun, default=(now - (seat.idle_since or now), None))
        bound = self._durations.exceeded(taken_s)
        if bound is None:
            return None
        if slot is None:
            return None, f"held tasks for {taken_s:.0f} s and began none: {bound.why}"
        return slot, f"cut off after {taken_s:.0f} s in {child.operator(slot)}: {bound.why}"

    def ready(self, child: Child[Job], ready: Ready) -> None:
        """Take note that a child can take tasks."""
        child.operators, child.window = ready.operators, ready.window
        child.lanes, child.ready_at = ready.lanes, time.monotonic()
        self._seats[child.number].unborn = 0
        child.look()

    def broken(self, child: Child[Job], broken: Broken) -> None:
        """Take note of what a child says of its end, which follows."""
        child.broken = broken

    def exited(self, child: Child[Job]) -> None:
        """Find out why a child has ended, and what becomes of its tasks.

        Raises:
            OptionError: the line is wrong.
            ChunkflowError: several children in a row could not begin.
        """
        seat = self._seats[child.number]
        if seat.child is not child:
            return
        child.reap()
        cause, said = child.cause()
        jobs = {slot: job for slot, job in child.jobs.items() if not job.is_given_up}
        begun = [slot for slot in child.begun() if slot in jobs]
        verdict, was_ready, was_told = seat.verdict, child.window > 0, child.is_ending
        wheres = {slot: child.operator(slot) for slot in begun}
        taken = {slot: at.seconds for slot in begun if (at := child.progress(slot))}
        seat.child, seat.kill_at, seat.verdict, seat.gone = None, None, None, 0
        seat.idle_since = None
        child.jobs.clear()
        child.close()
        if was_told:
            return
        if verdict is not None:
            blamed, why = verdict
            logger.warning("child %d was killed: %s", seat.number, why)
        else:
            blamed = begun[0] if len(begun) == 1 else None
            why = cause
            if blamed is not None:
                why = f"the process was {cause}" if cause.startswith("killed") else cause
                why = f"{why} in {wheres[blamed]}"
            logger.warning("child %d has died: %s", seat.number, cause)
            seat.deaths += not begun  # else it is known, or soon will be, which task kills it
        pause = RESTART_S * 2 ** min(seat.deaths, 10) if seat.deaths > 1 else 0.0
        seat.restart_at = time.monotonic() + min(LONGEST_RESTART_S, pause)
        suspects = [] if verdict or blamed is not None else begun
        self._ready.extendleft(
            job for slot, job in jobs.items() if slot != blamed and slot not in suspects
        )
        for slot in suspects:
            self._suspects.append(jobs[slot])
            seat.is_apart = True
        if blamed is not None and blamed in jobs:
            fault = Fault("permanent", why, said)
            self._on_failed(jobs[blamed], fault, taken.get(blamed))
        if not was_ready:
            self._not_born(seat, child.broken, verdict[1] if verdict else cause)
        elif seat.deaths > TRANSIENT_STARTS:
            msg = f"child {seat.number} has died {seat.deaths} times in a row, at last: {cause}"
            raise ChunkflowError(msg)

    def _not_born(self, seat: _Seat, broken: Broken | None, cause: str) -> None:
        seat.unborn += 1
        if broken is not None and broken.is_usage:
            raise OptionError(cause)
        is_transient = broken is not None and broken.fault.kind == "transient"
        if seat.unborn >= (TRANSIENT_STARTS if is_transient else STARTS):
            msg = f"child {seat.number} could not begin, {seat.unborn} times in a row: {cause}"
            raise ChunkflowError(msg)

    def end(self) -> None:
        """End all children in order, and those that do not by force."""
        children = [seat.child for seat in self._seats if seat.child is not None]
        for child in children:
            if child.window:
                child.end()
            else:  # it is still loading what nobody needs any more
                child.kill()
        deadline = time.monotonic() + END_S
        for child in children:
            child.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill all children at once."""
        children = [seat.child for seat in self._seats if seat.child is not None]
        for child in children:
            child.is_ending = True
            child.kill()
        for seat, child in ((self._seats[child.number], child) for child in children):
            child.reap()
            child.close()
            seat.child = None
