"""How long a line takes: from what was measured of some tasks, or from what is told.

```
process   start | first task      | next    | next    | …     lanes overlap, so that a task adds
                  read compute write                          what its slowest lane takes
machine   as many processes side by side as will work there, measured side by side
```
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from chunkflow_py.planning.amounts import total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.pipeline.hooks import Boxes
    from chunkflow_py.planning.observation import Observation

_FEW = 3  # tasks, below which their distances are not believed


@dataclass(frozen=True)
class Duration:
    """How long a stage takes.

    Attributes:
        seconds: from the start of the machines to their end.
        start_s: until a process begins on its first task.
        task_s: that a task of middling work adds to those before it, in one process.
        how: where this comes from, in words.
    """

    seconds: float
    start_s: float
    task_s: float
    how: str


@dataclass(frozen=True)
class Crew:
    """Who works.

    Attributes:
        machines: how many.
        processes: on each.
    """

    machines: int = 1
    processes: int = 1

    def rounds(self, tasks: int) -> float:
        """Return how many tasks the one takes that takes most."""
        return ceil(tasks / (self.machines * self.processes))


def told_duration(tasks: int, task_s: float, crew: Crew, how: str) -> Duration:
    """Return how long tasks take of which each takes *task_s*."""
    return Duration(crew.rounds(tasks) * task_s, 0.0, task_s, how)


def measured_duration(
    observations: Sequence[Observation],
    tasks: int,
    mean_work: float,
    work: Callable[[BoundingBox | None], float],
    crew: Crew,
    lanes: Mapping[str, str],
) -> Duration | None:
    """Return how long all tasks take, or ``None`` if too little was measured.

    Args:
        observations: of processes that worked side by side, as those of a machine will.
        tasks: how many there are.
        mean_work: of a task, in the unit of *work*.
        work: how much there is to do for a box.
        crew: who works.
        lanes: operator -> lane.
    """
    found = [each for each in (_pace(o, work, lanes) for o in observations) if each is not None]
    if not found:
        return None
    ready = max(o.ready_s or 0.0 for o in observations)
    first = max(pace.first_s for pace in found)
    # Side by side, processes that were measured share what a machine does.
    pace_s = len(found) / sum(1 / max(1e-9, pace.work_s) for pace in found)
    done = sum(pace.first_work for pace in found) / len(found)
    rest = max(0.0, crew.rounds(tasks) * mean_work - done)
    seen = sum(len(o.tasks) for o in observations)
    how = "measured: " + (
        f"{seen} of {tasks} tasks done on this machine, written to a scratch folder"
        if seen
        else "a part of the first task, on this machine; how long writing takes is not known"
    )
    return Duration(ready + first + rest * pace_s, ready, mean_work * pace_s, how)


@dataclass(frozen=True)
class _Pace:
    first_s: float
    first_work: float
    work_s: float  # seconds that a unit of work adds


def _pace(
    found: Observation, work: Callable[[BoundingBox | None], float], lanes: Mapping[str, str]
) -> _Pace | None:
    if found.ready_s is None:
        return None
    if not found.tasks:
        return _begun_pace(found, work)
    first, *others = found.tasks
    first_work = max(1e-9, work(first.bbox))
    rest = sum(work(task.bbox) for task in others)
    first_s = first.at - found.ready_s
    if len(found.tasks) > _FEW and rest:
        return _Pace(first_s, first_work, (others[-1].at - first.at) / rest)
    # What tasks take in their slowest lane; lanes that do not overlap take all of it.
    seconds = [_slowest(task.seconds, lanes, found.ahead) for task in found.tasks]
    return _Pace(first_s, first_work, sum(seconds) / (first_work + rest))


def _begun_pace(found: Observation, work: Callable[[BoundingBox | None], float]) -> _Pace | None:
    """Return the pace of a first task that the time was too short for, if its network had begun."""
    begun = [(name, *times) for name, times in found.begun.items() if times[2] > 0]
    if not begun or found.ready_s is None:
        return None
    _, start, at, share = begun[-1]
    seconds = (at - start) / share
    before = start - found.ready_s
    one = max(1e-9, work(None))
    slowest = max(seconds, before) if found.ahead else seconds + before
    return _Pace(before + seconds, one, slowest / one)


def _slowest(seconds: Mapping[str, float], lanes: Mapping[str, str], ahead: int) -> float:
    by_lane: dict[str, float] = {}
    for name, value in seconds.items():
        lane = lanes.get(name, "compute")
        by_lane[lane] = by_lane.get(lane, 0.0) + value
    return (max if ahead else sum)(by_lane.values() or [0.0])


def mean_work(
    boxes: Boxes | None, measures: Sequence[tuple[Callable[[BoundingBox], Sequence[float]], float]]
) -> float:
    """Return the work of a task, on the mean of all.

    Args:
        boxes: of tasks; ``None``: there is one without a box, whose work is 1.
        measures: functions as `total` takes them, each with the weight of its unit.
    """
    if not boxes:
        return 1.0
    return sum(total(boxes, measure) * weight for measure, weight in measures) / len(boxes)
