"""Run a pilot: a few tasks of a pipeline, to measure time and memory; the output is discarded.

```
this process                                  pilot processes (`chunkflow_py.cli.pilot_process`)
run_pilots -- request: arguments, tasks -->   pilot_pipeline, run_pilot
Observation <-- events, one JSON object per line -- PilotListener
```

A pilot process runs nothing but the pipeline, so its peak memory is that of the pipeline. The
process sends these events:

| event      | sent when                            | content                                      |
|------------|--------------------------------------|----------------------------------------------|
| `ready`    | the pipeline is set up               | seconds since the start, estimated memory    |
| `progress` | an operator starts or progresses     | share of the task that the operator has done |
| `task`     | a task has ended                     | seconds of its operators, bytes, peak memory |
| `failure`  | the pipeline or a task has failed    | error message                                |
| `end`      | enough tasks were measured           | nothing                                      |

Each event is sent immediately, so killing the process at any time loses no measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import VolumeNotFoundError
from chunkflow_py.pipeline.operator import Source, TaskSource
from chunkflow_py.pipeline.pipeline import Listener, Pipeline
from chunkflow_py.planning.task_amounts import plan_of
from chunkflow_py.run.step_pipeline import worker_pipeline
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.files.file_saver import FileSaver
from chunkflow_py.volume.location import volume_name
from chunkflow_py.volume.output import VolumeOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.volume.saver import VolumeSaver

FEWEST, ENOUGH_S = 6, 6.0  # a pilot lasts at least this many tasks and seconds
_PROGRESS_S = 0.5  # seconds between two progress events


@dataclass(frozen=True)
class PilotTask:
    """Measurements of one task of a pilot run.

    Attributes:
        at: time at which the task ended, in seconds since the start of the process.
        bbox: box of the task; ``None`` if the pipeline has no source of tasks.
        seconds: seconds that each operator took for the task, by operator name.
        written: number of bytes that the task stored.
        objects: number of files or objects that the task stored.
        network_s: total seconds of all forward passes from the start of the process to the end of
            the task.
    """

    at: float
    bbox: BoundingBox | None
    seconds: dict[str, float]
    written: int
    objects: int
    network_s: float = 0.0


@dataclass
class Observation:
    """Measurements of one pilot process.

    Attributes:
        ready_s: seconds from the start of the process until its pipeline was set up; ``None`` if
            the pipeline was not set up.
        ahead: number of tasks that were prefetched per stage.
        tasks: measurements of the tasks that have ended.
        peak_bytes: peak host memory of the process in bytes.
        parts: dict from a purpose, such as weights, to the estimated bytes of host memory.
        unknown: names of operators whose memory is not fully estimated.
        device_bytes: estimated GPU memory in bytes.
        devices: names of the devices on which the networks ran.
        begun: three numbers for each operator that has started its first task, by operator name:
            the time at which the operator started, the time of its latest progress report, and the
            share of the task that the operator had done at that time. Times are in seconds since
            the start of the process.
        traffic: three numbers of bytes for each loader, by loader name. The first is the size of
            the fetched blocks as stored, the second their size after decoding, and the third the
            size of the voxels that tasks requested.
        failure: message of the error that ended the process; ``None`` without an error.
        is_refused: whether the pipeline was refused before its first task, for example because it
            needs too much memory.
        is_whole: whether the process measured enough tasks.
        is_cut: whether the process was killed at the time limit.
    """

    ready_s: float | None = None
    ahead: int = 0
    tasks: list[PilotTask] = field(default_factory=list)
    peak_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    device_bytes: int = 0
    devices: tuple[str, ...] = ()
    begun: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    traffic: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    failure: str | None = None
    is_refused: bool = False
    is_whole: bool = False
    is_cut: bool = False

    @property
    def estimated_bytes(self) -> int:
        """Estimated host memory in bytes, the sum of all *parts*."""
        return sum(self.parts.values())

    def add(self, event: dict[str, Any]) -> None:
        """Update the measurements with an event that the pilot process sent."""
        kind = event["event"]
        self.peak_bytes = max(self.peak_bytes, event.get("peak", 0))
        if kind == "ready":
            self.ready_s, self.ahead, self.parts = event["at"], event["ahead"], event["parts"]
            self.unknown, self.devices = tuple(event["unknown"]), tuple(event["devices"])
            self.device_bytes = event["device_bytes"]
        elif kind == "progress":
            name, at, share = event["operator"], event["at"], event["share"]
            start = self.begun.get(name, (at, at, 0.0))[0]
            if not self.tasks:
                self.begun[name] = (start, at, share)
        elif kind == "task":
            box = event["task"]
            self.tasks.append(
                PilotTask(
                    event["at"],
                    None if box is None else BoundingBox.parse(box),
                    event["seconds"],
                    event["written"],
                    event["objects"],
                    event["network_s"],
                )
            )
            self.traffic = {name: tuple(amounts) for name, amounts in event["traffic"].items()}
        elif kind == "failure":
            self.failure, self.is_refused = event["failure"], event.get("refused", False)
        elif kind == "end":
            self.is_whole = True


def run_pilots(
    module: str,
    request: dict[str, Any],
    numbers: Sequence[Sequence[int]],
    seconds: float,
    folder: Path | None,
) -> list[Observation]:
    """Run several pilot processes at the same time, and return the measurements of each.

    Args:
        module: Python module that each process runs with ``python -m``.
        request: pipeline and settings, which are sent to every process.
        numbers: for each process, the numbers of its tasks in the plan of the step.
        seconds: time limit; processes that still run at this time are killed.
        folder: existing folder for the output (default: the temporary folder of the system). The
            output is removed at the end.
    """
    found = [Observation() for _ in numbers]
    with TemporaryDirectory(prefix=".plan-", dir=folder or gettempdir()) as scratch:
        processes: list[tuple[subprocess.Popen[str], threading.Thread]] = []
        end = monotonic() + seconds
        try:
            for number, some in enumerate(numbers):
                place = Path(scratch) / str(number)
                place.mkdir()
                message = {**request, "numbers": list(some), "scratch": str(place)}
                processes.append(_started(module, message, found[number]))
            for (process, thread), seen in zip(processes, found, strict=True):
                thread.join(max(0.0, end - monotonic()))
                note_peak(process.pid, seen)
        finally:
            for (process, thread), seen in zip(processes, found, strict=False):
                seen.is_cut = thread.is_alive()
                process.kill()
                process.wait()
                thread.join()
                if process.stdout is not None:
                    process.stdout.close()
    return found


def note_peak(pid: int, found: Observation) -> None:
    """Store the peak memory of process *pid* as ``found.peak_bytes``, if the process still runs."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        peak = 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])
        found.peak_bytes = max(found.peak_bytes, peak)


