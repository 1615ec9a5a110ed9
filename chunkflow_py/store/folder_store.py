"""A store in a folder of this machine: objects are files.

Every write is durable. The content is written to a temporary file and synced (fsync), the file is
renamed to its final name, and its folder is synced. Only then does the write return. After a power
cut, an object has the complete old or the complete new content, and no finished write is lost. A
removal is also durable when the call returns. No setting weakens these guarantees.

Writes in several threads overlap: they wait for the disk at the same time. All writes in a with
block of `FolderStore.together` share one sync per folder, at the end of the block.
`FolderStore.put_each_if_absent` writes one file, syncs the file once, and creates hard links to
this file under all names.

Files whose names begin with ``.tmp-`` are not objects. A killed process may leave such files
behind.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.core.failpoints import reached, removed
from chunkflow_py.store.local_files import (
    TEMPORARY_PREFIX,
    absolute,
    make_folder,
    os_errors,
    sync,
    temporary_beside,
)
from chunkflow_py.store.store_address import check_key, check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TURN_S = 5.0  # seconds that an update waits for earlier updates, which take milliseconds each
CLAIM_S = 0.1  # seconds until others remove a claim, which lasts for one read and one rename

# There is no object: no file has the name, a parent is a file, or the name is a folder.
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Parts of temporary names, with the process id: a random token, which forks share, and a counter.
_PROCESS, _NUMBERS = secrets.token_hex(8), itertools.count()
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class FolderStore:
    """A store in a local folder; see `chunkflow_py.store.store_protocol.Store`."""

    is_local = True
    # Enough calls to overlap their waits for the disk, whatever the number of cores.
    connections = 16

    def __init__(self, path: str) -> None:
        """Open the folder at *path*, which need not exist yet."""
        self._root = absolute(path)
        self._under = self._root.rstrip("/") + "/"
        self.url = f"file://{self._root}"

    def _path(self, key: str) -> str:
        return self._under + check_key(key, self.url)

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist."""
        return self._read(key, 0, None, most)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or its last ``-start`` bytes if *start* < 0."""
        return self._read(key, start, None if start < 0 else stop)

    def _read(
        self, key: str, start: int, stop: int | None, most: int | None = None
    ) -> bytes | None:
        path = self._path(key)
        try:
            # Opening a pipe would block without O_NONBLOCK.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                size = os.fstat(handle).st_size
                check_size(size, most, key, self.url)
                start = max(0, size + start) if start < 0 else start
                length = max(0, (size if stop is None else min(stop, size)) - start)
                data = os.pread(handle, length, start)
                if len(data) < length:  # Linux reads at most 2 GiB at once
                    parts = [data]
                    while data and (done := sum(map(len, parts))) < length:
                        data = os.pread(handle, length - done, start + done)
                        parts.append(data)
                    data = b"".join(parts)
                return data
            finally:
                os.close(handle)
        except _ABSENT:
            return None
        except OSError:
            with os_errors("read", path):
                raise

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        *,
        content_type: str | None = None,  # noqa: ARG002 folders store no headers
        content_encoding: str | None = None,  # noqa: ARG002
        cache_control: str | None = None,  # noqa: ARG002
    ) -> None:
        """Write an object atomically; the object is on the disk when the call returns."""
        self._sync(_write(self._path(key), data))

    @contextmanager
    def together(self) -> Iterator[FolderStore]:
        """Yield a store in the same folder; its writes are on the disk when the with block ends."""
        store = _GatheringStore(self._root)
        yield store
        for folder in sorted(store.folders):
            with os_errors("write", folder):
                sync(folder)

    def _sync(self, folder: str) -> None:
        with os_errors("write", folder):
            sync(folder)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether this call wrote it."""
        return self._create(Path(self._path(key)), data)

    def _create(self, path: Path, data: bytes | memoryview) -> bool:
        temporary = temporary_beside(path)
        with os_errors("write", path):
            if path.exists():
                return False
            make_folder(path.parent)
            try:
                _write_synced(os.fspath(temporary), data)
                is_first = _linked(temporary, path)
            finally:
                # An error of the clean-up must not hide the first error.
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            if is_first is None:
                return _exchanged(path, None, data)
            sync(path.parent)
        return is_first

    def put_each_if_absent(self, keys: Sequence[str], data: bytes | memoryview) -> list[bool]:
        """Write *data* under each key that has no object.

        Returns:
            One bool for each key: whether this call wrote the object.
        """
        paths = [Path(self._path(key)) for key in keys]
        temporary = temporary_beside(paths[0])
        folders = {path.parent for path in paths}
        with os_errors("write", paths[0]):
            for folder in folders:
                make_folder(folder)
            try:
                _write_synced(os.fspath(temporary), data)
                are_first = [self._link_one(temporary, path, data) for path in paths]
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            # Also the folders of existing objects, on which the caller will rely.
            for folder in folders:
                sync(folder)
        return are_first

    def _link_one(self, temporary: Path, path: Path, data: bytes | memoryview) -> bool:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A network file system may have lost the reply to a link that it made.
            try:
                return path.samefile(temporary)
            except FileNotFoundError:  # removed since
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(path, data)
        return True

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace an object by the result of *change*; concurrent updates are not lost.

        Processes update an object one after the other. A process that is suspended during its
        update delays the other processes by `TURN_S` seconds, and repeats its update later.
        """
        path = Path(self._path(key))
        with _turn(path):
            while True:
                old = self.get(key)
                new = bytes(change(old))
                with os_errors("write", path):
                    if _exchanged(path, old, new):
                        return new
                    if path.is_dir():
                        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def delete(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        path = Path(self._path(key))
        with os_errors("remove", path):
            # Removing waits for writers of the folder even if the file does not exist.
            if not os.path.lexists(path):
                return
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            self._sync(os.fspath(path.parent))

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""
        path = Path(self._path(key))
        with os_errors("read", path):
            return path.stat().st_size if path.is_file() else None

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*, in no particular order."""
        return (key for key, _ in self._entries(prefix))

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the key and the length in bytes of each object whose key begins with *prefix*."""
        for key, entry in self._entries(prefix):
            with os_errors("list", self._under + key), suppress(FileNotFoundError):
                yield key, entry.stat().st_size

    def subfolders(self) -> Iterator[str]:
        """Yield the names of the subfolders directly in the folder, including empty subfolders."""
        with os_errors("list", self._under):
            try:
                entries = list(os.scandir(self._under))
            except (FileNotFoundError, NotADirectoryError):
                return
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith(TEMPORARY_PREFIX):
                yield entry.name

    def _entries(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders = [prefix.rpartition("/")[0]]
        while folders:
            folder = folders.pop()
            with os_errors("list", self._under + folder):
                try:
                    entries = list(os.scandir(self._under + folder))
                except (FileNotFoundError, NotADirectoryError):
                    continue
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    if entry.name.startswith(TEMPORARY_PREFIX):
                        continue
                    if key.startswith(prefix) or prefix.startswith(f"{key}/"):
                        folders.append(key)
                elif key.startswith(prefix) and not entry.name.startswith(TEMPORARY_PREFIX):
                    yield key, entry


class _GatheringStore(FolderStore):
    """Collects the folders to sync at the end of a `together` block."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.folders: set[str] = set()

    def _sync(self, folder: str) -> None:
        self.folders.add(folder)


