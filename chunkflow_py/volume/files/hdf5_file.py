"""Opening HDF5 files, one thread of this process at a time: to read, or as their only writer.

HDF5 keeps parts of a file in memory and cannot be opened for reading and writing by one process
at once, so a file is opened for one read or one write and closed again. Between the processes
there are two locks:

```
em.h5         HDF5's own: shared while it is read, exclusive while one write lasts
em.h5.lock    held by the process that writes to the file, from its first write to its end
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

PATIENCE_S = 30.0  # for another process that reads or writes the file right now
_STEP_S = 0.02
# what h5py raises for damaged files; all of them again as a VolumeError
_FOREIGN = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)

_guard = RLock()  # HDF5 itself lets one thread work at a time


@contextmanager
def reading(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading.

    Raises:
        VolumeNotFoundError: there is no such file.
        VolumeError: it is not an HDF5 file, is damaged, or is written by another process for
            longer than `PATIENCE_S`.
    """
    check_signature(path)
    try:
        with _guard, _opened_when_free(path) as file:
            yield file
    except _FOREIGN as error:
        if isinstance(error, ChunkflowError):
            raise
        reason = (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]
        msg = f"cannot read {path}, which seems damaged: {reason}; write it again"
        raise VolumeError(msg) from error


def check_signature(path: Path) -> None:
    """Refuse what is not an HDF5 file.

    Raises:
        VolumeNotFoundError: there is no such file.
        VolumeError: it is a folder or holds something else.
    """
    with os_errors("read", path):
        if path.is_dir():
            msg = f"{path} is a folder, not an HDF5 file; name a file"
            raise VolumeError(msg)
        if not h5py.is_hdf5(path):
            with path.open("rb"):  # a missing or forbidden file is told as such
                pass
            msg = f"{path} is not an HDF5 file; check its name"
            raise VolumeError(msg)


def _opened_when_free(path: Path) -> h5py.File:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return h5py.File(path, "r")
        except BlockingIOError as error:  # HDF5's lock: somebody writes
            if time.monotonic() > end:
                msg = f"cannot read {path}: another process is writing to it; wait until it is done"
                raise VolumeError(msg) from error
            time.sleep(_STEP_S)


@contextmanager
def writing(path: Path) -> Iterator[tuple[h5py.File, Sink]]:
    """Open an existing file for writing, and leave it on the disk when the block ends.

    Raises:
        VolumeError: it cannot be written, such as on a full disk, or others read it for longer
            than `PATIENCE_S`.
    """
    with _guard, os_errors("write", path):
        sink = Sink(path)
        with sink:
            sink.lock(path)
            try:
                with h5py.File(sink, "r+") as file:
                    yield file, sink
            except _FOREIGN as error:
                sink.check()  # what went wrong first
                if isinstance(error, ChunkflowError):
                    raise
                reason = (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]
                msg = f"cannot write {path}, which seems damaged: {reason}; make it again"
                raise VolumeError(msg) from error
            sink.sync()


class WriterLock:
    """The right of this process to write to a file, given back when nobody holds this object."""

    _held: ClassVar[WeakValueDictionary[str, WriterLock]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        """Take the lock.

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
                        f"cannot write {path}: another process writes to it, and an HDF5 file has "
                        "one writer; wait until it is done, or write a zarr volume, which has many"
                    )
                    raise VolumeError(msg) from None
                os.close(handle)  # its last holder has removed it meanwhile
        finalize(self, _unlock, lock, handle, os.getpid())

    @classmethod
    def of(cls, path: Path) -> WriterLock:
        """Return the lock of *path* that this process holds, or take it."""
        with _guard:
            key = f"{os.getpid()} {path.resolve()}"
            lock = cls._held.get(key)
            if lock is None:
                lock = cls._held[key] = cls(path.resolve())
            return lock


def _unlock(lock: Path, handle: int, process: int) -> None:
    if os.getpid() == process:  # a child that inherited it has no right to it
        with suppress(OSError):
            lock.unlink()
    os.close(handle)


class Sink(io.RawIOBase):
    """A file whose failures HDF5 does not see, raised at `check` and when it is closed.

    HDF5 keeps parts of a file in memory and writes them when it closes; a write that fails there
    crashes the process at its end. So after the first failure (a full disk) nothing more is
    written, HDF5 closes in peace, and the failure is raised afterwards.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Open the file, or make it."""
        self._handle = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o666)
        self._position = 0
        self._length = os.fstat(self._handle).st_size
        self._failure: OSError | None = None

    def lock(self, path: Path) -> None:
        """Take HDF5's own lock, which keeps the readers of other processes out.

        Raises:
            VolumeError: they have read it for longer than `PATIENCE_S`.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    msg = f"cannot write {path}: other programs are reading it; close them"
                    raise VolumeError(msg) from error
                time.sleep(_STEP_S)

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        """Wait until the disk has it all; raise the first failure, if there was one."""
        self.check()
        os.fsync(self._handle)

    def __exit__(self, *exception: object) -> None:
        """Close the file, then raise the first failure."""
        os.close(self._handle)
        super().__exit__(*exception)  # type: ignore[arg-type]
        self.check()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position; the end is where it would be had every write worked."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}
        self._position = origin[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer*, with zeros behind the end."""
        view = memoryview(buffer).cast("B")
        data = os.pread(self._handle, len(view), self._position)
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Write *data*, unless a write has failed before."""
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
        """Set the length."""
        self._length = self._position if size is None else size
        if self._failure is None:
            try:
                os.ftruncate(self._handle, self._length)
            except OSError as error:
                self._failure = error
        return self._length
