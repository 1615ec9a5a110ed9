"""How a worker works, how it ended, and who hears of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.worker.looks import WorkerLook

EndState = Literal["complete", "complete-with-failures", "stopped", "stage-closed"]


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

    def task_failed(self, failure: FailedAttempt) -> None:
        """An attempt has failed, and is counted."""

    def changed(self, words: str) -> None:
        """Something that a person wants to know: it waits, stops, or goes on."""
