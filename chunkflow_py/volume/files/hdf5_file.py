"""Access to HDF5 files: any number of processes may read a file, and one process may write to it.

HDF5 keeps parts of an open file in memory, and does not open a file for writing while the same
process has the file open for reading. Each read and each write therefore opens the file and closes
the file again. Only one thread of a process uses HDF5 at a time. Two locks coordinate the
processes:

```
em.h5         HDF5's own lock: shared during a read, exclusive during a write
em.h5.lock    held by the only process that may write; see `WriterLock`
```
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary, finalize

import h5py

from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.store.local_files import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_WAIT_S = 30.0  # wait for another process that reads or writes the file
_STEP_S = 0.02
# what h5py raises for damaged files; each is translated into a VolumeError
_FOREIGN = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)

_guard = RLock()  # HDF5 runs one thread at a time


@contextmanager
def reading(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading.

    Raises:
        VolumeNotFoundError: the file does not exist.
        VolumeError: the file is not an HDF5 file or is damaged, or another process writes to the
            file for longer than `LOCK_WAIT_S`.
    """
    check_signature(path)
    try:
        with _guard, _opened_when_free(path) as file:
            yield file
    except _FOREIGN as error:
        if isinstance(error, ChunkflowError):
            raise
        reason = (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]
        msg = f"cannot read {path}, which seems damaged: {reason}; save the file again"
        raise VolumeError(msg) from error


def check_signature(path: Path) -> None:
    """Check that a path is an HDF5 file.

    Raises:
        VolumeNotFoundError: the file does not exist.
        VolumeError: the path is a folder or a file of another format.
    """
    with os_errors("read", path):
        if path.is_dir():
            msg = f"{path} is a folder, not an HDF5 file; name a file"
            raise VolumeError(msg)
        if not h5py.is_hdf5(path):
            with path.open("rb"):  # a missing or unreadable file raises its own error
                pass
            msg = f"{path} is not an HDF5 file; check the path"
            raise VolumeError(msg)


def _opened_when_free(path: Path) -> h5py.File:
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return h5py.File(path, "r")
        except BlockingIOError as error:  # HDF5's lock: another process writes
            if time.monotonic() > end:
                msg = f"cannot read {path}: another process is writing to it; try again later"
                raise VolumeError(msg) from error
            time.sleep(_STEP_S)


@contextmanager
def writing(path: Path) -> Iterator[tuple[h5py.File, Sink]]:
    """Open an existing file for writing; flush it to the disk at the end of the ``with`` block.

    Raises:
        VolumeError: the file cannot be written, for example on a full disk, or other processes read
            the file for longer than `LOCK_WAIT_S`.
    """
    with _guard, os_errors("write", path):
        sink = Sink(path)
        with sink:
            sink.lock(path)
            try:
                with h5py.File(sink, "r+") as file:
                    yield file, sink
            except _FOREIGN as error:
                sink.check()  # raises the first failure
                if isinstance(error, ChunkflowError):
                    raise
                reason = (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]
                msg = f"cannot write {path}, which seems damaged: {reason}; create the file again"
                raise VolumeError(msg) from error
            sink.sync()


class WriterLock:
    """The exclusive right of this process to write to a file, until this object is freed."""

    _held: ClassVar[WeakValueDictionary[str, WriterLock]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        """Acquire the lock.

        Raises:
            VolumeError: another process writes to the file.
        """
        lock = path.with_name(f"{path.name}.lock")
        with os_errors("write", lock):
            while True:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    with suppress(FileNotFoundError):
                        if lock.stat().st_ino == os.fstat(handle).st_ino:
                            break
                except BlockingIOError:
                    os.close(handle)
                    msg = (
                        f"cannot write {path}: another process writes to it, and an HDF5 file "
                        "allows one writer; wait until that process ends, or write a zarr volume, "
                        "which allows many writers"
                    )
                    raise VolumeError(msg) from None
                os.close(handle)  # the previous holder has removed the lock file meanwhile
        finalize(self, _unlock, lock, handle, os.getpid())

    @classmethod
    def of(cls, path: Path) -> WriterLock:
        """Return the lock of *path*; acquire it unless this process already holds it."""
        with _guard:
            key = f"{os.getpid()} {path.resolve()}"
            lock = cls._held.get(key)
            if lock is None:
                lock = cls._held[key] = cls(path.resolve())
            return lock


def _unlock(lock: Path, handle: int, process: int) -> None:
    if os.getpid() == process:  # a forked process does not own the lock
        with suppress(OSError):
            lock.unlink()
    os.close(handle)


class Sink(io.RawIOBase):
    """A file that hides the errors of failed writes from HDF5, and raises these errors later.

    HDF5 keeps parts of a file in memory and writes them when the file is closed. If one of these
    writes fails, for example on a full disk, the process crashes when it exits. After a first
    failed write, this class therefore ignores further writes, so that HDF5 can close the file
    normally. The error of the failed write is raised by `check`, or when the file is closed.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Open an existing file, or create a file if *new* is true."""
        self._handle = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o666)
        self._position = 0
        self._length = os.fstat(self._handle).st_size
        self._failure: OSError | None = None

    def lock(self, path: Path) -> None:
        """Acquire HDF5's own lock, which keeps other processes from reading.

        Raises:
            VolumeError: other processes read the file for longer than `LOCK_WAIT_S`.
        """
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    msg = f"cannot write {path}: other programs are reading it; end these programs"
                    raise VolumeError(msg) from error
                time.sleep(_STEP_S)

    def check(self) -> None:
        """Raise the error of the first failed write, if any."""
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        """Flush the file to the disk; if a write has failed, raise its error."""
        self.check()
        os.fsync(self._handle)

    def __exit__(self, *exception: object) -> None:
        """Close the file; if a write has failed, raise the error of the first failed write."""
        os.close(self._handle)
        super().__exit__(*exception)  # type: ignore[arg-type]
        self.check()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return the position.

        The end of the file is where it would be if no write had failed.
        """
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}
        self._position = origin[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position in the file."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer* from the file, with zeros beyond the end of the file."""
        view = memoryview(buffer).cast("B")
        data = os.pread(self._handle, len(view), self._position)
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Write *data*; after a failed write, only advance the position."""
        view = memoryview(data).cast("B")
        done = 0
        while self._failure is None and done < len(view):
            try:
                done += os.pwrite(self._handle, view[done:], self._position + done)
            except OSError as error:
                self._failure = error
        self._position += len(view)
        self._length = max(self._length, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length of the file."""
        self._length = self._position if size is None else size
        if self._failure is None:
            try:
                os.ftruncate(self._handle, self._length)
            except OSError as error:
                self._failure = error
        return self._length