def _started(
    module: str, request: dict[str, Any], found: Observation
) -> tuple[subprocess.Popen[str], threading.Thread]:
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # the process has died, which the reader notices
            json.dump({**request, "started": time()}, process.stdin)
        process.stdin.close()
    lines: Iterable[str] = process.stdout or ()

    def read_events() -> None:
        for line in lines:
            found.add(json.loads(line))
        code = process.wait()
        if not (found.is_whole or found.failure or found.is_cut):
            why = ", possibly for lack of memory" if code == -9 else ""
            found.failure = f"the pilot process ended with exit code {code}{why}"

    thread = threading.Thread(target=read_events, name="pilot", daemon=True)
    thread.start()
    return process, thread


# --- in a pilot process ---------------------------------------------------------------------------


def operators_left_out(operators: Sequence[Operator]) -> list[str]:
    """Return the names of the operators that a pilot run leaves out.

    A pilot leaves out operators whose output cannot be redirected to a temporary folder. It also
    leaves out the operators ``skip-task-…``, which skip tasks that are already complete.
    """
    return [stage.name for stage in operators if not _is_in_pilot(stage)]


def _is_in_pilot(stage: Operator) -> bool:
    if stage.name.startswith("skip-task-"):
        return False
    return stage.stage != "write" or isinstance(stage.body, VolumeOutput | FileSaver)


