"""The embedded queue: a SQLite file, for the processes of one machine.

```
send -> waiting (never received) -receive-> taken (leased or released, until `ends`) -> gone
                                                                               bury -> dead
```

Messages that were never received are in a table of their own, which needs no index: they are added
at its end and taken from its front, so that ten million of them cost no more each than ten.

Sync policy: what was sent or buried is on the disk (fsync) when the call returns. The other calls
are atomic, so that no kill loses or tears anything, but do not wait for the disk: what a power cut
takes back are leases, which end with the machine anyway, and the last acknowledgements, whose
messages are delivered again.

Leases end by CLOCK_BOOTTIME, which all processes of a machine share, which goes on while it is
suspended and which nobody can set; it begins anew when the machine starts, so all leases end then.
A time namespace shifts it, by an offset that is taken off again. Whatever else may be wrong with a
clock: a lease that begins in the reader's future is not believed.
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

BATCH = 20_000  # messages of one transaction: a few megabytes
PATIENCE_S = 60.0  # for the transactions of other processes
PAUSES_S = 0.005, 0.2  # the first and the longest between two looks

_OURS = 0x43464C51  # application_id of the file: it says CFLQ
_OLDEST = (3, 35)  # SQLite: the first with RETURNING
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS = Path("/proc/self/timens_offsets")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    # Numbers are never used again: a handle holds one.
    "CREATE TABLE IF NOT EXISTS taken (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL,"
    " receives INTEGER NOT NULL, ends REAL NOT NULL, is_leased INTEGER NOT NULL,"
    " since REAL NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS taken_ends ON taken (ends)",
    "CREATE INDEX IF NOT EXISTS taken_since ON taken (since)",
    "CREATE TABLE IF NOT EXISTS dead (id INTEGER PRIMARY KEY, body TEXT NOT NULL,"
    " reason TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS machine (boot TEXT NOT NULL)",
    f"PRAGMA application_id = {_OURS}",
)
_ADDED = (  # to the files of earlier versions
    "ALTER TABLE taken ADD COLUMN since REAL NOT NULL DEFAULT 0",
    "CREATE INDEX IF NOT EXISTS taken_since ON taken (since)",
)
_MINE = "WHERE id = ? AND receives = ? AND is_leased"

# Primary result codes of SQLite.
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITTEN = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_SLACK_S = 1.0  # by which clocks of one machine may seem to differ
_ROOM = 1 << 20  # bytes: what SQLite needs beside the file to open it

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
_ONE_FORK = Lock()  # at a time


class SqliteQueue:
    """A queue in a file of this machine; see `chunkflow_py.queue.queue_protocol.Queue`."""

    longest_lease_s = math.inf

    def __init__(
        self, path: str, *, create: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        """Open the queue in the file at *path*.

        Args:
            path: of the file; beside it SQLite keeps ``-wal`` and ``-shm``.
            create: make it if there is none, with the folders above it.
            clock: returns seconds, for tests; with one that is given no call waits.

        Raises:
            QueueError: there is none, it is no queue, or machines share its file system.
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
                f"queue {self.url} does not exist; "
                f"generate-tasks --queue-name and submit --queue make it, and chunkflow repair RUN "
                f"makes that of a run again"
            )
            raise QueueError(msg)
        _QUEUES.add(self)
        try:
            with self._calling("opened") as connection:
                self._check(connection)
                self._add_columns(connection)
                self._end_leases_of_earlier_boots(connection)
        except QueueError:
            self.close()
            raise

    def _refuse_shared(self) -> None:
        if found := shared_file_system(self._path.parent):
            msg = (
                f"queue {self.url} is on a {found} file system, which machines share and SQLite "
                f"cannot; use file://{self._path.with_suffix('')}, which can be shared"
            )
            raise QueueError(msg)
        if sqlite3.sqlite_version_info < _OLDEST:
            msg = (
                f"queue {self.url} needs SQLite 3.35, this Python has {sqlite3.sqlite_version}; "
                f"use file://{self._path.with_suffix('')}"
            )
            raise QueueError(msg)

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        address = f"file:{quote(os.fspath(self._path))}?mode={mode}"
        return sqlite3.connect(
            address,
            uri=True,
            timeout=PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,  # a lock sees to it that one calls at a time
        )

    def _create(self) -> None:
        with self._translated("created"):
            make_folder(self._path.parent)
            connection = self._connect("rwc")
            try:
                (ours,) = connection.execute("PRAGMA application_id").fetchone()
                (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if ours == _OURS or tables:  # whether it is ours is seen when it is opened
                    return
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection):
                    for statement in _TABLES:
                        connection.execute(statement)
            finally:
                connection.close()

    def _check(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA application_id").fetchone()
        if found != _OURS:
            msg = f"{self._path} is a SQLite file but no queue; choose another name"
            raise QueueError(msg)

    @staticmethod
    def _add_columns(connection: sqlite3.Connection) -> None:
        def is_old() -> bool:
            columns = connection.execute("PRAGMA table_info(taken)").fetchall()
            return "since" not in [column[1] for column in columns]

        if is_old():
            with _transaction(connection):
                if is_old():
                    for statement in _ADDED:
                        connection.execute(statement)

    def _end_leases_of_earlier_boots(self, connection: sqlite3.Connection) -> None:
        boot = _boot_id()
        known = connection.execute("SELECT boot FROM machine").fetchone()
        if known == (boot,):
            return
        with _transaction(connection):
            if connection.execute("SELECT boot FROM machine").fetchone() == (boot,):
                return
            connection.execute("UPDATE taken SET ends = 0")
            connection.execute("DELETE FROM machine")
            connection.execute("INSERT INTO machine VALUES (?)", (boot,))

    @contextmanager
    def _calling(self, what: str) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time."""
        with self._lock, self._translated(what):
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    @contextmanager
    def _changing(self, what: str, *, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction, which is on the disk afterwards if asked."""
        with self._calling(what) as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            with _transaction(connection):
                yield connection

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeEncodeError, VolumeError) as error:
            msg = f"queue {self.url} cannot be {what}: {error}"
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _LOCKED:
                msg += (
                    f"; another process has held it for {PATIENCE_S:g} s: if that is stopped, "
                    "let it go on (kill -CONT) or end it"
                )
                raise QueueUnreachableError(msg) from error
            if code in _DAMAGED:
                name = self._path.name
                msg += (
                    f"; if it was a queue, move {name}, {name}-wal and {name}-shm away: chunkflow "
                    "repair RUN makes it again, and sends what is not recorded"
                )
            if code == sqlite3.SQLITE_FULL or (code in _UNWRITTEN and self._is_disk_full()):
                msg += "; its disk is full: free some space"
                # What workers wait for, as for the disk of an output.
                raise QueueError(msg) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise QueueError(msg) from error

    def _is_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self._path.parent).free < _ROOM
        except OSError:
            return False

    def send(self, bodies: Iterable[str]) -> int:
        """Add messages, 20,000 in one transaction."""
        texts = iter(bodies)
        sent = 0
        while batch := list(islice(texts, BATCH)):
            try:
                with self._changing("sent to", is_durable=True) as connection:
                    rows = ((body,) for body in batch)
                    connection.executemany("INSERT INTO waiting (body) VALUES (?)", rows)
            except QueueError as error:
                msg = f"{error}; {sent} messages before it were sent"
                raise QueueError(msg) from error
            sent += len(batch)
        return sent

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return up to *most* messages, each leased for *lease_s* from now."""
        wait_s = wait_s if self._waits else 0.0
        return poll_for_messages(lambda: self._take(most, lease_s), wait_s, PAUSES_S)

    def _take(self, most: int, lease_s: float) -> list[Message]:
        if most < 1:
            return []
        with self._calling("received from") as connection:
            # Those who find nothing do not keep others from writing.
            (is_any,) = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM waiting)"
                " OR EXISTS (SELECT 1 FROM taken WHERE ends <= :now)"
                " OR EXISTS (SELECT 1 FROM taken WHERE since > :latest)",
                self._times(),
            ).fetchone()
        if not is_any:
            return []
        with self._changing("received from") as connection:
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
        """Return the time, and the latest at which a lease may have begun to be believed."""
        now = self._clock()
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
        # They are the first without a gap, as nothing else is ever removed.
        connection.execute(
            "DELETE FROM waiting WHERE id < (SELECT min(id) FROM waiting) + ?", (len(rows),)
        )
        return rows

    def _each(
        self, connection: sqlite3.Connection, change: str, values: tuple[Any, ...], messages: Any
    ) -> list[Message]:
        """Change every message that is ours; return the others."""
        lost = []
        for message in messages:
            number, _, receives = message.handle.partition(":")
            cursor = connection.execute(f"{change} {_MINE}", (*values, number, receives))
            if not cursor.rowcount:
                lost.append(message)
        return lost

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages; return those that were not leased to us any more."""
        with self._changing("changed") as connection:
            return self._each(connection, "DELETE FROM taken", (), messages)

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Let leases end *lease_s* from now; return those messages that are not ours any more."""
        with self._changing("changed") as connection:
            now = self._clock()
            change = "UPDATE taken SET ends = ?, since = ?"
            return self._each(connection, change, (now + lease_s, now), messages)

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Give messages back, to be received by others after *delay_s*."""
        with self._changing("changed") as connection:
            now = self._clock()
            change = "UPDATE taken SET ends = ?, since = ?, is_leased = 0"
            self._each(connection, change, (now + delay_s, now), messages)

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Put messages aside with the reason."""
        with self._changing("changed", is_durable=True) as connection:
            add = "INSERT INTO dead (body, reason) SELECT body, ? FROM taken"
            lost = self._each(connection, add, (reason,), messages)
            ours = [message for message in messages if message not in lost]
            self._each(connection, "DELETE FROM taken", (), ours)

    def counts(self, *, dead: bool = True) -> Counts:  # noqa: ARG002 they cost nothing
        """Return how many messages there are."""
        with self._calling("read") as connection:
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
        """Return the texts of up to *most* messages that are leased now."""
        with self._calling("read") as connection:
            rows = connection.execute(
                "SELECT body FROM taken WHERE is_leased AND ends > :now AND since <= :latest"
                " LIMIT :most",
                self._times() | {"most": most},
            ).fetchall()
        return [body for (body,) in rows]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield what was put aside."""
        last = -1
        while True:
            with self._calling("read") as connection:
                rows = connection.execute(
                    "SELECT id, body, reason FROM dead WHERE id > ? ORDER BY id LIMIT 1000", (last,)
                ).fetchall()
            if not rows:
                return
            for last, body, reason in rows:  # noqa: B007 used by the next query
                yield DeadLetter(body, reason)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _before_fork(self) -> None:
        """Close the file: what SQLite knows of its locks must not be copied to another process."""
        self._lock.acquire()
        self.close()

    def _after_fork(self, *, is_child: bool) -> None:
        """Let calls go on; the next one opens the file again."""
        if is_child:
            self._lock = RLock()
        else:
            self._lock.release()


