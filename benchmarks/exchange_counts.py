"""How many patches the workers of a run compute: real `submit` and `work` processes, some killed.

Each worker is a process group of its own, like a machine: killed, it vanishes with its processes,
and its task returns when its lease expires.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import HERE, ROOT, TIME_LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEASE_S = 5.0
_POLL_S = 0.05


def pipeline_of(case: dict[str, Any], image: str, target: str, workers: int) -> list[str]:
    """Return the arguments of the pipeline.

    Args:
        case: ``task``, ``patch``, ``overlap``: sizes, zyx, voxels.
        image: URL of the volume to read.
        target: URL of the volume to write.
        workers: number of workers that begin at the same time.
    """
    task, patch, overlap = (map(str, case[key]) for key in ("task", "patch", "overlap"))
    size = [*task]
    plugin = ("--file", str(HERE / "peers" / "begin_task.py"), "--input-names", "bbox")
    network = ("--convnet-model", str(HERE / "peers" / "counting_network.py"))
    return [
        *("generate-tasks", "--volume-path", image, "--chunk-size", *size),
        *("load-volume", "--volume-path", image, "--expand-margin-size", "auto"),
        *("plugin", *plugin, "--args", f"workers={workers}"),
        *("inference", "--framework", "pytorch", *network, "--num-output-channels", "3"),
        *("--input-patch-size", *patch, "--output-patch-overlap", *overlap),
        *("--output-dtype", "uint8", "save-volume", "--volume-path", target, "--block-size", *size),
    ]


def chunkflow(*arguments: str) -> str:
    """Run a command line of this package; return what it prints.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(_command(*arguments), check=False, capture_output=True, text=True)
    if done.returncode:
        msg = f"Error: {' '.join(arguments[:3])}: {done.stderr[-600:]}"
        raise SystemExit(msg)
    return done.stdout


def planned(pipeline: list[str], workers: int) -> dict[str, Any]:
    """Return what `plan` estimates for the exchange of a pipeline; nothing if it does not say.

    Args:
        pipeline: arguments of a pipeline with one network.
        workers: number of workers.

    Returns:
        ``planned_bytes`` that are written, and as many read; ``planned_peak_bytes`` that are stored
        at the same time.
    """
    options = ("--no-rehearse", "--json", "--machines", str(workers))
    (step,) = json.loads(chunkflow("plan", *options, *pipeline))["stages"]
    for found in step.get("exchange", ()):
        return {"planned_bytes": found["written_bytes"], "planned_peak_bytes": found["peak_bytes"]}
    return {}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "chunkflow_py", "--quiet", *arguments]


def measure_counts(folder: Path, case: dict[str, Any], contestant: str) -> dict[str, Any]:
    """Work off a run; return what its workers have counted.

    Args:
        folder: an empty one.
        case: sizes, ``geometry``, and for each contestant ``workers``, ``kills``, ``exchange``.
        contestant: name in the case.

    Returns:
        The counts of `counted`, the estimates of `planned`, and ``kills``, ``peak_bytes`` of the
        exchange, ``digest`` of the output, ``wall_s``.
    """
    how = case["contestants"][contestant]
    image, output, run = f"zarr://{folder}/em.zarr", folder / "out.zarr", folder / "r"
    size, block = ([*map(str, case[key])] for key in ("size", "task"))
    made = ("--volume-path", image, "--block-size", *block)
    chunkflow("create-chunk", "--size", *size, "--pattern", "random", "save-volume", *made)
    pipeline = pipeline_of(case, image, f"zarr://{output}", how["workers"])
    estimate = planned(pipeline, how["workers"]) if how["exchange"] == "on" else {}
    options = ("--exchange", how["exchange"], "--workers", str(how["workers"]), "--no-rehearse")
    chunkflow("submit", "--run", str(run), *options, *pipeline)
    workers = Workers(folder / "counts", str(run), "0" if how["kills"] else "auto")
    start = time.monotonic()
    with peak_of(run / "exchange") as peak, workers:
        for _ in range(how["workers"]):
            workers.start()
        workers.kill_at_random(how["kills"], case["geometry"]["distinct"])
        workers.wait()
    seconds = time.monotonic() - start
    return {
        **counted(workers.files(), records_of(run), workers.killed),
        **estimate,
        "kills": len(workers.killed),
        "peak_bytes": peak[0],
        "digest": digest_of_files(output),
        "wall_s": seconds,
    }