def _linked(source: Path, path: Path) -> bool | None:
    """Make *path* a hard link to *source*; return whether this succeeded.

    Return ``None`` if the file system does not support hard links.
    """
    try:
        path.hardlink_to(source)
    except FileExistsError:
        # A network file system may have lost the reply to a link that it made.
        return source.stat().st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return None
    return True


def _exchanged(path: Path, old: bytes | None, data: bytes | memoryview) -> bool:
    """Replace a file's content *old* with *data*; return ``False`` if the content is not *old*.

    ```
    1. write and sync .tmp-1f2e3d4c-name/TOKEN
    2. claim          rename the folder .tmp-1f2e3d4c-name to .tmp-claim-name
    3. compare        check that the file still has the content *old* (``None``: does not exist)
    4. move           rename .tmp-claim-name/TOKEN to name
    ```

    Step 2 fails while .tmp-claim-name contains the file of another process.

    A claim is not a lock: another process may remove the file in the claim at any time, and the
    move then fails. Therefore, a process that was suspended during its claim cannot undo a later
    update.
    """
    make_folder(path.parent)
    token = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    mine, claim = temporary_beside(path), temporary_beside(path, "claim")
    handle = None
    try:
        mine.mkdir()
        _write_synced(os.fspath(mine / token), data)
        # While the file is open, no other file gets its inode number, even if it is removed.
        handle = os.open(mine / token, os.O_RDONLY | os.O_CLOEXEC)
        while not _claimed(mine, claim, token):
            _remove_stale(claim)
        is_done = _content(path) == old and _moved(claim / token, path, handle, is_new=old is None)
    finally:
        if handle is not None:
            os.close(handle)
        # An error of the clean-up must not hide the first error.
        for folder in (mine, claim):
            with suppress(OSError):
                (folder / token).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
    if is_done:
        sync(path.parent)
    return is_done


