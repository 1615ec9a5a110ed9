"""Compute the history of a step from its records: speed over time, workers, errors.

The history needs whole segments of the ledger. Each update reads a few segments: first segments
with failures, then segments without failures, both from the latest to the oldest. A segment is read
again only if it has changed. For each record, three numbers are stored in memory: the end of the
task, its duration, and the index of the worker.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.monitor.dashboard.task_states import DONE, FAILED, NONE, SKIPPED
from chunkflow_py.monitor.run_facts import ErrorGroups
from chunkflow_py.run.ledger.ledger_record import (
    FAILURES,
    DamagedRecordError,
    FailedAttempt,
    reading,
)
from chunkflow_py.store.store_address import public, public_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.monitor.dashboard.task_states import TaskStates
    from chunkflow_py.run.ledger.ledger_segments import SegmentHeader

_WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400, 604800)
_BARS = 120  # most bars of the plot
_RECENT_S = 600.0
_ENDED = (DONE, SKIPPED, FAILED)
_GROUPS, _WORKERS, _DEAD = 100, 200, 200
_LONGEST_NAME = 300  # characters


class TaskHistory:
    """The history of a step, computed from the records in its ledger.

    Args:
        states: states of the tasks of the step.
    """

    def __init__(self, states: TaskStates) -> None:
        """Create an empty history; see `read`."""
        self._states = states
        span = len(states.codes)
        self.finished = np.zeros(span, np.uint32)  # seconds since 1970; 0: not known
        self.seconds = np.zeros(span, np.float32)
        self.worker = np.zeros(span, np.uint32)
        self.names: list[str] = []
        self._indexes: dict[str, int] = {}
        self._headers: dict[int, SegmentHeader] = {}
        self._groups: dict[int, ErrorGroups] = {}
        self._dead: dict[int, list[tuple[int, str]]] = {}
        self._failed_by: dict[int, dict[int, int]] = {}

    @property
    def left(self) -> list[int]:
        """Numbers of the segments that must be read, in the order in which `read` reads them."""
        headers = self._states.headers
        new = [segment for segment in headers if headers[segment] != self._headers.get(segment)]

        def rank(segment: int) -> tuple[bool, float]:
            sums = headers[segment].sums
            return not (sums.failures or sums.dead), -(sums.last or 0.0)

        return sorted(new, key=rank)

    def read(self, budget_s: float) -> None:
        """Read new and changed segments for about *budget_s* seconds, but at least one segment.

        Raises:
            VolumeError: the store cannot be reached, or the ledger is damaged.
        """
        end = time.monotonic() + budget_s
        for segment in self.left:
            self._read(segment)
            if time.monotonic() > end:
                break
        for number, record in self._states.records.items():
            spent = sum(record.seconds.values())
            self._keep(number, record.finished, spent, record.worker)
        self._states.settle()

    def _keep(self, number: int, finished: float, seconds: float, worker: str) -> None:
        self.finished[number] = min(max(1, int(finished)), 2**32 - 1)
        self.seconds[number] = seconds
        self.worker[number] = self._index(worker)

    def _index(self, worker: str) -> int:
        if worker not in self._indexes:
            self._indexes[worker] = len(self.names)
            self.names.append(public_line(worker, _LONGEST_NAME))
        return self._indexes[worker]

    def _read(self, number: int) -> None:
        segment = self._states.segment(number)
        tasks = self._states.numbers(number)
        for column in (self.finished, self.seconds, self.worker, self._states.segment_tries):
            column[tasks] = 0
        failures: list[FailedAttempt] = []
        dead: list[tuple[int, str]] = []
        for kind, _, task, text in segment.lines(("record", *FAILURES)):
            with suppress(DamagedRecordError), reading(text):
                if kind != "record":
                    failures.append(FailedAttempt.from_json(text))
                    continue
                # Record.from_json takes several times as long, and there may be millions.
                record = json.loads(text)
                if tasks.start <= task < tasks.stop:
                    self._keep(
                        task, record["finished"], sum(record["seconds"].values()), record["worker"]
                    )
                    if record["state"] == "dead":
                        dead.append((task, public(record["reason"] or "")))
        for failure in failures:
            if tasks.start <= failure.number < tasks.stop:
                self._states.segment_tries[failure.number] += 1
        self._groups[number] = ErrorGroups(failures)
        self._dead[number] = dead[:_DEAD]
        by_worker: dict[int, int] = {}
        for failure in failures:
            index = self._index(failure.worker)
            by_worker[index] = by_worker.get(index, 0) + 1
        self._failed_by[number] = by_worker
        self._headers[number] = segment.header

    # Results

    def _known(self) -> NDArray[np.bool_]:
        return (self.finished > 0) & np.isin(self._states.codes, _ENDED)

    def throughput(self, now: float) -> dict[str, Any] | None:
        """Return the number of tasks that ended in each time span, by outcome.

        There are at most 120 time spans. The result is ``None`` if no record has been read.
        """
        known = self._known()
        if not known.any():
            return None
        finished, codes = self.finished[known].astype(np.int64), self._states.codes[known]
        first, last = int(finished.min()), max(int(finished.max()), int(now))
        if last - int(finished.max()) > max(3600, finished.max() - first):
            last = int(finished.max())  # it ended long ago: the plot covers the time of the run
        width = next((w for w in _WIDTHS_S if last - first < w * _BARS), _WIDTHS_S[-1])
        start = first - first % width
        bars = (last - start) // width + 1
        counts = {
            name: np.bincount((finished[codes == code] - start) // width, minlength=bars)
            for name, code in (("done", DONE), ("skipped", SKIPPED), ("failed", FAILED))
        }
        return {"start": start, "width_s": width} | {k: v.tolist() for k, v in counts.items()}

    def workers(self, now: float) -> dict[str, Any]:
        """Return the tasks and the speed of each worker, and the working hours of all workers.

        Workers are sorted by the end of their last task, the latest first. The hours of a worker
        begin at the start of its first task. They last until *now* for an active worker, else until
        the end of its last task.

        A worker is active if the step is not finished and the worker ended its last task recently:
        at most ten minutes ago or, if its tasks are long, at most three times their mean duration
        ago.
        """
        failed: dict[int, int] = {}
        parts = [*self._failed_by.values()]
        parts += [{self._index(each.worker): 1} for each in self._states.failures]
        for part in parts:
            for worker, number in part.items():
                failed[worker] = failed.get(worker, 0) + number
        count = len(self.names)
        known = self._known()
        index, finished = self.worker[known], self.finished[known].astype(np.float64)
        tasks = np.bincount(index, minlength=count)
        seconds = np.bincount(index, self.seconds[known], minlength=count)
        recent = np.bincount(index[finished > now - _RECENT_S], minlength=count)
        first, last = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(first, index, finished - self.seconds[known])
        np.maximum.at(last, index, finished)
        patience = np.maximum(_RECENT_S, 3 * seconds / np.maximum(tasks, 1))
        is_over = bool(np.isin(self._states.codes, (*_ENDED, NONE)).all())
        is_active = (last > now - patience) & (not is_over)
        until = np.where(is_active, np.maximum(now, last), last)
        hours = np.where(tasks > 0, until - np.where(tasks > 0, first, 0), 0) / 3600
        order = np.argsort(-last, kind="stable")[:_WORKERS].tolist()
        rows = [
            {
                "name": self.names[k],
                "tasks": int(tasks[k]),
                "failed_attempts": failed.get(k, 0),
                "first": float(first[k]) if tasks[k] else None,
                "last": float(last[k]) or None,
                "active": bool(is_active[k]),
                "seconds_a_task": float(seconds[k] / tasks[k]) if tasks[k] else None,
                "tasks_per_hour": float(tasks[k] / hours[k]) if hours[k] > 0 else None,
                "recent": int(recent[k]),
            }
            for k in order
        ]
        return {
            "rows": rows,
            "count": len(self.names),
            "active": int(is_active.sum()),
            "hours": float(hours.sum()),
        }

    def errors(self) -> dict[str, Any]:
        """Return the given-up tasks; and the failed attempts, by kind of failure and reason."""
        groups = ErrorGroups(self._states.failures)
        for part in self._groups.values():
            groups.update(part)
        shown = groups.ranked()[:_GROUPS]
        dead = [task for segment in sorted(self._dead) for task in self._dead[segment]]
        records = self._states.records.values()
        dead += [(r.number, r.reason or "") for r in records if r.state == "dead"]
        dead = [task for task in dead if self._states.codes[task[0]] == FAILED]
        return {
            "groups": [asdict(group) for group in shown],
            "more": len(groups) - len(shown),
            "failed_tasks": [{"number": n, "reason": reason} for n, reason in dead[:_DEAD]],
        }

    def about(self, number: int) -> dict[str, Any]:
        """Return the worker, the end (seconds since 1970) and the duration (seconds) of a task.

        All three are ``None`` if the record of the task has not been read.
        """
        known = bool(self.finished[number]) and self._states.codes[number] in _ENDED
        return {
            "worker": self.names[self.worker[number]] if known else None,
            "finished": int(self.finished[number]) if known else None,
            "seconds": float(self.seconds[number]) if known else None,
        }

    def coverage(self) -> tuple[int, int]:
        """Return the number of tasks whose records have been read, and of all ended tasks."""
        ended = int(np.isin(self._states.codes, _ENDED).sum())
        return int(self._known().sum()), ended
