"""What failed in a stage: attempts by kind and reason, and the tasks that were given up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from chunkflow_py.monitor.report.gather import count

if TYPE_CHECKING:
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.record import Failure, Record

EXAMPLES = 10  # reasons of which a traceback is kept


@dataclass
class Failed:
    """A task that was given up.

    Attributes:
        record: of the task.
        attempts: on it that failed, the first one first.
    """

    record: Record
    attempts: tuple[Failure, ...]


@dataclass
class Attempts:
    """What failed in a stage.

    Attributes:
        failures: number of attempts that failed.
        seconds: that they took, as far as it is known.
        untimed: number of those of which it is not.
        kinds: of them -> how many.
        reasons: first line of what they said, without the box of the task -> how many.
        examples: reason -> one of its attempts; of the first reasons.
        failed: tasks that were given up, the first ones.
    """

    failures: int = 0
    seconds: float = 0.0
    untimed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Failure] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger, most: int) -> Attempts:
        """Return what failed, with at most *most* tasks that were given up."""
        found = cls()
        for failure in ledger.failures():
            reason = failure.reason.partition("\n")[0].replace(failure.box, "(box)")
            found.failures += 1
            found.seconds += failure.seconds or 0.0
            found.untimed += failure.seconds is None
            found.kinds[failure.kind] += 1
            count(found.reasons, reason)
            if len(found.examples) < EXAMPLES:
                found.examples.setdefault(reason, failure)
        for record in islice(ledger.records(states={"dead"}), most):
            attempts = sorted(ledger.failures(record.number), key=attrgetter("when"))
            found.failed.append(Failed(record, tuple(attempts)))
        return found
