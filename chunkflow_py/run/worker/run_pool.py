"""A worker of a pool: works on the runs below one prefix, by strict priority.

```
list the runs -> sort by priority, then by name -> choose the first run that has a waiting task
      ^                                                               |
      '-- work on this run until it has no waiting task, is paused, <-'
          or a run of higher priority has a waiting task
```

To choose a run, a worker lists the names of the runs (one request), and reads the priority of each
run (one request each). The worker then reads the state and the queue of one run after the other,
until a run has a waiting task. The more runs there are, the less often a worker chooses again, so
that on average one request is sent every `_REQUEST_S` seconds.

If this worker must not or cannot work on a run, the worker logs a warning, skips the run, and tries
the run again later.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.interrupts import on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, TransientError, named
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_prefix import check_has_runs
from chunkflow_py.run.spending import budget_reached
from chunkflow_py.run.stop_watch import INTERVAL_S, watching
from chunkflow_py.run.worker.files_ahead import FilesAhead
from chunkflow_py.run.worker.worker import (
    COMPLETE,
    FAILURES,
    WORK_LEFT,
    pause_of,
    work_on_run,
)

if TYPE_CHECKING:
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_prefix import RunPrefix
    from chunkflow_py.run.scheduling import Scheduling
    from chunkflow_py.run.signatures import TrustedKeys
    from chunkflow_py.run.worker.supervisor import WorkerListener
    from chunkflow_py.run.worker.worker import MakeSourcedPipeline, RunOutcome, WorkOptions

logger = logging.getLogger(__name__)

REFUSED_S = 600.0  # after which a run that was refused or has ended is looked at again
LEAVE_AFTER_S = 10.0  # without a task, if the queue said that there were some
_REQUEST_S = 2.0  # of a worker, on average, between two requests of its looks


@dataclass
class _Known:
    """What this worker knows about a run of the pool.

    Attributes:
        again_at: time at which the worker may try the run again, in seconds of the monotonic clock.
        ended: exit code of the run if all its tasks have ended, else ``None``.
        refused: why the worker refuses to work on the run; empty if the worker accepts the run.
    """

    again_at: float = 0.0
    ended: int | None = None
    refused: str = ""


@dataclass
class RunPool:
    """The runs below a prefix, as one worker sees them.

    Args:
        prefix: the prefix.
        keys: trusted keys. The worker processes only runs that one of these keys has signed. With
            ``None``, the worker processes every run that contains no code, signed or not.
        interval_s: time between two choices of a run, in seconds; longer if there are many runs.

    Attributes:
        ahead: fetches the files of the next run while the worker works on another run.
    """

    prefix: RunPrefix
    keys: TrustedKeys | None = None
    interval_s: float = INTERVAL_S
    ahead: FilesAhead = field(default_factory=FilesAhead, init=False, repr=False)
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _runs: dict[str, tuple[RunDirectory, Scheduling]] = field(default_factory=dict, init=False)

    def look(self, above: int | None = None) -> str | None:
        """Return the name of the run to work on next; ``None`` if no run has tasks.

        Args:
            above: a priority; only runs of a higher priority are considered. ``None`` considers all
                runs.
        """
        with self._lock:  # the threads of a run look, too
            self._runs = self.prefix.runs()
            return self._choose(above=above)

    def after(self, name: str) -> RunDirectory | None:
        """Return the run that this worker would take if the run *name* had no tasks.

        The runs and their priorities are not read again: the values of the latest `look` are used.
        """
        with self._lock:
            other = self._choose(without=name)
            return None if other is None else self._runs[other][0]

    def _choose(self, *, above: int | None = None, without: str = "") -> str | None:
        by_priority = sorted(self._runs.items(), key=lambda item: (-item[1][1].priority, item[0]))
        for name, (run, scheduling) in by_priority:
            known = self._known.setdefault(name, _Known())
            if above is not None and scheduling.priority <= above:
                return None
            if name == without or scheduling.paused or time.monotonic() < known.again_at:
                continue
            try:
                step = run.current_step()
                known.ended = COMPLETE if step is None else None
                if step is None:
                    known.again_at = time.monotonic() + REFUSED_S
                elif self._is_allowed(name, run) and self._has_tasks(run, step):
                    if (spent := budget_reached(run)) is None:
                        return name
                    self.refuse(name, spent)
            except ChunkflowError as error:
                self.failed(name, error)
        return None

    @property
    def wait_s(self) -> float:
        """Seconds between two calls of `look`; longer if there are many runs."""
        return max(self.interval_s, _REQUEST_S * len(self._runs))

    def better_than(self, name: str) -> str | None:
        """Return why a worker must leave the run *name*, or ``None``."""
        run, scheduling = self._runs[name]
        if paused := pause_of(run):
            return paused
        other = self.look(above=scheduling.priority)
        if other is None:
            return None
        return f"{self._runs[other][0].shown} has a higher priority"

    def run(self, name: str) -> RunDirectory:
        """Return the run called *name*, with the SHA-256 of its current spec in `digest`.

        If the spec is replaced later, the new spec is refused, because this worker has only
        checked the current spec.
        """
        run = self._runs[name][0]
        run.digest = run.spec.digest
        return run

    def ended(self, name: str, outcome: RunOutcome) -> None:
        """Note how the work on a run ended, and when this worker may try the run again."""
        known = self._known[name]
        known.ended = outcome.code if outcome.code in (COMPLETE, FAILURES) else None
        wait_s = self.wait_s if known.ended is None else REFUSED_S
        known.again_at = time.monotonic() + wait_s

    def failed(self, name: str, error: ChunkflowError) -> None:
        """Refuse a run after *error*.

        The run is refused for `wait_s` seconds if the error is temporary, else for `REFUSED_S`
        seconds.
        """
        self.refuse(name, named(error))
        if isinstance(error, TransientError):
            self._known[name].again_at = time.monotonic() + self.wait_s

    def refuse(self, name: str, reason: str) -> None:
        """Log a warning, and do not work on a run for `REFUSED_S` seconds."""
        self.prefix.warn(f"{self.prefix.shown}{name}", f"this run is left out: {reason}")
        self._known[name].refused = reason
        self._known[name].again_at = time.monotonic() + REFUSED_S

    def result(self) -> tuple[int, str] | None:
        """Return exit code and message if all runs are complete, paused or refused by this worker.

        Return ``None`` as long as this worker may get tasks of a run.
        """
        open_runs = [name for name in self._runs if self._known[name].ended is None]
        left_out = [
            name for name in open_runs if self._known[name].refused or self._runs[name][1].paused
        ]
        if len(left_out) < len(open_runs):
            return None
        left_out += sorted(self.prefix.unreadable)
        if left_out:
            names = ", ".join(left_out[:5]) + (" …" if len(left_out) > 5 else "")
            return WORK_LEFT, (
                f"no run of {self.prefix.shown} has tasks that this worker may run; the following "
                f"runs are paused, or this worker refused them for the reasons in its log: {names}"
            )
        code = max((known.ended or COMPLETE for known in self._known.values()), default=COMPLETE)
        suffix = " except for failed tasks" if code == FAILURES else ""
        return code, f"all {len(self._runs)} runs of {self.prefix.shown} are complete{suffix}"

    def _is_allowed(self, name: str, run: RunDirectory) -> bool:
        """Return whether this worker may work on a run; warn if not."""
        spec = run.spec
        if not spec.queue:
            self.refuse(name, "it has no queue, because it was submitted for Dask")
            return False
        if self.keys is not None and not self.keys.has_signed(run):
            self.refuse(
                name,
                "none of the keys of --trust-key has signed its spec; submit the run with "
                "--sign-key",
            )
            return False
        code = sorted({each for step in spec.steps for each in step.code})
        if code and self.keys is None:
            self.refuse(
                name,
                f"it runs {', '.join(code)}, but a pool runs code only of signed runs; submit the "
                "run with --sign-key, and start workers with --trust-key",
            )
            return False
        self._known[name].refused = ""
        return True

    @staticmethod
    def _has_tasks(run: RunDirectory, step: str) -> bool:
        """Return whether a run needs a worker.

        A run needs a worker if its tasks must still be sent, or if a task waits in its queue. A run
        needs no worker while other workers process all remaining tasks of *step*.
        """
        if step != run.spec.first and not run.is_sent(step):
            return True
        with closing(open_queue(run.spec.queue)) as queue:
            counts = queue.counts()
        # An empty queue may mean that the step is complete, which a worker must record.
        return counts.waiting > 0 or counts.leased == 0


def work_on_pool(
    pool: RunPool,
    working: WorkOptions,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener,
) -> tuple[int, str]:
    """Work on the runs of a pool; return the exit code and a message for the user.

    Args:
        pool: the runs.
        working: settings and limits of the worker; the limits apply to all runs together.
        make_pipeline: picklable function that takes the `PipelineSource` of a step and a source of
            tasks, and returns the pipeline of the step.
        listener: callbacks that report progress.

    Raises:
        OptionError: there is no run, and the worker does not wait for new runs.
    """
    began, ended, folder = time.monotonic(), 0, Path.cwd()
    last_task_at = began
    working = replace(working, allow_code=working.allow_code and pool.keys is not None)
    if working.until_complete:
        check_has_runs(pool.prefix)
    with _Signals() as signals:
        while True:
            limits = working.settings.limits.after(time.monotonic() - began, ended)
            if reason := limits.reached or signals.reason:
                return WORK_LEFT, f"stopped: {reason}"
            name = pool.look()
            if name is None:
                result = pool.result()
                if result is not None and working.until_complete:
                    return result
                idle_s = time.monotonic() - last_task_at
                wait_s = min(pool.wait_s, limits.idle_left_s(idle_s))
                if wait_s <= 0:
                    code = WORK_LEFT if result is None else result[0]
                    return code, f"stopped: no task arrived for {idle_s:.0f} s"
                signals.wait(wait_s)
                continue
            os.chdir(folder)  # each run enters its own folder, if this machine has it
            idle_exit_s = min(LEAVE_AFTER_S, limits.idle_exit_s or math.inf)
            settings = replace(working.settings, limits=replace(limits, idle_exit_s=idle_exit_s))
            outcome = _work_on(
                pool, name, replace(working, settings=settings), make_pipeline, listener
            )
            if outcome is None:
                continue
            pool.ended(name, outcome)
            if outcome.ended:
                ended, last_task_at = ended + outcome.ended, time.monotonic()
            if outcome.signal is not None:
                return WORK_LEFT, outcome.message


def _work_on(
    pool: RunPool,
    name: str,
    working: WorkOptions,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener,
) -> RunOutcome | None:
    try:
        run = pool.run(name)
        listener.run_started(run)
        logger.info("taking tasks of %s", run.shown)
        with (
            pool.ahead.fetching(run, pool.wait_s, lambda: pool.after(name)),
            watching(lambda: pool.better_than(name), pool.wait_s) as watch,
        ):
            options = replace(working, until_complete=True)
            outcome = work_on_run(run, options, make_pipeline, listener, watch)
    except ChunkflowError as error:
        pool.failed(name, error)
        return None
    if run.shown not in outcome.message:
        logger.info("%s: %s", run.shown, outcome.message)
    return outcome


class _Signals:
    """Stop signals that arrive while the worker waits for a run with tasks."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self.reason = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = on_stop_signals(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        restore_signals(self._before)

    def _handle(self, number: int) -> None:
        self.reason = f"got signal {number}"
        self._arrived.set()

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives or *seconds* are over."""
        self._arrived.wait(seconds)
