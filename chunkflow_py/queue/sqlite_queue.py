"""A queue in a SQLite file, for the processes of one machine.

```
send -> waiting -- receive -> taken -- acknowledge -> (deleted)
                                    -- bury --------> dead
```

`waiting`, `taken` and `dead` are the tables of the file. A message that was never received is in
`waiting`. This table needs no index: messages are appended at its end and taken from its front, at
a cost that does not grow with their number. A message in `taken` is leased until the time `ends`.
After a release, the message can be received again from the time `ends`.

Sync policy: when `send` or `bury` returns, the messages or dead letters are on the disk (fsync).
The other calls do not wait for the disk, but they are atomic, so the file stays consistent if a
process is killed. A power cut may undo leases and the last acknowledgements. The leases would end
at the restart anyway; messages whose acknowledgement was undone are delivered again.

Leases are timed by CLOCK_BOOTTIME. This clock is the same in all processes of a machine, runs while
the machine is suspended, and cannot be set. The clock restarts with the machine, so all leases end
at a restart. In a time namespace (of a container), the clock has an offset, which is subtracted. As
a safeguard against other faults of a clock, a lease that begins in the future is ignored.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import sqlite3
import time
import weakref
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from chunkflow_py.errors import QueueError, QueueUnreachableError, VolumeError
from chunkflow_py.queue.queue_protocol import Counts, DeadLetter, Message, poll_for_messages
from chunkflow_py.store.local_files import absolute, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Event

BATCH = 20_000  # messages in one transaction: a few megabytes
LOCK_TIMEOUT_S = 60.0  # longest wait for the transactions of other processes
PAUSES_S = 0.005, 0.2  # the first and the longest pause between two polls

_APPLICATION_ID = 0x43464C51  # marks the file as a queue: "CFLQ" in ASCII
_OLDEST = (3, 35)  # the first version of SQLite with RETURNING
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS = Path("/proc/self/timens_offsets")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    # AUTOINCREMENT: a handle contains the id, so that no id may be used twice.
    "CREATE TABLE IF NOT EXISTS taken (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL,"
    " receives INTEGER NOT NULL, ends REAL NOT NULL, is_leased INTEGER NOT NULL,"
    " since REAL NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS taken_ends ON taken (ends)",
    "CREATE INDEX IF NOT EXISTS taken_since ON taken (since)",
    "CREATE TABLE IF NOT EXISTS dead (id INTEGER PRIMARY KEY, body TEXT NOT NULL,"
    " reason TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS machine (boot TEXT NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
)
_MIGRATIONS = (  # for files of earlier versions
    "ALTER TABLE taken ADD COLUMN since REAL NOT NULL DEFAULT 0",
    "CREATE INDEX IF NOT EXISTS taken_since ON taken (since)",
)
_OWN_LEASE = "WHERE id = ? AND receives = ? AND is_leased"

# Primary result codes of SQLite.
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITTEN = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_SLACK_S = 1.0  # largest difference between the clocks of two processes of one machine
_MIN_FREE_BYTES = 1 << 20  # free disk space that SQLite needs to open the file

# File systems that machines share: they do not share memory, and some do not lock files either.
SHARED_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "wekafs"}
    | {"fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs"}
)
MOUNTS = Path("/proc/self/mountinfo")
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")

_QUEUES: weakref.WeakSet[SqliteQueue] = weakref.WeakSet()
_FORKING: list[SqliteQueue] = []
_FORK_LOCK = Lock()  # allows one fork at a time


class SqliteQueue:
    """A queue in a file on this machine; implements `chunkflow_py.queue.queue_protocol.Queue`."""

    longest_lease_s = math.inf

    def __init__(
        self, path: str, *, create: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        """Open the queue in the file at *path*.

        Args:
            path: file of the queue; SQLite keeps files with the endings ``-wal`` and ``-shm``
                beside it.
            create: whether to create the file, with its parent folders, if it does not exist.
            clock: function that returns seconds, for tests; if given, `receive` never waits.

        Raises:
            QueueError: the file does not exist, is not a queue, or is on a file system that
                machines share.
        """
        self._path = Path(absolute(path))
        self.url = f"sqlite://{self._path}"
        self._clock = clock or _BootClock()
        self._waits = clock is None
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._refuse_shared()
        if create:
            self._create()
        elif not self._path.exists():
            msg = (
                f"queue {self.url} does not exist; generate-tasks --queue-name and submit --queue "
                f"create it, and chunkflow repair RUN recreates the queue of a run"
            )
            raise QueueError(msg)
        _QUEUES.add(self)
        try:
            with self._connected("opened") as connection:
                self._check(connection)
                self._add_columns(connection)
                self._end_leases_of_earlier_boots(connection)
        except QueueError:
            self.close()
            raise

    def _refuse_shared(self) -> None:
        if file_system_type := shared_file_system(self._path.parent):
            msg = (
                f"queue {self.url} is on a {file_system_type} file system, where several machines "
                f"cannot share a SQLite file; use the folder file://{self._path.with_suffix('')} "
                "instead"
            )
            raise QueueError(msg)
        if sqlite3.sqlite_version_info < _OLDEST:
            msg = (
                f"queue {self.url} needs SQLite 3.35 or later, but this Python has "
                f"{sqlite3.sqlite_version}; use file://{self._path.with_suffix('')}"
            )
            raise QueueError(msg)

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        address = f"file:{quote(os.fspath(self._path))}?mode={mode}"
        return sqlite3.connect(
            address,
            uri=True,
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,  # self._lock serializes the threads
        )

    def _create(self) -> None:
        with self._translate_errors("created"):
            make_folder(self._path.parent)
            connection = self._connect("rwc")
            try:
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if application == _APPLICATION_ID or tables:  # _check refuses other files
                    return
                connection.execute("PRAGMA journal_mode = WAL")
                with _immediate_transaction(connection):
                    for statement in _TABLES:
                        connection.execute(statement)
            finally:
                connection.close()

    def _check(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            msg = f"{self._path} is a SQLite file but not a queue; choose another name"
            raise QueueError(msg)

    @staticmethod
    def _add_columns(connection: sqlite3.Connection) -> None:
        def is_old() -> bool:
            columns = connection.execute("PRAGMA table_info(taken)").fetchall()
            return "since" not in [column[1] for column in columns]

        if is_old():
            with _immediate_transaction(connection):
                if is_old():
                    for statement in _MIGRATIONS:
                        connection.execute(statement)

    def _end_leases_of_earlier_boots(self, connection: sqlite3.Connection) -> None:
        boot = _boot_id()
        known = connection.execute("SELECT boot FROM machine").fetchone()
        if known == (boot,):
            return
        with _immediate_transaction(connection):
            if connection.execute("SELECT boot FROM machine").fetchone() == (boot,):
                return
            connection.execute("UPDATE taken SET ends = 0")
            connection.execute("DELETE FROM machine")
            connection.execute("INSERT INTO machine VALUES (?)", (boot,))

    @contextmanager
    def _connected(self, action: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection, to one thread at a time.

        *action* is a word such as ``changed`` for error messages: "queue … cannot be changed".
        """
        with self._lock, self._translate_errors(action):
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    @contextmanager
    def _transaction(
        self, action: str, *, is_durable: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Yield the connection for one transaction; a durable transaction waits for the disk."""
        with self._connected(action) as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            with _immediate_transaction(connection):
                yield connection

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeEncodeError, VolumeError) as error:
            msg = f"queue {self.url} cannot be {action}: {error}"
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _LOCKED:
                msg += (
                    f"; another process has locked the file for {LOCK_TIMEOUT_S:g} s: if that "
                    "process is suspended, continue it (kill -CONT) or end it"
                )
                raise QueueUnreachableError(msg) from error
            if code in _DAMAGED:
                name = self._path.name
                msg += (
                    f"; if the file was a queue, move {name}, {name}-wal and {name}-shm away: "
                    "chunkflow repair RUN then creates a new queue, and sends all tasks that are "
                    "not recorded as finished"
                )
            if code == sqlite3.SQLITE_FULL or (code in _UNWRITTEN and self._is_disk_full()):
                msg += "; the disk of the queue is full: free some space"
                # Workers recognize ENOSPC, and wait for space.
                raise QueueError(msg) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise QueueError(msg) from error

    def _is_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self._path.parent).free < _MIN_FREE_BYTES
        except OSError:
            return False

    def send(self, bodies: Iterable[str]) -> int:
        """Add messages, 20,000 per transaction; return the number of messages sent."""
        texts = iter(bodies)
        sent = 0
        while batch := list(islice(texts, BATCH)):
            try:
                with self._transaction("sent to", is_durable=True) as connection:
                    rows = ((body,) for body in batch)
                    connection.executemany("INSERT INTO waiting (body) VALUES (?)", rows)
            except QueueError as error:
                msg = f"{error}; {sent} messages were sent before this failure"
                raise QueueError(msg) from error
            sent += len(batch)
        return sent

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return free messages, each leased for *lease_s* seconds; *most* limits their number."""
        return self.receive_until(None, most, lease_s, wait_s)

    def receive_until(
        self, stop: Event | None, most: int, lease_s: float, wait_s: float = 0.0
    ) -> list[Message]:
        """Return free messages; see `EndsWaits`."""
        wait_s = wait_s if self._waits else 0.0
        return poll_for_messages(lambda: self._take(most, lease_s), wait_s, PAUSES_S, stop)

    def _take(self, most: int, lease_s: float) -> list[Message]:
        if most < 1:
            return []
        with self._connected("received from") as connection:
            # Look first without a transaction, which would lock out other writers.
            (is_any,) = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM waiting)"
                " OR EXISTS (SELECT 1 FROM taken WHERE ends <= :now)"
                " OR EXISTS (SELECT 1 FROM taken WHERE since > :latest)",
                self._times(),
            ).fetchone()
        if not is_any:
            return []
        with self._transaction("received from") as connection:
            now = self._clock()
            connection.execute(
                "UPDATE taken SET ends = 0, since = 0 WHERE since > ?", (now + _SLACK_S,)
            )
            rows = connection.execute(
                "UPDATE taken SET receives = receives + 1, ends = :ends, since = :now,"
                " is_leased = 1 WHERE id IN"
                " (SELECT id FROM taken WHERE ends <= :now ORDER BY ends LIMIT :most)"
                " RETURNING id, body, receives",
                {"ends": now + lease_s, "now": now, "most": most},
            ).fetchall()
            if len(rows) < most:
                rows += self._take_new(connection, most - len(rows), now, now + lease_s)
        return [Message(body, f"{number}:{receives}", receives) for number, body, receives in rows]

    def _times(self) -> dict[str, float]:
        now = self._clock()
        # A lease that begins after *latest* is ignored, because the clock was wrong.
        return {"now": now, "latest": now + _SLACK_S}

    @staticmethod
    def _take_new(
        connection: sqlite3.Connection, most: int, since: float, ends: float
    ) -> list[Any]:
        rows = connection.execute(
            "INSERT INTO taken (body, receives, ends, is_leased, since)"
            " SELECT body, 1, ?, 1, ? FROM waiting ORDER BY id LIMIT ?"
            " RETURNING id, body, receives",
            (ends, since, most),
        ).fetchall()
        # Rows are removed only from the front, so these ids have no gaps.
        connection.execute(
            "DELETE FROM waiting WHERE id < (SELECT min(id) FROM waiting) + ?", (len(rows),)
        )
        return rows

    def _change_each(
        self, connection: sqlite3.Connection, change: str, values: tuple[Any, ...], messages: Any
    ) -> list[Message]:
        """Apply an SQL statement to each message; return the messages whose lease was lost."""
        lost = []
        for message in messages:
            number, _, receives = message.handle.partition(":")
            cursor = connection.execute(f"{change} {_OWN_LEASE}", (*values, number, receives))
            if not cursor.rowcount:
                lost.append(message)
        return lost

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove the messages of finished tasks; return the messages whose lease was lost."""
        with self._transaction("changed") as connection:
            return self._change_each(connection, "DELETE FROM taken", (), messages)

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Make leases end *lease_s* seconds from now; return the messages whose lease was lost."""
        with self._transaction("changed") as connection:
            now = self._clock()
            change = "UPDATE taken SET ends = ?, since = ?"
            return self._change_each(connection, change, (now + lease_s, now), messages)

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Make messages available to all receivers after *delay_s* seconds."""
        with self._transaction("changed") as connection:
            now = self._clock()
            change = "UPDATE taken SET ends = ?, since = ?, is_leased = 0"
            self._change_each(connection, change, (now + delay_s, now), messages)

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Move messages to the dead letters, with the reason."""
        with self._transaction("changed", is_durable=True) as connection:
            add = "INSERT INTO dead (body, reason) SELECT body, ? FROM taken"
            lost = self._change_each(connection, add, (reason,), messages)
            leased = [message for message in messages if message not in lost]
            self._change_each(connection, "DELETE FROM taken", (), leased)

    def counts(self, *, dead: bool = True) -> Counts:  # noqa: ARG002 counting them is cheap
        """Count the waiting, leased and dead messages."""
        with self._connected("read") as connection:
            row = connection.execute(
                "SELECT (SELECT max(id) FROM waiting) - (SELECT min(id) FROM waiting) + 1,"
                " (SELECT count(*) FROM taken),"
                " (SELECT count(*) FROM taken"
                " WHERE is_leased AND ends > :now AND since <= :latest),"
                " (SELECT count(*) FROM dead)",
                self._times(),
            ).fetchone()
        new, taken, leased, letters = row
        return Counts((new or 0) + taken - leased, leased, letters)

    def leased(self, most: int) -> list[str]:
        """Return the texts of messages that are leased now; *most* limits their number."""
        with self._connected("read") as connection:
            rows = connection.execute(
                "SELECT body FROM taken WHERE is_leased AND ends > :now AND since <= :latest"
                " LIMIT :most",
                self._times() | {"most": most},
            ).fetchall()
        return [body for (body,) in rows]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the dead letters; they stay in the queue."""
        last = -1
        while True:
            with self._connected("read") as connection:
                rows = connection.execute(
                    "SELECT id, body, reason FROM dead WHERE id > ? ORDER BY id LIMIT 1000", (last,)
                ).fetchall()
            if not rows:
                return
            for last, body, reason in rows:  # noqa: B007 used by the next query
                yield DeadLetter(body, reason)

    def remove(self) -> None:
        """Remove the file of the queue, and the files that SQLite keeps beside it."""
        self.close()
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _before_fork(self) -> None:
        """Close the file, because a forked process must not inherit SQLite's list of file locks."""
        self._lock.acquire()
        self.close()

    def _after_fork(self, *, is_child: bool) -> None:
        """Allow calls again; the next call reopens the file."""
        if is_child:
            self._lock = RLock()
        else:
            self._lock.release()


