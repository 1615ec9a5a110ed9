"""Local files written whole: under their final name there is the old content or the new.

```
write  -> .tmp-1f2e3d4c-out.h5 -> fsync -> rename to out.h5 -> fsync of the folder
fails  -> .tmp-1f2e3d4c-out.h5 removed, out.h5 as it was
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

_TRIED, _QUICK_S = 8, 0.0005

_LONGEST_NAME = 255  # bytes, on every file system in common use
_NO_SPACE = "free some space or write to another disk"
_NOT_ALLOWED = "change its permissions or write to another folder"
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or write to another disk",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "write to another folder",
    errno.ENOTDIR: "a part of the path is a file; choose another name",
    errno.EEXIST: "a part of the path is a file; choose another name",
    errno.EISDIR: "there is a folder of this name; choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the path",
    errno.ESPIPE: "it is a pipe or a device, not a file; remove it",
}


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path from the root, spelled the same by all who mean it: without ``.`` and ``..``.

    Links stay as they are, which other machines may resolve otherwise, unless one comes before a
    ``..``, which then leads elsewhere than it seems.
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

    Missing folders are made.

    Args:
        path: of the file; what it held before is replaced, or kept if writing fails.
        data: the new content.
        fsync: wait until the disk has it; without, a power cut may lose it (never tear it).

    Raises:
        VolumeError: the file cannot be written, such as on a full disk.
    """
    with replacing(path, fsync=fsync) as temporary, temporary.open("wb") as file:
        file.write(data)


@contextmanager
def replacing(path: str | os.PathLike[str], *, fsync: bool = True) -> Iterator[Path]:
    """Give a temporary path in the same folder, which takes the place of *path* on success.

    The temporary name ends like the final one, so that libraries that look at the extension see
    the right one. It does not exist yet. Missing folders are made.

    Args:
        path: of the file in the end.
        fsync: wait until the disk has it.

    Yields:
        Where the caller is to write the file, which must be closed when the block ends.

    Raises:
        VolumeError: the file cannot be written; the temporary file is gone, the old one is kept.
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
            # The failure to report is the first one, not that of cleaning up.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def stored_file(path: str | os.PathLike[str]) -> Stored:
    """Return size and checksum of a written file, by reading it back.

    Raises:
        VolumeError: it cannot be read.
    """
    whole = Path(path).absolute()
    with os_errors("read", whole), whole.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = None if removed("checksum") else hashlib.file_digest(file, "sha256").hexdigest()
    return Stored(f"file://{whole}", size, digest and digest[:CHECKSUM_DIGITS])


def temporary_beside(path: Path, mark: str | None = None) -> Path:
    """Return a temporary name in the folder of *path*, with the same ending.

    Args:
        path: of the file in the end.
        mark: what tells it from other temporary names; random unless given.
    """
    start = f"{TEMPORARY_PREFIX}{mark or secrets.token_hex(4)}-"
    # A long name is cut at its front: the extension stays.
    tail = os.fsdecode(os.fsencode(path.name)[-(_LONGEST_NAME - len(start)) :])
    return path.with_name(start + tail)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and the missing ones above it, durably.

    Raises:
        VolumeError: it cannot be made.
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
    """Translate an OSError inside the block to one sentence that names *path*.

    Args:
        action: what was tried, such as ``read`` or ``write``.
        path: what it was tried on.

    Raises:
        VolumeNotFoundError: reading, and it does not exist.
        VolumeError: any other OSError.
    """
    try:
        yield
    except ChunkflowError:
        raise
    except OSError as error:
        if error.errno is None:  # as h5py raises, with all it knows in the text
            msg = f"cannot {action} {os.fspath(path)}: {error}"
            raise VolumeError(msg) from error
        remedy = _REMEDIES.get(error.errno)
        if action == "read" and remedy == _NOT_ALLOWED:
            remedy = "change its permissions"
        reason = (error.strerror or os.strerror(error.errno)).lower()
        msg = f"cannot {action} {os.fspath(path)}: {reason}" + (f"; {remedy}" if remedy else "")
        if action == "read" and error.errno == errno.ENOENT:
            raise VolumeNotFoundError(msg) from error
        raise VolumeError(msg) from error


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def of_each_file(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int, name: str
) -> list[Result]:
    """Apply *work* to each item, on several threads if it waits for a file server.

    For files in the page cache a call is faster than the switch to another thread, and many threads
    that switch this often slow down all others. The first few calls show which case it is; the
    fastest of them counts, because any call may have waited for a processor.

    Args:
        work: one call or two on a small file.
        items: given to *work* one by one.
        threads: how many calls wait for a server at the same time.
        name: of the threads, for debuggers.
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