@dataclass
class Workers:
    """The workers of a run, which write their counts into a file each.

    Attributes:
        folder: for the files, which have the names of the workers.
        run: address of the run.
        ahead: option of the workers. With 0, a process begins a task when it is done with the one
            before, so each of its forward passes belongs to the task that it has begun last.
        killed: names of those that were killed.
    """

    folder: Path
    run: str
    ahead: str
    killed: list[str] = field(default_factory=list)
    _all: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Workers:
        """Make the folder."""
        self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill those that still run, which is after an error."""
        for name in self._all:
            self._kill(name)

    def start(self) -> None:
        """Start another worker, with one process of one thread."""
        name = f"worker-{len(self._all)}"
        variables = {"BENCHMARK_COUNTS": str(self.folder / name)}
        options = ("--processes", "1", "--threads", "1", "--lease", str(LEASE_S))
        with (self.folder.parent / f"{name}.log").open("wb") as log:
            self._all[name] = subprocess.Popen(
                _command("--ahead", self.ahead, "work", self.run, *options, "--worker-name", name),
                env=os.environ | {"PYTHONPATH": str(ROOT), **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_at_random(self, times: int, distinct: int) -> None:
        """Kill workers that have begun a task, one after the other, and start others instead.

        Args:
            times: number of workers to kill, at equal distances in the work.
            distinct: number of different patches of the run.
        """
        rng = random.Random(0)
        for number in range(times):
            begun: list[str] = []
            while not begun or self._forwards() < (number + 0.5) / times * distinct:
                time.sleep(rng.uniform(0, 2 * _POLL_S))
                begun = [name for name in self.files() if self._runs(name)]
                if not any(self._runs(name) for name in self._all):
                    return
            name = rng.choice(begun)
            self._kill(name)
            self.killed.append(name)
            self.start()

    def files(self) -> dict[str, list[str]]:
        """Return what each worker that has begun a task has written, by its name."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            lines = path.read_text().splitlines()
            if any(line.startswith("task ") for line in lines):
                found[path.name] = lines
        return found

    def wait(self) -> None:
        """Wait until all have ended.

        Raises:
            SystemExit: one that was not killed has failed.
        """
        for name, process in self._all.items():
            code = process.wait(TIME_LIMIT_S)
            if code and name not in self.killed:
                text = (self.folder.parent / f"{name}.log").read_text()[-600:]
                msg = f"Error: {name} ended with exit code {code}: {text}"
                raise SystemExit(msg)

    def _forwards(self) -> int:
        """Return the number of forward passes so far."""
        return sum(text.count("forward ") for text in map(Path.read_text, self.folder.iterdir()))

    def _runs(self, name: str) -> bool:
        return self._all[name].poll() is None

    def _kill(self, name: str) -> None:
        if self._runs(name):
            os.killpg(self._all[name].pid, signal.SIGKILL)
            self._all[name].wait()


def records_of(run: Path) -> dict[str, int]:
    """Return how many tasks of a run each worker has recorded."""
    from chunkflow_py.run.run_directory import RunDirectory

    directory = RunDirectory(str(run))
    found: dict[str, int] = {}
    for step in directory.spec.steps:
        for record in directory.ledger(step.name).records():
            found[record.worker] = found.get(record.worker, 0) + 1
    return found


def counted(
    files: dict[str, list[str]], records: dict[str, int], killed: Sequence[str]
) -> dict[str, Any]:
    """Return what the workers have counted.

    Args:
        files: lines that each worker has written, see `peers/begin_task.py`.
        records: number of tasks that each worker has recorded.
        killed: names of the workers that were killed.

    Returns:
        ``forwards`` of attempts that were not killed; ``killed_forwards`` of those that were: of
        the last task of each killed worker that has begun more tasks than it has recorded;
        ``killed_attempts``; ``distinct``, the number of different patches; ``tasks`` recorded.
    """
    forwards = killed_forwards = killed_attempts = 0
    patches: set[str] = set()
    for name, lines in files.items():
        begun = [number for number, line in enumerate(lines) if line.startswith("task ")]
        passes = [line.partition(" ")[2] for line in lines[begun[0] :] if line.startswith("for")]
        lost = 0
        if name in killed and len(begun) > records.get(name, 0):
            lost = sum(line.startswith("forward ") for line in lines[begun[-1] :])
            killed_attempts += 1
        killed_forwards += lost
        forwards += len(passes) - lost
        patches.update(passes)
    return {
        "forwards": forwards,
        "killed_forwards": killed_forwards,
        "killed_attempts": killed_attempts,
        "distinct": len(patches),
        "tasks": sum(records.values()),
    }


@contextmanager
def peak_of(folder: Path) -> Iterator[list[int]]:
    """Yield a list whose only element is, at the end, the largest size of the files in *folder*."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(_POLL_S):
            peak[0] = max(peak[0], bytes_in(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in *folder*, some of which may vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def digest_of_files(folder: Path) -> str:
    """Return a digest of the names and contents of all files in *folder*.

    Temporary files, which a process leaves behind if it is killed while it writes, do not count.
    """
    from chunkflow_py.store.local_files import TEMPORARY_PREFIX

    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name.startswith(TEMPORARY_PREFIX):
            continue
        found.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
