"""How a worker works, how it ended, and who hears of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from chunkflow_py.run.worker.limits import Limits
from chunkflow_py.run.worker.task_limit import TaskLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.run.ledger.record import Failure, Record
    from chunkflow_py.run.worker.looks import WorkerLook

EndState = Literal["complete", "complete-with-failures", "stopped", "stage-closed"]


@dataclass(frozen=True)
class Settings:
    """How a worker works.

    Attributes:
        processes: number of children.
        devices: that they see, in turn; empty: all of them see all.
        lease_s: of messages; renewed every third of it.
        max_failures, max_transient: failures that end a task: its own, and those that may pass.
        max_worker_lost: the same of attempts whose whole worker was not heard of again.
        retry_s: before a task that failed is tried again; doubles each time.
        task_limit: from the start of a task's first operator to the end of its last.
        until_complete: whether to wait for tasks that others have.
        limits: of time, tasks and money.
        grace_s: for tasks in hand, when asked to stop.
        receive_wait_s: how long one request waits for messages, at most.
        disk_wait_s: before a disk that was full is tried again.
        records_attempts: whether attempts are told to the ledger before they begin, for runs whose
            workers compute different bytes.
        watches_notices: whether metadata servers of clouds are asked.
        ahead: for whoever makes the line.
    """

    processes: int = 1
    devices: Sequence[str | None] = ()
    lease_s: float = 120.0
    max_failures: int = 3
    max_transient: int = 20
    max_worker_lost: int = 20
    retry_s: float = 5.0
    task_limit: TaskLimit = field(default_factory=TaskLimit)
    until_complete: bool = True
    limits: Limits = field(default_factory=Limits)
    grace_s: float = 90.0
    receive_wait_s: float = 10.0
    disk_wait_s: float = 15.0
    records_attempts: bool = False
    watches_notices: bool = True
    ahead: int | None = None


@dataclass
class Outcome:
    """How it went.

    Attributes:
        state: ``complete``: every task of the plan is recorded, by whomever; the same ``-with-
            failures``; ``stopped`` with work left; ``stage-closed``: the run is at a later stage.
        words: a sentence for a person.
        done, skipped, dead: tasks that this worker has recorded so.
        failures: attempts that have failed here.
        signal: name of the last signal, also if it came too late to stop anything.
    """

    state: EndState = "stopped"
    words: str = ""
    done: int = 0
    skipped: int = 0
    dead: int = 0
    failures: int = 0
    signal: str | None = None

    @property
    def ended(self) -> int:
        """How many attempts have ended here."""
        return self.done + self.skipped + self.failures


class Listener:
    """Hears what a supervisor does, in its thread; every method may be left out."""

    def stage_started(self, stage: str, tasks: int) -> None:
        """The worker begins with a stage, which has so many tasks."""

    def stage_ended(self, outcome: Outcome) -> None:
        """The worker has left the stage."""

    def may_look(self, look: Callable[[], WorkerLook], *, is_last: bool) -> None:
        """Called a few times a second, and at the end: *look* tells what the worker does now."""

    def child_ready(self, number: int, profile: dict[str, str] | None) -> None:
        """A child can take tasks."""

    def task_ended(self, record: Record) -> None:
        """A task is recorded."""

    def task_failed(self, failure: Failure) -> None:
        """An attempt has failed, and is counted."""

    def changed(self, words: str) -> None:
        """Something that a person wants to know: it waits, stops, or goes on."""
