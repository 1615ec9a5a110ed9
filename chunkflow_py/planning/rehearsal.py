"""Some tasks of a line, carried out for what they take; what they write is thrown away.

The process that does it (`chunkflow_py.cli.rehearsal`) does nothing else, so that its memory is
that of the line. What it finds leaves it one JSON object a line, as soon as it is known:

| event      | says                                                                                |
|------------|-------------------------------------------------------------------------------------|
| `ready`    | the line has been entered: seconds since the process was started, memory foretold   |
| `progress` | how much of a task an operator has done, of how much                                |
| `task`     | a task is done: seconds of its operators, what it has written, memory at its peak   |
| `failure`  | what is wrong                                                                       |
| `end`      | enough was measured                                                                 |

So it can be ended at any instant.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import VolumeNotFoundError
from chunkflow_py.pipeline.hooks import HasTraffic
from chunkflow_py.pipeline.operator import Source, TaskSource
from chunkflow_py.pipeline.pipeline import Listener, Pipeline
from chunkflow_py.planning.tasks import plan_of
from chunkflow_py.run.step_pipeline import worker_pipeline
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.files.file_saver import FileSaver
from chunkflow_py.volume.location import volume_name
from chunkflow_py.volume.output import VolumeOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.volume.saver import VolumeSaver

FEWEST, ENOUGH_S = 6, 6.0  # tasks, and seconds, after which no more is learnt
_PROGRESS_S = 0.5  # between two notes of it


def left_out(operators: Sequence[Operator]) -> list[str]:
    """Return the names of the operators of a line that a rehearsal leaves out.

    They write where nothing can be put in its place, or skip tasks by what a run has done already.
    """
    return [stage.name for stage in operators if not _is_rehearsed(stage)]


def _is_rehearsed(stage: Operator) -> bool:
    if stage.name.startswith("skip-task-"):
        return False
    return stage.lane != "write" or isinstance(stage.body, VolumeOutput | FileSaver)


def rehearsed(
    operators: Sequence[Operator],
    source: Source | None,
    numbers: Sequence[int],
    scratch: Path,
    ahead: int | None,
    listener: Listener,
) -> Pipeline:
    """Return a line that does some of its tasks and writes them below *scratch*; checked.

    Args:
        operators: of the line, read with ``--dry-run``.
        source: of its tasks.
        numbers: of the tasks to do, by the plan of the source.
        scratch: an empty folder.
        ahead: tasks that lanes work ahead, as for `Pipeline`.
        listener: hears of it.

    Raises:
        ChunkflowError: whatever is wrong with the line.
    """
    kept = [stage for stage in operators if _is_rehearsed(stage)]
    for number, stage in enumerate(kept):
        if isinstance(stage.body, VolumeOutput):
            _redirect(stage.body.saver, scratch / str(number))
        elif isinstance(stage.body, FileSaver):
            files = stage.body.files
            name = Path(files.name).name
            stage.body.files = replace(files, name=str(scratch / f"{number}-{name}"))
    some = None
    if source is not None:
        plan = plan_of(source)
        tasks = TaskSource(plan.boxes, lambda: [plan.region(number) for number in numbers])
        some = Source(source.name, tasks)
    pipeline = worker_pipeline(kept, some, ahead) if some else Pipeline(kept, ahead=ahead)
    pipeline.listener = listener
    pipeline.check()
    return pipeline


def _redirect(saver: VolumeSaver, folder: Path) -> None:
    """Let a saver make a volume of its own, as that which it would write to is, or will be."""
    place = saver.place
    told = saver.announced.get(volume_name(place))
    spec = told() if told is not None else None
    try:
        there = open_volume(saver.url, saver.mip, format=saver.format, opening=saver.opening)
    except VolumeNotFoundError:
        there = None
    if there is not None:
        saver.bounds, saver.block_size, saver.dtype = there.bounds, there.block_size, there.dtype
        saver.shard_size = None if there.write_unit == there.block_size else there.write_unit
        saver.times, saver.voxel_size_nm = there.times, there.voxel_size_nm
    elif spec is not None:
        spec = spec.level(saver.mip)
        saver.bounds, saver.block_size, saver.dtype = spec.bounds, spec.block_size, spec.dtype
        saver.shard_size, saver.encoding, saver.times = spec.shard_size, spec.encoding, spec.times
        saver.voxel_size_nm = spec.voxel_size_nm
    form = place.format
    suffix = ".h5" if form == "h5" else ""
    scheme = place.scheme or form
    saver.url = f"{scheme}://{folder}{suffix}" if scheme else f"{folder}{suffix}"
    if place.dataset:
        saver.url += f":{place.dataset}"
    saver.mip, saver.create, saver.announced = 0, True, {}


class Heard(Listener):
    """Tells what happens in a line, as it happens.

    Args:
        tell: takes one event, something that JSON can hold.
        started: when the process was started, as `time.time` tells it.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], started: float) -> None:
        """Begin with nothing done."""
        self.tell, self.started = tell, started
        self.pipeline: Pipeline | None = None
        self.done = 0
        self._last = 0.0

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        """Tell what is foretold."""
        if self.pipeline is None:
            return
        foretold = self.pipeline.foretold()
        networks = [getattr(stage.body, "expected", None) for stage in operators]
        self.tell(
            {
                "event": "ready",
                "at": self._now(),
                "ahead": self.pipeline.ahead,
                "parts": foretold.parts,
                "unknown": foretold.unknown,
                "device_bytes": sum(each.device_bytes for each in networks if each is not None),
                "devices": [str(each.workload.device) for each in networks if each is not None],
            }
        )

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:  # noqa: ARG002
        """Tell it, from time to time."""
        now = self._now()
        if now - self._last > _PROGRESS_S:
            self._last = now
            share = done / max(1, total)
            self.tell({"event": "progress", "at": now, "operator": label, "share": share})

    def operator_started(self, label: str, task: Task) -> None:  # noqa: ARG002
        """Tell it for the first task, of which nothing else may be learnt in time."""
        if not self.done:
            self.tell({"event": "progress", "at": self._now(), "operator": label, "share": 0.0})

    def task_finished(self, task: Task) -> None:
        """Tell what it took."""
        self.done += 1
        event: dict[str, Any] = {
            "event": "task",
            "at": self._now(),
            "task": None if task.region is None else str(task.region.bbox),
            "seconds": dict(task.seconds),
            "written": sum(stored.size or 0 for stored in task.written),
            "objects": sum(stored.size is not None for stored in task.written),
            "peak": peak_bytes(),
        }
        if task.failed:
            event |= {"event": "failure", "failure": str(task.outcome)}
        self.tell(event | {"traffic": self._traffic()})

    def _traffic(self) -> dict[str, tuple[int, int, int]]:
        """Return bytes by loader: stored, decoded, needed."""
        stages = self.pipeline.operators if self.pipeline else ()
        return {
            stage.name: (cost.stored_bytes, cost.decoded_bytes, cost.needed_bytes)
            for stage in stages
            if isinstance(stage.body, HasTraffic) and (cost := stage.body.traffic) is not None
        }

    def _now(self) -> float:
        return time() - self.started


def act(pipeline: Pipeline, heard: Heard, *, at_most: int) -> None:
    """Run a line until enough is known of it, or its tasks are done.

    Args:
        pipeline: checked.
        heard: its listener.
        at_most: tasks.
    """
    heard.pipeline = pipeline
    first: float | None = None
    for task in pipeline.run():
        if task.failed:
            return
        del task
        first = time() if first is None else first
        if heard.done >= at_most or (heard.done >= FEWEST and time() - first > ENOUGH_S):
            break
    heard.tell({"event": "end"})


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the most memory that this process has held so far; 0 where nothing tells it."""
    if sys.platform == "linux":
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
