"""How errors are classified, and when a worker blames a task or itself."""

from __future__ import annotations

import errno
import fcntl
import time
from typing import TYPE_CHECKING

import pytest

from chunkflow_py import errors
from chunkflow_py.errors import OperatorError, VolumeError
from chunkflow_py.run.worker.failure_policy import FailurePolicy, Fault, fault_of
from chunkflow_py.store import open_store
from chunkflow_py.store.network_retry import RetryPolicy

if TYPE_CHECKING:
    from pathlib import Path


def raised_from(error: Exception, cause: BaseException) -> Exception:
    """Return *error* as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


def of_torch(text: str) -> RuntimeError:
    """Return the error that torch raises if a GPU has too little memory."""
    import torch

    return torch.OutOfMemoryError(text)


DISK = OSError(errno.ENOSPC, "No space left on device")
CASES = [
    (ValueError("shapes differ"), "permanent", None, "error"),
    (errors.ChunkError("shapes differ"), "permanent", None, "error"),
    (errors.VolumeNotFoundError("no such volume"), "permanent", None, "error"),
    (errors.VolumeRefusedError("403"), "resource", "access", "no-access"),
    (FileNotFoundError(errno.ENOENT, "no such file"), "permanent", None, "error"),
    (errors.VolumeUnreachableError("503, 9 tries in 120 s"), "transient", None, "network"),
    (errors.QueueUnreachableError("no answer"), "transient", None, "network"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "transient", None, "network"),
    (TimeoutError("timed out"), "transient", None, "network"),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "transient", None, "network"),
    (
        raised_from(VolumeError("cannot read"), OSError(errno.ESTALE, "stale")),
        "transient",
        None,
        "network",
    ),
    (DISK, "resource", "disk", "disk-full"),
    (raised_from(VolumeError("cannot write"), DISK), "resource", "disk", "disk-full"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "resource", "disk", "disk-full"),
    (MemoryError(), "resource", "memory", "host-memory"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "resource", "memory", "host-memory"),
    (errors.OutOfMemoryError("a batch of 4 needs 9 GiB"), "resource", "memory", "host-memory"),
    (
        raised_from(errors.OutOfMemoryError("a batch of 4 needs 9 GiB"), of_torch("2 GiB")),
        "resource",
        "memory",
        "gpu-memory",
    ),
    (of_torch("Tried to allocate 2 GiB"), "resource", "memory", "gpu-memory"),
    (
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        "resource",
        "memory",
        "gpu-memory",
    ),
    (
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
        "resource",
        "memory",
        "host-memory",
    ),
    (
        errors.WrongArithmeticError("cuda:0 computes wrong values"),
        "resource",
        "device",
        "faulty-device",
    ),
]


@pytest.mark.parametrize(("error", "kind", "shortage", "cause"), CASES)
def test_errors_are_classed_by_what_they_come_from(
    error: Exception, kind: str, shortage: str | None, cause: str
) -> None:
    """The class follows the cause, also under the error that an operator wraps around it."""
    for each in (error, OperatorError("save", "0-1_0-1_0-1", error)):
        fault = fault_of(each)
        assert (fault.kind, fault.shortage, fault.cause) == (kind, shortage, cause)
        assert fault.reason
        assert type(error).__name__ in fault_of(error).traceback


def test_causes_may_go_in_a_circle() -> None:
    """An error that is its own cause's cause is classed like any other."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert fault_of(one).kind == "permanent"


def test_a_network_down_is_transient(tmp_path: Path) -> None:
    """What the store raises when nobody answers says that it may pass."""
    pytest.importorskip("obstore")
    store = open_store(
        "http://127.0.0.1:9/nothing", retry_policy=RetryPolicy(unheard_s=0.1, connect_s=0.1)
    )
    with pytest.raises(VolumeError) as caught:
        store.get("a")
    assert fault_of(caught.value).kind == "transient"


def test_an_error_of_the_device_breaks_the_process() -> None:
    """After an error of the device nothing runs on it any more in this process."""
    broken = fault_of(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert broken.breaks_process
    assert not fault_of(ValueError("shapes differ")).breaks_process
    assert fault_of(RuntimeError("CUDA error: out of memory")).shortage == "memory"


def test_a_fault_holds_no_secret() -> None:
    """What a foreign error says of an address is recorded without its password and signature."""
    said = "cannot get https://me:geheim@host/em?X-Amz-Signature=geheim here"
    fault = fault_of(OperatorError("load", None, RuntimeError(said)))
    assert "geheim" not in fault.reason + fault.traceback
    assert "https://host/em here" in fault.traceback


def test_a_locked_file_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An HDF5 file that another process holds, be it stopped, may be free later."""
    import h5py

    from chunkflow_py.volume.files import hdf5_file

    monkeypatch.setattr(hdf5_file, "LOCK_WAIT_S", 0.05)
    path = tmp_path / "out.h5"
    h5py.File(path, "w").close()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with (
            pytest.raises(VolumeError, match="other programs are reading it") as caught,
            hdf5_file.writing(path),
        ):
            pass
    assert fault_of(caught.value).kind == "transient"


REFUSED = Fault("resource", "403", shortage="access")


def decide(policy: FailurePolicy, task: int, fault: Fault = REFUSED) -> str:
    """Return what a policy decides on a task that failed alone."""
    return policy.decide(task, fault, "host-1", is_alone=True).action


def test_two_refusals_in_a_row_stop_a_worker() -> None:
    """A worker that has no access to anything uses up no attempt of a task."""
    policy = FailurePolicy(1.0, 5.0)
    assert decide(policy, 1) == "retry"
    assert decide(policy, 2) == "stop"


def test_a_task_that_alone_is_refused_is_blamed() -> None:
    """When other tasks succeed between its attempts, the task itself is at fault."""
    policy = FailurePolicy(1.0, 5.0)
    assert decide(policy, 1) == "retry"
    policy.succeeded()
    assert decide(policy, 1) == "count"
    policy.succeeded()
    assert decide(policy, 2) == "retry"


def test_memory_is_the_fault_of_the_task_once_others_succeed() -> None:
    """A worker on which nothing has succeeded stops at the second task without memory."""
    short = Fault("resource", "out of memory", shortage="memory")
    policy = FailurePolicy(1.0, 5.0)
    assert policy.decide(1, short, "host-1", is_alone=False).action == "retry-alone"
    assert [decide(policy, task, short) for task in (1, 2)] == ["retry", "stop"]
    policy.succeeded()
    assert decide(policy, 1, short) == "count"
    assert decide(policy, 2, short) == "stop"


def test_failures_of_the_network_double_the_pause() -> None:
    """They are counted against their tasks, and the worker takes none meanwhile."""
    policy = FailurePolicy(1.0, 5.0)
    pauses = []
    for task in range(4):
        assert decide(policy, task, Fault("transient", "503")) == "count"
        pauses.append(policy.back_off.until - time.monotonic())
    assert pauses[3] > 2 * pauses[0]
    policy.succeeded()
    assert policy.back_off.until == 0
