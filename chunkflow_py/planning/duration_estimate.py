"""Estimate the duration of a step from pilot tasks, network speed, or a value that you give.

```
process   start | first task      | next    | next    | …     stages overlap, so each further task
                 read compute write                         adds the time of its slowest stage
machine   its worker processes run at the same time, in the run and in the pilot
```
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.planning.task_amounts import total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.planning.pilot import Observation
    from chunkflow_py.planning.task_amounts import Patches

_DECIDES = ("input_patch_size", "batch_size", "backend", "dtype", "compile", "tf32")
_FEW = 3  # with more tasks than this, the times at which tasks ended give the estimate


@dataclass(frozen=True)
class Duration:
    """Estimated duration of a step.

    Attributes:
        seconds: time from the start of the machines to the end of the last task.
        start_s: seconds from the start of a process until its first task starts.
        task_s: seconds that each task after the first takes in one process, on average.
        how: text that says what the estimate is based on.
    """

    seconds: float
    start_s: float
    task_s: float
    how: str


@dataclass(frozen=True)
class Fleet:
    """Machines that work on a run at the same time.

    Attributes:
        machines: number of machines.
        processes: number of worker processes on each machine.
    """

    machines: int = 1
    processes: int = 1

    def rounds(self, tasks: int) -> float:
        """Return the number of tasks of the busiest process if *tasks* tasks are shared evenly."""
        return ceil(tasks / (self.machines * self.processes))


def stated_duration(tasks: int, task_s: float, fleet: Fleet, how: str) -> Duration:
    """Return the duration of a step from a known duration of its tasks.

    Args:
        tasks: number of tasks.
        task_s: seconds that a process needs for one task.
        fleet: numbers of machines and worker processes.
        how: text that says where *task_s* comes from.
    """
    return Duration(fleet.rounds(tasks) * task_s, 0.0, task_s, how)


def measured_duration(
    observations: Sequence[Observation],
    tasks: int,
    mean_work: float,
    work: Callable[[BoundingBox | None], float],
    fleet: Fleet,
    stage_of: Mapping[str, str],
) -> Duration | None:
    """Return the duration of a step from pilot tasks, or ``None`` if too little was measured.

    Args:
        observations: measurements of the pilot processes. These processes ran at the same time,
            and were as many as the worker processes on a machine of the run.
        tasks: number of tasks of the step.
        mean_work: mean work of a task, in the same unit as *work*.
        work: function that computes the work of a task from its box, in any unit, such as voxels.
        fleet: numbers of machines and worker processes.
        stage_of: stage of each operator (``read``, ``compute`` or ``write``), by operator name.
    """
    found = [each for each in (_speed(o, work, stage_of) for o in observations) if each is not None]
    if not found:
        return None
    ready = max(o.ready_s or 0.0 for o in observations)
    first = max(pace.first_s for pace in found)
    # processes measured at the same time share the machine's throughput
    pace_s = len(found) / sum(1 / max(1e-9, pace.work_s) for pace in found)
    done = sum(pace.first_work for pace in found) / len(found)
    rest = max(0.0, fleet.rounds(tasks) * mean_work - done)
    seen = sum(len(o.tasks) for o in observations)
    how = "measured: " + (
        f"{seen} of {tasks} tasks done on this machine, with output to a temporary folder"
        if seen
        else "a part of the first task on this machine; the time for writing is not included"
    )
    return Duration(ready + first + rest * pace_s, ready, mean_work * pace_s, how)


@dataclass(frozen=True)
class _Speed:
    first_s: float
    first_work: float
    work_s: float  # seconds per unit of work


def _speed(
    found: Observation, work: Callable[[BoundingBox | None], float], stage_of: Mapping[str, str]
) -> _Speed | None:
    if found.ready_s is None:
        return None
    if not found.tasks:
        return _begun_speed(found, work)
    first, *others = found.tasks
    first_work = max(1e-9, work(first.bbox))
    rest = sum(work(task.bbox) for task in others)
    first_s = first.at - found.ready_s
    if len(found.tasks) > _FEW and rest:
        return _Speed(first_s, first_work, (others[-1].at - first.at) / rest)
    # time of tasks in their slowest stage, or in all stages if these do not overlap
    seconds = [_slowest(task.seconds, stage_of, found.ahead) for task in found.tasks]
    return _Speed(first_s, first_work, sum(seconds) / (first_work + rest))


def _begun_speed(found: Observation, work: Callable[[BoundingBox | None], float]) -> _Speed | None:
    # The speed of a process whose first task has not ended, from the reported progress.
    begun = [(name, *times) for name, times in found.begun.items() if times[2] > 0]
    if not begun or found.ready_s is None:
        return None
    _, start, at, share = begun[-1]
    seconds = (at - start) / share
    before = start - found.ready_s
    one = max(1e-9, work(None))
    slowest = max(seconds, before) if found.ahead else seconds + before
    return _Speed(before + seconds, one, slowest / one)


def _slowest(seconds: Mapping[str, float], stage_of: Mapping[str, str], ahead: int) -> float:
    by_stage: dict[str, float] = {}
    for name, value in seconds.items():
        stage = stage_of.get(name, "compute")
        by_stage[stage] = by_stage.get(stage, 0.0) + value
    return (max if ahead else sum)(by_stage.values() or [0.0])


def mean_work(
    boxes: Boxes | None, measures: Sequence[tuple[Callable[[BoundingBox], Sequence[float]], float]]
) -> float:
    """Return the mean work of a task.

    The work of a task is a weighted sum of amounts. Each amount depends on the task's box.

    Args:
        boxes: boxes of the tasks; ``None`` for a single task without a box (its work is 1).
        measures: pairs of a function and a weight, one for each amount. The function returns three
            numbers for a box, one per axis. The amount is the product of the three numbers.
    """
    if not boxes:
        return 1.0
    return sum(total(boxes, measure) * weight for measure, weight in measures) / len(boxes)


# --- by the speed of the network ------------------------------------------------------------------


def speed_duration(
    path: Path,
    operators: Sequence[Operator],
    patches: Sequence[Patches],
    tasks: int,
    fleet: Fleet,
) -> Duration:
    """Return the duration of a step from the speed of its networks, measured by `chunkflow tune`.

    Reading and writing overlap with the networks, and are assumed to take less time.

    Args:
        path: file with the JSON output of `chunkflow tune`.
        operators: operators of the pipeline.
        patches: numbers of patches that the networks of the pipeline compute.
        tasks: number of tasks of the step.
        fleet: numbers of machines and worker processes. The processes of a machine are assumed not
            to slow each other down.

    Raises:
        OptionError: the file is not the output of `chunkflow tune`, or it lacks a measurement with
            the options of one of the inference operators.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        measured = [(row, float(row["seconds"])) for row in rows if row["seconds"] is not None]
    except OSError as error:
        msg = f"--speeds {path} cannot be read: {error.strerror}"
        raise OptionError(msg) from error
    except (ValueError, KeyError, TypeError) as error:
        msg = (
            f"--speeds {path} is not the output of chunkflow tune --json ({error}); run chunkflow "
            "tune --json again and save its output to this file"
        )
        raise OptionError(msg) from error
    if not patches:
        msg = (
            f"--speeds {path} applies to inference, but this pipeline has no inference operator; "
            "leave --speeds out"
        )
        raise OptionError(msg)
    seconds = 0.0
    options = {operator.name: operator.options for operator in operators}
    for each in patches:
        asked = options[each.operator]
        found = next((s for row, s in measured if _is_it(row, asked)), None)
        if found is None:
            what = ", ".join(f"{name} {asked.get(name)}" for name in _DECIDES)
            there = "; ".join(
                ", ".join(f"{name} {row.get(name)}" for name in _DECIDES) for row, _ in measured[:3]
            )
            msg = (
                f"--speeds {path} has no measurement of {each.operator} with {what}, only "
                f"{f'with {there}' if there else 'measurements that failed'}; run chunkflow tune "
                f"with the options of {each.operator}, or change these options"
            )
            raise OptionError(msg)
        seconds += found * each.computed / each.batch_size
    how = (
        f"from the network speed in {path.name}, assuming that reading and writing take no longer "
        "than the network"
    )
    return stated_duration(tasks, seconds / max(1, tasks), fleet, how)


def _is_it(row: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, list | tuple) else value

    return all(plain(row.get(name)) == plain(asked.get(name)) for name in _DECIDES)