def pilot_pipeline(
    operators: Sequence[Operator],
    source: Source | None,
    numbers: Sequence[int],
    scratch: Path,
    ahead: int | None,
    listener: Listener,
) -> Pipeline:
    """Return a checked pipeline that runs some tasks and writes all output below *scratch*.

    Args:
        operators: operators of the pipeline, parsed with ``--dry-run`` so that they do not remove
            files, send tasks or create volumes.
        source: source of the tasks; ``None`` if the pipeline has no source and runs once.
        numbers: numbers of the tasks to run, in the plan of the source.
        scratch: an empty folder for the output.
        ahead: number of tasks to prefetch per stage (default: the default of `Pipeline`).
        listener: object that receives the events of the pipeline.

    Raises:
        ChunkflowError: the pipeline cannot run.
    """
    kept = [stage for stage in operators if _is_in_pilot(stage)]
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
    """Make *saver* write to a new volume below *folder*, like the volume that the user gave."""
    place = saver.place
    announced = saver.announced.get(volume_name(place))
    spec = announced() if announced is not None else None
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


class PilotListener(Listener):
    """Listener of a pilot process, which sends each event to `run_pilots` immediately.

    Args:
        send: function that sends an event, a dictionary that can be converted to JSON.
        started: time at which the process was started, as returned by `time.time`.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], started: float) -> None:
        self.send, self.started = send, started
        self.pipeline: Pipeline | None = None
        self.done = 0
        self._last = 0.0

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        """Send the event that the pipeline is ready, with its estimated memory."""
        if self.pipeline is None:
            return
        estimate = self.pipeline.estimated_memory()
        networks = [operator.hooks.expected for operator in operators]
        self.send(
            {
                "event": "ready",
                "at": self._now(),
                "ahead": self.pipeline.ahead,
                "parts": estimate.parts,
                "unknown": estimate.unknown,
                "device_bytes": sum(each.device_bytes for each in networks if each is not None),
                "devices": [str(each.workload.device) for each in networks if each is not None],
            }
        )

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:  # noqa: ARG002
        """Send the progress of an operator on a task, at most twice per second."""
        now = self._now()
        if now - self._last > _PROGRESS_S:
            self._last = now
            share = done / max(1, total)
            self.send({"event": "progress", "at": now, "operator": label, "share": share})

    def operator_started(self, label: str, task: Task) -> None:  # noqa: ARG002
        """Send the start of an operator on the first task, as a progress of 0.

        If the time limit stops the process during its first task, these events are the only
        measurements.
        """
        if not self.done:
            self.send({"event": "progress", "at": self._now(), "operator": label, "share": 0.0})

    def task_finished(self, task: Task) -> None:
        """Send the measurements of a task that has ended."""
        self.done += 1
        event: dict[str, Any] = {
            "event": "task",
            "at": self._now(),
            "task": None if task.region is None else str(task.region.bbox),
            "seconds": dict(task.seconds),
            "written": sum(stored.size or 0 for stored in task.written),
            "objects": sum(stored.size is not None for stored in task.written),
            "network_s": self._network_s(),
            "peak": peak_bytes(),
        }
        if task.failed:
            event |= {"event": "failure", "failure": str(task.outcome)}
        self.send(event | {"traffic": self._traffic()})

    def _network_s(self) -> float:
        """Return the seconds of all finished forward passes."""
        stages = self.pipeline.operators if self.pipeline else ()
        networks = (stage.hooks for stage in stages if stage.hooks.declares("network_seconds"))
        return sum(hooks.network_seconds for hooks in networks)

    def _traffic(self) -> dict[str, tuple[int, int, int]]:
        """Return the bytes that each loader has read, by name; see `Observation.traffic`."""
        stages = self.pipeline.operators if self.pipeline else ()
        return {
            stage.name: (cost.stored_bytes, cost.decoded_bytes, cost.needed_bytes)
            for stage in stages
            if (cost := stage.hooks.traffic) is not None
        }

    def _now(self) -> float:
        return time() - self.started


def run_pilot(pipeline: Pipeline, listener: PilotListener, *, at_most: int) -> None:
    """Run a pipeline until enough of its tasks are measured, all tasks are done, or a task fails.

    Args:
        pipeline: a checked pipeline.
        listener: listener of the pipeline; it forwards the measurements.
        at_most: maximum number of tasks to run.
    """
    listener.pipeline = pipeline
    first: float | None = None
    for task in pipeline.run():
        if task.failed:
            return
        del task
        first = time() if first is None else first
        if listener.done >= at_most or (listener.done >= FEWEST and time() - first > ENOUGH_S):
            break
    listener.send({"event": "end"})


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the peak host memory of this process in bytes; 0 if unknown."""
    if sys.platform == "linux":
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
