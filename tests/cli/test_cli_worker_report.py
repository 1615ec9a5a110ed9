"""What a person sees of a worker: a line a process on a terminal, a line a task in a log."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.terminal import on_terminal
from rigs.variants import gate_runs

from chunkflow_py.cli.gpu_use import GpuWatch
from chunkflow_py.cli.progress import WorkerProgress, progress_rows
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.worker.supervisor import WorkerSnapshot
from chunkflow_py.run.worker.worker_pool import ProcessSnapshot, TaskSnapshot
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from pathlib import Path

    from rigs.terminal import Terminal


def record(number: int, state: Any = "done") -> Record:
    """Return the record of a task of 1000 voxels."""
    stored = (Stored("file:///x", 40, None),)
    box = f"0-10_0-10_{10 * number}-{10 * number + 10}"
    return Record(number, box, state, "s", "a", "w", seconds={"load": 1.0}, written=stored)


def child(number: int, *tasks: TaskSnapshot, **about: Any) -> ProcessSnapshot:
    """Return a process that has run for 10 seconds, its network for 9."""
    said = {"device": None, "seconds": 10.0, "network_seconds": 9.0}
    return ProcessSnapshot(number, 1, **(said | about), read_bytes=0, memory_bytes=0, tasks=tasks)


def test_each_process_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view shows each process, and the progress of all workers and of this one."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    state = WorkerProgress("affinity", 20)
    state.snapshot = WorkerSnapshot((child(0, seconds=None, network_seconds=None),), 0, 0, 0, None)
    head, only = progress_rows(state, GpuWatch())
    assert head.text == "affinity: 0 of 20 tasks   0.0 s elapsed", "the ledger was not asked yet"
    assert only == (" 0  starts", "dim")
    state.recorded(8)
    now = 110.0
    for number, outcome in enumerate(("done", "skipped", "dead")):
        state.task_ended(record(number, outcome))
    state.failures = 4
    running = TaskSnapshot("0-1_0-1_0-1", "inference", "compute", 12.04, 31, 68)
    reading = [TaskSnapshot(f"{z}-2_0-1_0-1", "load", "read", 3.0 - z) for z in range(2)]
    between = TaskSnapshot("5-6_0-1_0-1", "", "", 1.0)
    children = (child(0, running, *reading, device="3"), child(1, between), child(12, seconds=20.0))
    state.snapshot = WorkerSnapshot(children, 0, 0, 0, None)
    rows = [row.text for row in progress_rows(state, GpuWatch())]
    assert rows[0].startswith(
        "###########.........  55%  affinity: 11 of 20 tasks, 3 of them here, 1 skipped, 1 given "
        "up, 4 failures   0:10 elapsed, ends in 0:30, "
    )
    assert rows[1:] == [
        "200 voxel/s   32% of the time outside of the network",
        " 0 on GPU 3  load 0-2_0-1_0-1, 3.0 s, and 1 more | inference 0-1_0-1_0-1, 31 of 68, 0:12",
        " 1  waits",
        "12  waits",
    ]
    state.recorded(20)
    assert state.left_s() is None, "it is over"
    assert (state.voxels, state.written_bytes, state.seconds) == (2000, 80, {"load": 2.0})


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of eight tasks, each of which takes a while, warns and prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "slow.py").write_text(
        "import logging, time\n"
        "from pathlib import Path\n"
        "def execute(chunk):\n"
        "    time.sleep(0.3)\n"
        f"    while Path({str(tmp_path / 'held')!r}).exists():\n"
        "        time.sleep(0.02)\n"
        "    if tuple(chunk.voxel_offset) == (0, 0, 0):\n"
        "        logging.getLogger('somebody').warning('take care')\n"
        "    return chunk\n"
    )
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    say(f"submit --run r {LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr")
    return tmp_path


def test_a_worker_on_a_real_terminal(submitted: Path) -> None:
    """Both processes are seen at work; at the end stand the warning, the table and the result."""
    views: list[str] = []
    held = submitted / "held"  # tasks do not end before both processes have been seen with one
    held.touch()

    def watch(screen: Terminal, resize: Any) -> None:
        views.append(screen.text)
        if " 0  plugin " in screen.text and "\n 1  plugin " in screen.text:
            held.unlink(missing_ok=True)

    code, screen, _ = on_terminal(["work", "r", "--processes", "2"], watch=watch)
    assert code == 0, screen.text
    assert any(" 0  starts\n 1  starts" in view for view in views)
    assert any(" 0  plugin " in view and "\n 1  plugin " in view for view in views)
    assert any(re.search(r"  plugin: [1-7] of 8 tasks .*, ends in ", view) for view in views)
    warning, *table, last = screen.text.splitlines()
    assert warning in [f"WARNING: worker process {n}: take care" for n in (0, 1)]
    assert [row.split()[0] for row in table] == [
        "operator", "load-zarr", "plugin", "save-zarr", "elapsed",
    ]  # fmt: skip
    assert table[-1].endswith("voxel/s, 8 tasks")
    assert last.endswith("/r is complete")
    assert screen.modes["?7"]
    assert not screen.modes["?2026"]
    assert "?25" not in screen.modes


@pytest.mark.parametrize("options", gate_runs([[], ["--quiet"]], []))
def test_a_worker_in_a_pipe(submitted: Path, options: list[str]) -> None:
    """One line per task without control characters; --quiet keeps only warnings."""
    done = subprocess.run(
        [sys.executable, "-m", "chunkflow_py", *options, "work", "r", "--processes", "2"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("/r is complete\n")
    assert "\x1b" not in done.stderr + done.stdout
    assert "\r" not in done.stderr
    lines = done.stderr.splitlines()
    told = [line for line in lines if ": done in 0." in line]
    assert len(told) == (0 if options else 8)
    assert all(line.startswith("INFO: ") and line.endswith("voxel/s") for line in told)
    assert sum("take care" in line for line in lines) == 1
    assert (lines[-1].startswith("elapsed"), len(lines) == 1) == (not options, bool(options))
