"""Times per operator, from the logs that savers write with ``--upload-log``.

A log is a JSON object: ``{"timer": {label: seconds}, "bbox": box, "compute_device": name}``.
"""

from __future__ import annotations

import io
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import Region
from chunkflow_py.errors import ChunkflowError, VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx

logger = logging.getLogger(__name__)

TOTAL = "all operators"
AT_ONCE = 1024  # logs that are requested together
COLUMNS = ("operator", "tasks", "total", "share", "mean s", "min s", "max s", "Mvoxel/s")


@dataclass
class Times:
    """Times of one operator on one device, added up over tasks.

    Attributes:
        tasks: number of tasks.
        total_s: seconds of the operator in all tasks.
        least_s: seconds of the operator in its fastest task.
        most_s: seconds of the operator in its slowest task.
        known_s: seconds of the operator in the tasks whose number of voxels is known.
        voxels: sum of the numbers of voxels that are known.
    """

    tasks: int = 0
    total_s: float = 0.0
    least_s: float = math.inf
    most_s: float = 0.0
    known_s: float = 0.0
    voxels: int = 0

    def add(self, seconds: float, voxels: int | None) -> None:
        """Add the operator's seconds for one task, and the task's voxels (``None`` if unknown)."""
        self.tasks += 1
        self.total_s += seconds
        self.least_s = min(self.least_s, seconds)
        self.most_s = max(self.most_s, seconds)
        if voxels is not None:
            self.known_s += seconds
            self.voxels += voxels

    @property
    def mean_s(self) -> float:
        """Mean seconds per task."""
        return self.total_s / self.tasks

    @property
    def mvoxel_s(self) -> float | None:
        """Millions of voxels per second; ``None`` if no voxels or no times are known."""
        return self.voxels / self.known_s / 1e6 if self.known_s and self.voxels else None


@dataclass
class RunLog:
    """Times added up over many logs; memory does not grow with the number of logs.

    Attributes:
        devices: times by device and operator, with operators in the order of the pipeline. The last
            entry of a device, `TOTAL`, holds the times of all operators together.
        malformed: dict from the name of each file that is not a log to the reason.
    """

    devices: dict[str, dict[str, Times]] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)

    def add(self, log: Any, voxels: int | None = None) -> None:
        """Add the times of one log to the sums.

        Args:
            log: parsed JSON of the log.
            voxels: number of voxels of the task (default: voxels of the box in the log).

        Raises:
            ValueError: *log* is not a log; the message gives the reason.
        """
        timer = log.get("timer") if isinstance(log, dict) else None
        if not isinstance(timer, dict) or not timer:
            msg = "the file has no 'timer' with the seconds of operators"
            raise ValueError(msg)
        for label, seconds in timer.items():
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not (number and 0 <= seconds < math.inf):
                msg = f"{label} took {seconds!r}, which is not a number of seconds"
                raise ValueError(msg)
        operators = self.devices.setdefault(str(log.get("compute_device") or "unknown"), {})
        total = operators.pop(TOTAL, Times())
        voxels = _voxels(log.get("bbox")) if voxels is None else voxels
        for label, seconds in timer.items():
            operators.setdefault(label, Times()).add(seconds, voxels)
        total.add(sum(timer.values()), voxels)
        operators[TOTAL] = total

    @property
    def tasks(self) -> int:
        """Number of logs whose times have been added."""
        return sum(operators[TOTAL].tasks for operators in self.devices.values())


def _voxels(box: Any) -> int | None:
    try:
        return Region.parse(str(box)).bbox.voxels
    except ChunkflowError:
        return None


def read_logs(url: str, output_size: Zyx | None = None) -> RunLog:
    """Return the times in all logs (``*.json``) below *url*, added up.

    A file that is not a log is skipped with a warning.

    Args:
        url: URL of a folder in any store that can be listed.
        output_size: extent of the output of a task, voxels, zyx. The speed is computed from this
            extent (default: from the extent of the box in each log).

    Raises:
        VolumeNotFoundError: there are no logs below *url*.
        VolumeError: none of the files is a log, or the store cannot be read.
    """
    store = open_store(url)
    keys = sorted(key for key in store.list() if key.endswith(".json"))
    remaining = iter(keys)
    if not keys:
        msg = (
            f"there are no logs in {url}; a saver with --upload-log writes files such as "
            "0-64_0-512_0-512.json to log/ in its volume"
        )
        raise VolumeNotFoundError(msg)
    run_log = RunLog()
    voxels = None if output_size is None else output_size.product()
    with ThreadPoolExecutor(min(store.connections, 16), thread_name_prefix="log") as pool:
        while batch := list(islice(remaining, AT_ONCE)):
            for key, data in zip(batch, pool.map(store.get, batch), strict=True):
                try:
                    run_log.add(parse_json(data or b""), voxels)
                except (ValueError, RecursionError) as error:  # JSON, UTF-8, or RunLog.add
                    run_log.malformed[key] = str(error)
                    logger.warning("skipping %s in %s, which is not a log: %s", key, url, error)
    if not run_log.tasks:
        key, reason = next(iter(run_log.malformed.items()))
        msg = f"none of the {len(keys)} files in {url} is a log; for example, {key}: {reason}"
        raise VolumeError(msg)
    return run_log


def table(run_log: RunLog) -> str:
    """Return the times as text: one table of operators for each device."""
    parts = []
    for device, operators in sorted(run_log.devices.items()):
        whole = operators[TOTAL].total_s
        rows: list[tuple[str, ...]] = [COLUMNS]
        for label, times in operators.items():
            speed = times.mvoxel_s
            rows.append((
                label,
                f"{times.tasks:,}",
                duration(times.total_s),
                f"{times.total_s / whole:.1%}" if whole else "-",
                *(f"{value:.3f}" for value in (times.mean_s, times.least_s, times.most_s)),
                "-" if speed is None else f"{speed:.4g}",
            ))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join((f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])))
            for row in rows
        ]
        parts.append("\n".join((f"{device}: {operators[TOTAL].tasks:,} tasks", *lines)))
    return "\n\n".join(parts)


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, such as ``12.3 s``, ``4.5 min`` or ``6.7 h``."""
    for unit, factor in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds:.1f} s"


def plot(run_log: RunLog) -> bytes:
    """Return a bar plot (PNG) of the mean, minimum and maximum time of each operator per task.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs_extra("view", "--plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    devices = sorted(run_log.devices.items())
    count = sum(len(operators) for _, operators in devices)
    figure = Figure(figsize=(8, 1.2 + 0.3 * count + 0.5 * len(devices)), layout="constrained")
    heights = [len(operators) + 1 for _, operators in devices]
    parts = figure.subplots(len(devices), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (device, operators) in zip(parts, devices, strict=True):
        labels = list(operators)
        means = [times.mean_s for times in operators.values()]
        below = [times.mean_s - times.least_s for times in operators.values()]
        above = [times.most_s - times.mean_s for times in operators.values()]
        colours = ["tab:gray" if label == TOTAL else "tab:blue" for label in labels]
        error = [[max(0.0, v) for v in below], [max(0.0, v) for v in above]]
        axes.barh(labels, means, xerr=error, color=colours, capsize=3)
        axes.invert_yaxis()
        axes.set_title(f"{device}: {operators[TOTAL].tasks:,} tasks")
        for row, times in enumerate(operators.values()):
            if times.mvoxel_s is not None:
                speed = f" {times.mvoxel_s:.3g} Mvoxel/s"
                axes.annotate(speed, (times.most_s, row), va="center")
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
    parts[-1].set_xlabel("seconds per task: mean, with minimum and maximum")
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)  # sets the canvas of the figure
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
