"""Why processes end and workers stop, decided from exit codes, signals and kernel counters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from uuid import uuid4

import pytest

from chunkflow_py.run.ledger.ledger_record import FailureCause
from chunkflow_py.run.worker.failure_cause import (
    cause_of_exit,
    cause_of_signal,
    memory_kills,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Starts a process that takes more memory than its control group has.
HOG = """import os, subprocess, sys
from pathlib import Path
(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from chunkflow_py.run.worker.failure_cause import cause_of_exit, memory_kills
before = memory_kills()
code = subprocess.run([sys.executable, "-c", sys.argv[2]]).returncode
print(cause_of_exit(code, is_memory_kill=memory_kills() > before))
"""


@pytest.mark.parametrize(
    ("exit_code", "is_memory_kill", "cause"),
    [
        (-signal.SIGKILL, True, "host-memory"),
        (-signal.SIGKILL, False, "killed"),
        (-signal.SIGTERM, False, "killed"),
        (-signal.SIGINT, True, "killed"),
        (-signal.SIGSEGV, True, "segfault"),
        (-signal.SIGBUS, False, "segfault"),
        (-signal.SIGABRT, False, "crash"),
        (1, True, "crash"),
        (0, False, "crash"),
    ],
)
def test_the_end_of_a_process_has_one_cause(
    exit_code: int, is_memory_kill: bool, cause: FailureCause
) -> None:
    """Only a SIGKILL is ambiguous, and the count of the kernel decides."""
    assert cause in get_args(FailureCause)
    assert cause_of_exit(exit_code, is_memory_kill=is_memory_kill) == cause


@pytest.mark.parametrize("name", ["KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "AWS_BATCH_JOB_ID"])
def test_sigterm_in_a_job_is_an_eviction(name: str) -> None:
    """Schedulers send SIGTERM or SIGUSR1; any other signal, or outside of a job, is a person's."""
    assert cause_of_signal(signal.SIGTERM, {name: "1"}) == "evicted"
    assert cause_of_signal(signal.SIGUSR1, {name: "1"}) == "evicted"
    assert cause_of_signal(signal.SIGUSR1, {}) == "killed"
    assert cause_of_signal(signal.SIGINT, {name: "1"}) == "killed"
    assert cause_of_signal(signal.SIGTERM, {name: ""}) == "killed"


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with 64 MB of memory, where this process may make one."""
    rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mine = next((group for _, what, group in rows if what in ("", "memory")), "/")
    version_1 = any(what == "memory" for _, what, _ in rows)
    base = Path("/sys/fs/cgroup/memory" if version_1 else "/sys/fs/cgroup") / mine.strip("/")
    group = base / f"test-{uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        limit.write_text(str(64_000_000))
        yield group
    except OSError as error:
        pytest.skip(f"cannot limit the memory of a control group: {error}")
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("bytearray(500_000_000)", "host-memory"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
    ],
)
def test_the_kernel_tells_a_memory_kill_from_kill_9(
    group: Path, program: str, cause: FailureCause
) -> None:
    """Of two processes with the same exit code, only one was killed for lack of memory."""
    said = subprocess.run(
        [sys.executable, "-c", HOG, str(group), program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == cause


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts such kills")
def test_memory_kills_are_counted_here() -> None:
    """The count is known on Linux, so that a SIGKILL can be explained."""
    kills = memory_kills()
    assert kills is not None
    assert kills >= 0