def _claimed(mine: Path, claim: Path, token: str) -> bool:
    try:
        os.rename(mine, claim)  # noqa: PTH104 over an empty folder or nothing
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        # A network file system may have lost the reply to a rename that it made.
        if error.errno != errno.ENOENT or not (claim / token).exists():
            raise
    return True


def _remove_stale(claim: Path) -> None:
    """Wait about `CLAIM_S` seconds, then remove the files that were in *claim* all that time."""
    before = _names_in(claim)
    time.sleep(random.uniform(0.5, 1.5) * CLAIM_S)  # noqa: S311 not a secret
    for name in before & _names_in(claim):
        (claim / name).unlink(missing_ok=True)
    with suppress(OSError):  # another claim is there
        claim.rmdir()


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except _ABSENT:
        return set()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except _ABSENT:
        return None


def _moved(claimed: Path, path: Path, handle: int, *, is_new: bool) -> bool:
    """Rename a claimed file to its final name; return ``False`` if another process was faster.

    Args:
        claimed: path of the file in the folder of the claim.
        path: final path of the file.
        handle: open descriptor of the claimed file.
        is_new: whether the write requires that the final path does not exist yet.
    """
    try:
        # Where hard links exist, `put_if_absent` makes no claim.
        is_linked = _linked(claimed, path) if is_new else None
        if is_linked is None:
            os.replace(claimed, path)  # noqa: PTH105
    except FileNotFoundError:
        # Another process removed the file, or the reply to the rename was lost.
        return _is_open(path, handle)
    return is_linked is not False


def _is_open(path: Path, handle: int) -> bool:
    """Return whether *path* names the file that is open as *handle*.

    A network file system may give a new file the inode number of a removed file that this process
    still has open. The modification times distinguish the two files.
    """
    try:
        ours, there = os.fstat(handle), path.stat()
    except OSError:  # no file has this name, or the open one is stale on its server
        return False
    return os.path.samestat(ours, there) and ours.st_mtime_ns == there.st_mtime_ns


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Let one process at a time run the with block, so that updates of *path* rarely collide.

    Correctness does not depend on this lock. A process runs the block without the lock after it
    has waited for `TURN_S` seconds, or if the file system does not support locks.
    """
    lock = temporary_beside(path, "lock")
    make_folder(path.parent)
    handle = None
    with suppress(OSError):
        handle = _lock(lock)
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                lock.unlink()
            os.close(handle)


def _lock(path: Path) -> int:
    """Lock a file exclusively; return its descriptor.

    Raises:
        OSError: the file system does not support locks, or other processes have held the lock for
            `TURN_S` seconds.
    """
    deadline = time.monotonic() + TURN_S
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for(handle, deadline)
            # Its last holder may have removed the file; a lock on a removed file is void.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _wait_for(handle: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 not a secret


def _write(path: str, data: bytes | memoryview) -> str:
    """Write a file as `chunkflow_py.store.local_files.write_whole` does, in fewer system calls.

    Returns:
        The folder of the file, which the caller must sync.
    """
    folder = path.rpartition("/")[0]
    if removed("atomic-write"):
        _write_in_place(path, data)
        return folder
    temporary = f"{folder}/{TEMPORARY_PREFIX}{_PROCESS}-{os.getpid()}-{next(_NUMBERS)}"
    with os_errors("write", path):
        try:
            try:
                _write_synced(temporary, data)
            except FileNotFoundError:
                make_folder(folder)
                _write_synced(temporary, data)
            os.replace(temporary, path)  # noqa: PTH105 as this is called for every block
        except BaseException:
            # An error of the clean-up must not hide the first error.
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise
    return folder


def _write_in_place(path: str, data: bytes | memoryview) -> None:
    """Write a file in two halves, so that tests can read the file while it is incomplete."""
    content = memoryview(data).cast("B")
    with os_errors("write", path):
        make_folder(Path(path).parent)
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123
            file.write(content[: len(content) // 2])
            os.fsync(file.fileno())
            reached("mid-write")
            file.write(content[len(content) // 2 :])
            os.fsync(file.fileno())


def _write_synced(path: str, data: bytes | memoryview) -> None:
    """Write a new file and wait until it is on the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)