def _before_fork() -> None:
    _FORK_LOCK.acquire()
    _FORKING.extend(_QUEUES)
    for queue in _FORKING:
        queue._before_fork()


def _after_fork(*, is_child: bool) -> None:
    for queue in _FORKING:
        queue._after_fork(is_child=is_child)
    _FORKING.clear()
    _FORK_LOCK.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, is_child=False),
    after_in_child=partial(_after_fork, is_child=True),
)


@contextmanager
def _immediate_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class _BootClock:
    """Returns the seconds since the machine started, the same in all time namespaces."""

    def __init__(self) -> None:
        self._process, self._offset_s = 0, 0.0

    def __call__(self) -> float:
        if self._process != os.getpid():  # a forked process may be in another namespace
            self._process, self._offset_s = os.getpid(), _namespace_offset_s()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._offset_s


def _namespace_offset_s() -> float:
    """Return the offset of CLOCK_BOOTTIME in this time namespace; see time_namespaces(7)."""
    try:
        lines = _OFFSETS.read_text().splitlines()
    except OSError:  # a kernel without time namespaces
        return 0.0
    offsets = {fields[0]: fields[1:] for fields in map(str.split, lines)}
    seconds, nanoseconds = offsets.get("boottime", ("0", "0"))
    return int(seconds) + int(nanoseconds) / 1e9


def _boot_id() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:  # a sandbox without this file
        return "unknown"


def file_system(path: Path, mounts: str) -> str:
    r"""Return the type of the file system that contains *path*, such as ``ext4`` or ``nfs4``.

    Args:
        path: absolute path without symbolic links.
        mounts: content of ``/proc/self/mountinfo``. Each line describes a mount: the fifth field
            is the mount point (with blanks as ``\040``), and the first field after `` - `` is the
            type.
    """
    longest, file_system_type = -1, "unknown"
    for line in mounts.splitlines():
        fields, separator, source = line.partition(" - ")
        if not separator or len(fields.split(" ")) < 5:
            continue
        point = _OCTAL_ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
        depth = len(PurePosixPath(point).parts)
        # If two mounts share a mount point, the later one hides the earlier one.
        if depth >= longest and path.is_relative_to(point):
            longest, file_system_type = depth, source.split(" ")[0]
    return file_system_type


def shared_file_system(path: Path) -> str | None:
    """Return the type of the file system of *path*; ``None`` if machines do not share it."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux: the type is not known
        return None
    file_system_type = file_system(path.resolve(), mounts)
    return file_system_type if file_system_type in SHARED_FILE_SYSTEMS else None
