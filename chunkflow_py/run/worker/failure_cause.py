"""Causes: why an attempt failed, and why a worker stopped.

This module contains all functions that determine a cause, one for each kind of evidence:

| evidence                            | function          | causes                                |
|-------------------------------------|-------------------|---------------------------------------|
| an error that the pipeline raised   | `cause_of_error`  | host-memory, gpu-memory, disk-full,   |
|                                     |                   | no-access, faulty-device, network,    |
|                                     |                   | error                                 |
| the end of a worker process         | `cause_of_exit`   | host-memory, segfault, killed, crash  |
| a signal that asks a worker to stop | `cause_of_signal` | evicted, killed                       |

Three causes need no decision: ``hang`` (a time limit was exceeded), ``preempted`` (the cloud has
announced the preemption) and ``worker-lost`` (nothing is known).
`chunkflow_py.run.ledger.ledger_record` lists all causes.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from errno import ENOMEM
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import TransientError, VolumeRefusedError, WrongArithmeticError, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.run.ledger.ledger_record import FailureCause

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_NETWORK_ERRORS = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ESTALE,  # a file server was restarted
    errno.ETIMEDOUT,
}
# Messages with which torch reports a lack of memory as a plain RuntimeError.
_OUT_OF_GPU_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_OUT_OF_HOST_MEMORY = "not enough memory: you tried"
_SEGFAULTS = (signal.SIGSEGV, signal.SIGBUS)
_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Variables that a scheduler sets in its jobs, and signals by which it asks a job to end.
_SCHEDULERS = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "AWS_BATCH_JOB_ID")
_EVICTIONS = (signal.SIGTERM, signal.SIGUSR1)  # SIGUSR1: before the time limit of a Slurm job


def cause_of_error(chain: Sequence[BaseException]) -> FailureCause:
    """Return the cause of an error; *chain* is the error, followed by the errors that caused it."""
    for each in chain:
        cause = _shortage(each)
        if cause == "host-memory" and any(map(_is_short_of_gpu_memory, chain)):
            return "gpu-memory"
        if cause is not None:
            return cause
    return "network" if any(map(_is_transient, chain)) else "error"


def _shortage(error: BaseException) -> FailureCause | None:
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return "disk-full"
    if isinstance(error, VolumeRefusedError):
        return "no-access"
    if isinstance(error, WrongArithmeticError):
        return "faulty-device"
    if _is_short_of_gpu_memory(error):
        return "gpu-memory"
    # `errors.OutOfMemoryError` is a MemoryError of either kind: the error that caused it decides.
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM):
        return "host-memory"
    if isinstance(error, RuntimeError) and _OUT_OF_HOST_MEMORY in text_of(error):
        return "host-memory"
    return None


def _is_short_of_gpu_memory(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or isinstance(error, MemoryError):
        return False
    # Compare the name, so that torch need not be imported for torch.OutOfMemoryError.
    is_of_torch = type(error).__name__ == "OutOfMemoryError"
    return is_of_torch or any(part in text_of(error) for part in _OUT_OF_GPU_MEMORY)


def _is_transient(error: BaseException) -> bool:
    # BlockingIOError: another process has locked the file.
    if isinstance(error, (TransientError, ConnectionError, TimeoutError, BlockingIOError)):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK_ERRORS


def cause_of_exit(exit_code: int, *, is_memory_kill: bool) -> FailureCause:
    """Return why a worker process has ended without being asked to end.

    Args:
        exit_code: exit code of the process; if a signal has ended it, minus the number of the
            signal.
        is_memory_kill: whether the count of `memory_kills` has increased while the process ran.
    """
    number = -exit_code
    if number == signal.SIGKILL:
        return "host-memory" if is_memory_kill else "killed"
    if number in _SEGFAULTS:
        return "segfault"
    return "killed" if number in _REQUESTS else "crash"


def cause_of_signal(number: int, environment: Mapping[str, str] = os.environ) -> FailureCause:
    """Return why a worker was asked to stop by a signal.

    Schedulers such as Slurm and Kubernetes send certain signals before they end a job. If
    *environment* contains the variables of such a job, these signals count as an eviction. In all
    other cases, the signal counts as sent by a person.
    """
    is_job = any(environment.get(name) for name in _SCHEDULERS)
    return "evicted" if number in _EVICTIONS and is_job else "killed"


# --- processes that the kernel killed -------------------------------------------------------------


def memory_kills() -> int | None:
    """Return the number of processes that the kernel has killed for lack of memory so far.

    Only processes in the control group of this process count, so other containers do not matter.
    Without control groups, all processes of the machine count. ``None`` means that the number is
    unknown.
    """
    for path in _memory_kill_files():
        with suppress(OSError, ValueError, IndexError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def _memory_kill_files() -> list[Path]:
    files = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
            elif "memory" in controllers.split(","):
                files.append(Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control"))
                # In a container, the group may be the root of what is mounted.
                files.append(Path("/sys/fs/cgroup/memory/memory.oom_control"))
    return [*files, Path("/proc/vmstat")]
