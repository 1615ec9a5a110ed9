"""Atomic writes of local files: the final name always has the complete old or new content.

```
write  -> .tmp-1f2e3d4c-out.h5 -> fsync -> rename to out.h5 -> fsync of the folder
error  -> .tmp-1f2e3d4c-out.h5 removed, out.h5 unchanged
```
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import ChunkflowError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.store_protocol import CHECKSUM_DIGITS, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

TEMPORARY_PREFIX = ".tmp-"

_TRIED, _QUICK_S = 8, 0.0005  # number of timed calls; a call of fewer seconds needs no threads

_LONGEST_NAME = 255  # bytes, on every file system in common use
_NO_SPACE = "free some space or write to another disk"
_NOT_ALLOWED = "change the permissions of the file or folder, or write to another folder"
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or write to another disk",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "write to another folder",
    errno.ENOTDIR: "a part of the path is a file; choose another name",
    errno.EEXIST: "a part of the path is a file; choose another name",
    errno.EISDIR: "a folder has this name; choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the path",
    errno.ESPIPE: "the path names a pipe or a device; replace the pipe or device by a file",
}


def absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path in canonical spelling, without ``.`` and ``..``.

    Symbolic links are kept, because they may differ between machines. Links are resolved only if
    the path has a ``..`` after a link, because removing that ``..`` would name a different file.
    """
    whole = os.fspath(Path(path).expanduser().absolute())
    if ".." not in whole.split("/"):
        return whole
    short = os.path.normpath(whole)
    return short if os.path.realpath(short) == os.path.realpath(whole) else os.path.realpath(whole)


def write_whole(
    path: str | os.PathLike[str], data: bytes | memoryview, *, fsync: bool = True
) -> None:
    """Write *data* as the whole content of a file, atomically and durably.

    Missing folders are created.

    Args:
        path: path of the file; its old content is replaced, or kept if writing fails.
        data: the new content.
        fsync: wait until the content is on the disk. If false, a power cut may lose the whole new
            content, but never only a part of it.

    Raises:
        VolumeError: the file cannot be written, for example because the disk is full.
    """
    with replacing(path, fsync=fsync) as temporary, temporary.open("wb") as file:
        file.write(data)


@contextmanager
def replacing(path: str | os.PathLike[str], *, fsync: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of *path*; the file is renamed to *path* on success.

    The temporary name has the extension of the final name, because some libraries depend on the
    extension. The temporary file does not exist yet. Missing folders are created.

    Args:
        path: final path of the file.
        fsync: wait until the file is on the disk.

    Yields:
        The path to which the caller writes; the file must be closed when the with block ends.

    Raises:
        VolumeError: the file cannot be written; an old file of this name is kept.
    """
    final = Path(path)
    temporary = temporary_beside(final)
    with os_errors("write", final):
        try:
            make_folder(final.parent)
            yield temporary
            if fsync:
                sync(temporary)
            temporary.replace(final)
            if fsync:
                sync(final.parent)
        except BaseException:
            # An error of the clean-up must not hide the first error.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def stored_file(path: str | os.PathLike[str]) -> Stored:
    """Read a written file back, and return its size and checksum as a `Stored` record.

    Raises:
        VolumeError: the file cannot be read.
    """
    whole = Path(path).absolute()
    with os_errors("read", whole), whole.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = None if removed("checksum") else hashlib.file_digest(file, "sha256").hexdigest()
    return Stored(f"file://{whole}", size, digest and digest[:CHECKSUM_DIGITS])


def temporary_beside(path: Path, mark: str | None = None) -> Path:
    """Return a temporary name in the folder of *path*, with the same extension.

    Args:
        path: final path of the file.
        mark: text in the temporary name (default: random digits, so that the name is unique).
    """
    start = f"{TEMPORARY_PREFIX}{mark or secrets.token_hex(4)}-"
    # A long name is shortened at its start, to keep the extension.
    tail = os.fsdecode(os.fsencode(path.name)[-(_LONGEST_NAME - len(start)) :])
    return path.with_name(start + tail)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and its missing parents, durably.

    Raises:
        VolumeError: the folder cannot be created.
    """
    folder = Path(path)
    with os_errors("make folder", folder):
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            sync(each.parent)


@contextmanager
def os_errors(action: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert an OSError in the with block to an error that names *path* and a remedy, if known.

    Args:
        action: the attempted action, such as ``read`` or ``write``.
        path: the file or folder.

    Raises:
        VolumeNotFoundError: *action* is ``read``, and the file does not exist.
        VolumeError: any other OSError.
    """
    try:
        yield
    except ChunkflowError:
        raise
    except OSError as error:
        if error.errno is None:  # from h5py, with the cause only in its text
            msg = f"cannot {action} {os.fspath(path)}: {error}"
            raise VolumeError(msg) from error
        remedy = _REMEDIES.get(error.errno)
        if action == "read" and remedy == _NOT_ALLOWED:
            remedy = "change the permissions of the file"
        reason = (error.strerror or os.strerror(error.errno)).lower()
        msg = f"cannot {action} {os.fspath(path)}: {reason}" + (f"; {remedy}" if remedy else "")
        if action == "read" and error.errno == errno.ENOENT:
            raise VolumeNotFoundError(msg) from error
        raise VolumeError(msg) from error


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the list of entries of a folder, is on the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def of_each_file(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int, name: str
) -> list[Result]:
    """Call *work* on each item, in several threads if the disk is slow; return the results.

    The first `_TRIED` calls run in this thread and are timed. If the fastest of these calls took
    less than `_QUICK_S` seconds, the files are in the page cache. The remaining calls then also run
    in this thread, because thread switches would take longer than the calls. The fastest call is
    used, because a slower call may have waited for a processor instead of the disk.

    Args:
        work: function that makes one or two system calls on a small file.
        items: arguments of *work*, one for each call.
        threads: number of concurrent calls if the disk is slow.
        name: name of the threads, for debuggers.
    """
    done, quickest = [], 1.0
    for item in items[:_TRIED]:
        start = perf_counter()
        done.append(work(item))
        quickest = min(quickest, perf_counter() - start)
    left = items[_TRIED:]
    if quickest < _QUICK_S or not left:
        return done + [work(item) for item in left]
    with ThreadPoolExecutor(min(threads, len(left)), thread_name_prefix=name) as pool:
        return done + list(pool.map(work, left))