def _before_fork() -> None:
    _ONE_FORK.acquire()
    _FORKING.extend(_QUEUES)
    for queue in _FORKING:
        queue._before_fork()


def _after_fork(*, is_child: bool) -> None:
    for queue in _FORKING:
        queue._after_fork(is_child=is_child)
    _FORKING.clear()
    _ONE_FORK.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, is_child=False),
    after_in_child=partial(_after_fork, is_child=True),
)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class _BootClock:
    """Seconds since the machine was started, the same in all time namespaces."""

    def __init__(self) -> None:
        self._process, self._offset_s = 0, 0.0

    def __call__(self) -> float:
        if self._process != os.getpid():  # a fork may be in another namespace
            self._process, self._offset_s = os.getpid(), _namespace_offset_s()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._offset_s


def _namespace_offset_s() -> float:
    """Return by how much CLOCK_BOOTTIME is ahead here; see time_namespaces(7)."""
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
    except OSError:  # a sandbox without it
        return "unknown"


def file_system(path: Path, mounts: str) -> str:
    r"""Return the type of the file system that holds *path*, such as ``ext4`` or ``nfs4``.

    Args:
        path: absolute, without symbolic links.
        mounts: content of ``/proc/self/mountinfo``: a line for each mount, whose fifth field is
            the mount point (with blanks as ``\040``), and whose first field after `` - `` is the
            type.
    """
    longest, file_system_type = -1, "unknown"
    for line in mounts.splitlines():
        fields, separator, source = line.partition(" - ")
        if not separator or len(fields.split(" ")) < 5:
            continue
        point = _OCTAL_ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
        depth = len(PurePosixPath(point).parts)
        # Of two mounts on one point the later hides the earlier.
        if depth >= longest and path.is_relative_to(point):
            longest, file_system_type = depth, source.split(" ")[0]
    return file_system_type


def shared_file_system(path: Path) -> str | None:
    """Return the type of the file system of *path* if machines share it, else ``None``."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux: the type is not known
        return None
    file_system_type = file_system(path.resolve(), mounts)
    return file_system_type if file_system_type in SHARED_FILE_SYSTEMS else None
