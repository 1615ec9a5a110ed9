"""Whose fault an error is."""

from __future__ import annotations

import errno
import fcntl
from typing import TYPE_CHECKING

import pytest

from chunkflow_py import errors
from chunkflow_py.errors import OperatorError, VolumeError
from chunkflow_py.run.worker.outcome import fault_of
from chunkflow_py.store import open_store
from chunkflow_py.store.retry import Manners

if TYPE_CHECKING:
    from pathlib import Path


def raised_from(error: Exception, cause: BaseException) -> Exception:
    """Return *error* as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


DISK = OSError(errno.ENOSPC, "No space left on device")
CASES = [
    (ValueError("shapes differ"), "permanent", None),
    (errors.ChunkError("shapes differ"), "permanent", None),
    (errors.VolumeNotFoundError("no such volume"), "permanent", None),
    (errors.VolumeRefusedError("403"), "resource", "access"),
    (FileNotFoundError(errno.ENOENT, "no such file"), "permanent", None),
    (errors.VolumeUnreachableError("503, 9 tries in 120 s"), "transient", None),
    (errors.QueueUnreachableError("no answer"), "transient", None),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "transient", None),
    (TimeoutError("timed out"), "transient", None),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "transient", None),
    (raised_from(VolumeError("cannot read"), OSError(errno.ESTALE, "stale")), "transient", None),
    (DISK, "resource", "disk"),
    (raised_from(VolumeError("cannot write"), DISK), "resource", "disk"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "resource", "disk"),
    (MemoryError(), "resource", "memory"),
    (errors.OutOfMemoryError("a batch of 4 needs 9 GiB"), "resource", "memory"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "resource", "memory"),
]


@pytest.mark.parametrize(("error", "kind", "shortage"), CASES)
def test_errors_are_classed_by_what_they_come_from(
    error: Exception, kind: str, shortage: str | None
) -> None:
    """The class follows the cause, also under the error that an operator wraps around it."""
    for each in (error, OperatorError("save", "0-1_0-1_0-1", error)):
        fault = fault_of(each)
        assert (fault.kind, fault.shortage) == (kind, shortage)
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
    store = open_store("http://127.0.0.1:9/nothing", manners=Manners(unheard_s=0.1, connect_s=0.1))
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

    monkeypatch.setattr(hdf5_file, "PATIENCE_S", 0.05)
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
