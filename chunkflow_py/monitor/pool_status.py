"""The status of all runs below a prefix, in the order in which a pool of workers takes the runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError, named
from chunkflow_py.monitor.run_facts import RUN_STATES
from chunkflow_py.monitor.run_status import RunStatus, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.run_facts import RunState
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_prefix import RunPrefix
    from chunkflow_py.run.scheduling import Scheduling

_AT_ONCE = 8  # runs that are read at the same time
_TITLES = ("run", "priority", "state", "done", "failed", "waiting", "leased")


@dataclass(frozen=True)
class PooledRun:
    """The status of one run of a pool.

    Attributes:
        name: name of the folder of the run.
        scheduling: priority of the run, and whether the run is paused.
        status: progress of the run.
    """

    name: str
    scheduling: Scheduling
    status: RunStatus

    @property
    def state(self) -> str:
        """The state of the run; ``paused`` for an unfinished run that is paused."""
        is_paused = self.scheduling.paused and self.status.state == "unfinished"
        return "paused" if is_paused else self.status.state

    def cells(self) -> tuple[str, ...]:
        """Return the row of this run in the table of `PoolStatus.lines`, one text per column."""
        steps = self.status.stages
        finished, tasks = sum(s.totals.finished for s in steps), sum(s.tasks for s in steps)
        dead, queue = sum(s.totals.dead for s in steps), self.status.queue
        numbers = ("?", "?") if queue is None else (f"{queue.waiting:,}", f"{queue.leased:,}")
        return (
            self.name, str(self.scheduling.priority), self.state, f"{finished:,} of {tasks:,}",
            f"{dead:,}", *numbers,
        )  # fmt: skip


@dataclass(frozen=True)
class PoolStatus:
    """The status of the runs of a pool.

    Attributes:
        prefix: address of the prefix, without credentials.
        runs: the runs, in the order in which workers take them.
    """

    prefix: str
    runs: tuple[PooledRun, ...]

    @property
    def state(self) -> RunState:
        """State of all runs together: the state of the run that is furthest from complete."""
        states = {each.status.state for each in self.runs}
        return next((state for state in RUN_STATES if state in states), "complete")

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table with one row per run, then a summary of all runs."""
        rows = [_TITLES, *(each.cells() for each in self.runs)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
        for row in rows:
            cells = [
                text.ljust(width) if column in (0, 2) else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            yield "  ".join(cells).rstrip()
        yield f"{len(self.runs)} runs of {self.prefix}: {self.state}"

    def to_json(self) -> dict[str, Any]:
        """Return the status as an object for JSON."""
        runs = [
            {
                "name": each.name,
                "priority": each.scheduling.priority,
                "paused": each.scheduling.paused,
                **each.status.to_json(),
            }
            for each in self.runs
        ]
        return {"prefix": self.prefix, "state": self.state, "runs": runs}


def pool_status(prefix: RunPrefix) -> PoolStatus:
    """Return the status of the runs below a prefix; a run that cannot be read is left out."""
    found = sorted(prefix.runs().items(), key=lambda item: (-item[1][1].priority, item[0]))

    def read(name: str, run: RunDirectory, scheduling: Scheduling) -> PooledRun | None:
        try:
            return PooledRun(name, scheduling, status_of(run, 0))
        except ChunkflowError as error:
            prefix.warn(run.shown, f"this run is left out: {named(error)}")
            return None

    with ThreadPoolExecutor(_AT_ONCE, "status") as threads:
        runs = threads.map(lambda item: read(item[0], *item[1]), found)
        return PoolStatus(prefix.shown, tuple(each for each in runs if each is not None))
