"""A queue in a folder on a file system that machines share; needs no server.

```
queue                                  file that marks the folder as a queue
new/PACK~500                           a pack: one file with the texts of 500 messages
opening/PACK~500~ENDS~TOKEN/           a pack that a worker is opening; becomes open/PACK
open/PACK/texts                        the file of the pack, with the texts of its messages
open/PACK/todo/7~2~ENDS~TOKEN~SINCE    message 7 of the pack, received twice, leased until ENDS
open/PACK/todo/8~0~0~-                 message 8, never received; not leased ("-" instead of TOKEN)
dead/PACK-9.json                       message 9 as a dead letter, with the reason
```

PACK is the name of a pack, ENDS the time at which a lease (of a message, or of a pack that is being
opened) ends, SINCE the time at which the lease was written, and TOKEN a random text that only one
worker knows.

Every change of a message is one rename of an empty file whose name encodes the message's state. If
several workers rename a file, only one rename succeeds. If a worker is killed at any moment, no
message is lost. A worker opens a pack when it finds no free message in the open packs. The worker
that acknowledges the last message of a pack removes the pack. So only the unfinished messages of
open packs have files of their own, and workers rarely compete in one folder.

Times are milliseconds of the file server's clock, so that all machines agree on when a lease ends.
To read this clock, a worker touches the file ``queue`` and reads its modification time. If a lease
begins in the future, the server's clock was set back after the lease was written, and the lease is
ignored. If the reply to a rename is lost, the network file system repeats the rename, which then
fails. Because the new name contains TOKEN, a file with the new name proves that the first rename
succeeded.

Sync policy: when `send` or `bury` returns, the messages or dead letters are on the disk (fsync). A
power cut of the file server may undo recent leases and acknowledgements. The messages concerned are
delivered again.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import secrets
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.errors import QueueError, VolumeError
from chunkflow_py.queue.queue_protocol import Counts, DeadLetter, Message, poll_for_messages
from chunkflow_py.store.folder_store import FolderStore
from chunkflow_py.store.local_files import (
    TEMPORARY_PREFIX,
    absolute,
    make_folder,
    of_each_file,
    os_errors,
    sync,
    write_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Event

PACK = 500  # messages in a pack
PACKS = 16  # packs that are written before their folder is synced
MOST_PACKS = 32  # open packs that one receive searches
OPENING_S = 10.0  # lease of a pack that is being opened, which takes a second at most
BURYING_S = 60.0  # lease of a message that is being moved to the dead letters
CLOCK_S = 10.0  # time for which a measured offset of the clocks is used
PAUSES_S = 0.01, 1.0  # the first and the longest pause between two polls

_FOLDERS = ("new", "opening", "open", "dead")
_MARK = b'{"format": "chunkflow_py queue", "version": 1}\n'

FREE = "-"
PACK_NAME = re.compile(r"[0-9a-f]{16}")
NEW = re.compile(rf"({PACK_NAME.pattern})~([0-9]{{1,9}})")
OPENING = re.compile(rf"{NEW.pattern}~([0-9]{{1,16}})~[0-9a-f]{{16}}")
_MESSAGE = re.compile(
    r"([0-9]{1,9})~([0-9]{1,9})~([0-9]{1,16})~([0-9a-f]{16}|-)(?:~([0-9]{1,16}))?"
)
HANDLE = re.compile(rf"({PACK_NAME.pattern})/({_MESSAGE.pattern})")

SLACK_MS = 60_000  # largest tolerated disagreement of machines about the file server's time
THREADS = 8  # concurrent calls to the file server
# Another worker was faster; network file systems report this in either way.
_GONE = (errno.ENOENT, errno.ESTALE)


class DirectoryQueue:
    """A queue in a shared folder; implements `chunkflow_py.queue.queue_protocol.Queue`."""

    longest_lease_s = math.inf

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Open the queue in the folder at *path*.

        Args:
            path: folder of the queue; must not contain files that do not belong to the queue.
            create: whether to create the folder, with its parents, if it does not exist.

        Raises:
            QueueError: the queue does not exist, or would be created in a folder that contains
                other files.
        """
        self._root = absolute(path)
        self.url = f"file://{self._root}"
        self._mark = f"{self._root}/queue"
        # Several threads use these without a lock: messages are claimed on the disk only.
        self._free: list[tuple[str, Name]] = []  # messages that looked free: pack and name
        self._last = ""  # the pack of these messages
        self._texts: dict[str, list[str]] = {}
        self._paths: dict[str, str] = {}  # handle -> current path of the message
        self._clock_offset_s, self._offset_valid_until = 0.0, -math.inf
        with self._translate_errors("open"):
            if not os.path.exists(self._mark):  # noqa: PTH110 as all paths here are strings
                self._make(create=create)
            for name in _FOLDERS:
                make_folder(f"{self._root}/{name}")

    def _make(self, *, create: bool) -> None:
        if not create:
            msg = (
                f"queue {self.url} does not exist; generate-tasks --queue-name and submit --queue "
                f"create it, and chunkflow repair RUN recreates the queue of a run"
            )
            raise QueueError(msg)
        make_folder(self._root)
        # If only the mark was lost, the messages in the folders stay valid.
        others = [each for each in names_in(self._root) if each not in ("queue", *_FOLDERS)]
        if others:
            msg = (
                f"queue {self.url} cannot be created in a folder that contains {min(others)!r}; "
                f"use a new folder, such as {self.url}/queue"
            )
            raise QueueError(msg)
        write_whole(self._mark, _MARK)

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            with os_errors(action, self._root):
                yield
        except VolumeError as error:
            msg = f"queue {self.url} failed: {error}"
            raise QueueError(msg) from error

    def _now(self) -> int:
        """Return the file server's time in milliseconds, measured at most every `CLOCK_S` s."""
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= self._offset_valid_until:
            os.utime(self._mark)  # without arguments, the server sets its own time
            touched = Path(self._mark).stat().st_mtime
            # Read the local clock afterwards: leases may end late, but never early.
            here = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._clock_offset_s, self._offset_valid_until = touched - here, here + CLOCK_S
        return int(1000 * (time.clock_gettime(time.CLOCK_BOOTTIME) + self._clock_offset_s))

    def send(self, bodies: Iterable[str]) -> int:
        """Add messages, in packs of 500; return the number of messages sent."""
        texts = iter(bodies)
        store = FolderStore(f"{self._root}/new")
        sent = 0
        with ThreadPoolExecutor(THREADS, thread_name_prefix="queue-send") as pool:
            while batch := list(islice(texts, PACK * PACKS)):
                packs = [batch[first : first + PACK] for first in range(0, len(batch), PACK)]
                try:
                    with self._translate_errors("write"), store.together() as folder:

                        def put(pack: list[str], folder: FolderStore = folder) -> None:
                            name = f"{secrets.token_hex(8)}~{len(pack)}"
                            folder.put(name, json.dumps(pack).encode())

                        list(pool.map(put, packs))
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
        """Return free messages; stop waiting for a message when *stop* is set."""
        return poll_for_messages(lambda: self._take(most, lease_s), wait_s, PAUSES_S, stop)

    def _take(self, most: int, lease_s: float) -> list[Message]:
        with self._translate_errors("read"):
            return self._lease_free(most, lease_s, self._now())

    def _lease_free(self, most: int, lease_s: float, now: int) -> list[Message]:
        messages: list[Message] = []
        searches = 0
        while len(messages) < most:
            try:
                pack, name = self._free.pop()
            except IndexError:
                searches += 1
                # Search again if other workers took all free messages, but not forever.
                if messages or searches > MOST_PACKS or not self._search(now):
                    break
                continue
            texts = self._texts.get(pack) or self._read(pack)
            if not texts or name.number >= len(texts):
                continue
            ends = now + int(1000 * lease_s)
            leased = Name(name.number, name.receives + 1, ends, secrets.token_hex(8), now)
            path = self._todo(pack, leased)
            if rename(self._todo(pack, name), path):
                handle = f"{pack}/{leased}"
                self._paths[handle] = path
                messages.append(Message(texts[name.number], handle, leased.receives))
        return messages

    def _search(self, now: int) -> bool:
        packs = self._packs()
        random.shuffle(packs)
        # Start with the pack of the last search, which keeps workers in different packs.
        packs.sort(key=lambda pack: pack != self._last)
        return any(self._search_pack(pack, now) for pack in packs[:MOST_PACKS]) or self._open(now)

    def _packs(self) -> list[str]:
        return [name for name in names_in(f"{self._root}/open") if PACK_NAME.fullmatch(name)]

    def _letters(self) -> list[str]:
        return [name for name in names_in(f"{self._root}/dead") if name.endswith(".json")]

    def _search_pack(self, pack: str, now: int) -> bool:
        names = names_in(f"{self._root}/open/{pack}/todo")
        if not names:  # the worker that acknowledged the last message was killed
            self._remove_if_finished(pack)
            return False
        free = [(pack, name) for name in map(parse_name, names) if name and name.is_over(now)]
        random.shuffle(free)
        self._free.extend(free)
        if free:
            self._last = pack
        return bool(free)

    def _read(self, pack: str) -> list[str] | None:
        texts = read_texts(f"{self._root}/open/{pack}/texts")
        if texts is not None:
            if len(self._texts) >= MOST_PACKS:
                self._texts.clear()
            self._texts[pack] = texts
        return texts

    def _open(self, now: int) -> bool:
        opening, ends = f"{self._root}/opening", now + int(1000 * OPENING_S)
        # First the packs that a worker was opening when it was killed.
        for name in names_in(opening):
            match = OPENING.fullmatch(name)
            if match and not now < int(match[3]) < now + 1000 * OPENING_S + SLACK_MS:
                folder = f"{opening}/{match[1]}~{match[2]}~{ends}~{secrets.token_hex(8)}"
                if rename(f"{opening}/{name}", folder) and self._publish(folder, match[1], now):
                    return True
        new = [name for name in names_in(f"{self._root}/new") if NEW.fullmatch(name)]
        random.shuffle(new)
        for name in new[:MOST_PACKS]:
            folder = f"{opening}/{name}~{ends}~{secrets.token_hex(8)}"
            os.mkdir(folder)  # noqa: PTH102
            if not rename(f"{self._root}/new/{name}", f"{folder}/texts"):
                remove_folder(folder)
            elif self._publish(folder, name.partition("~")[0], now):
                return True
        return False

    def _publish(self, folder: str, pack: str, now: int) -> bool:
        texts = read_texts(f"{folder}/texts")
        if texts is None:  # its worker was killed before it moved the pack into the folder
            remove_folder(folder)
            return False
        return (
            make_messages(f"{folder}/todo", len(texts))
            and rename(folder, f"{self._root}/open/{pack}")
            and self._search_pack(pack, now)
        )

    def _todo(self, pack: str, name: Name) -> str:
        return f"{self._root}/open/{pack}/todo/{name}"

    def _locate(self, message: Message) -> tuple[str, str, Name] | None:
        match = HANDLE.fullmatch(message.handle)
        if match is None or match[6] == FREE:
            return None
        path = self._paths.get(message.handle, f"{self._root}/open/{match[1]}/todo/{match[2]}")
        name = parse_name(path.rpartition("/")[2])
        # No lease ends before it begins. Such a name could become that of a lease that exists.
        return None if name is None or name.since > name.ends else (match[1], path, name)

    def _change(
        self, messages: Sequence[Message], change: Callable[[Message, str, str, Name], bool]
    ) -> list[Message]:
        """Apply *change* to each message; return the messages whose lease was lost."""
        lost = []
        for message in messages:
            location = self._locate(message)
            if location is None or not change(message, *location):
                self._paths.pop(message.handle, None)
                lost.append(message)
        return lost

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove the messages of finished tasks; return the messages whose lease was lost."""
        packs = set()

        def finish(message: Message, pack: str, path: str, _: Name) -> bool:
            packs.add(pack)
            self._paths.pop(message.handle, None)
            return remove(path)

        with self._translate_errors("write"):
            lost = self._change(messages, finish)
            for pack in packs:
                self._remove_if_finished(pack)
        return lost

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Make leases end *lease_s* seconds from now; return the messages whose lease was lost."""
        with self._translate_errors("write"):
            now = self._now()
            ends = now + int(1000 * lease_s)

            def keep(message: Message, pack: str, path: str, name: Name) -> bool:
                renewed = self._todo(pack, name._replace(ends=ends, since=now))
                if is_renewed := rename(path, renewed):
                    self._paths[message.handle] = renewed
                return is_renewed

            return self._change(messages, keep)

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Make messages available to all receivers after *delay_s* seconds."""
        with self._translate_errors("write"):
            # Without a delay, the time 0 frees them at once on every machine.
            now = self._now() if delay_s > 0 else 0
            ends = now + int(1000 * delay_s) if delay_s > 0 else 0

            def free(message: Message, pack: str, path: str, name: Name) -> bool:
                self._paths.pop(message.handle, None)
                freed = name._replace(ends=ends, token=FREE, since=now)
                return rename(path, self._todo(pack, freed))

            self._change(messages, free)

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Move messages to the dead letters, with the reason."""
        # The new leases keep other workers away meanwhile, and show which leases were lost.
        lost = self.extend(messages, BURYING_S)
        leased = [message for message in messages if message not in lost]
        with self._translate_errors("write"):
            for message in leased:
                pack, _, name = message.handle.partition("/")
                letter = json.dumps({"body": message.body, "reason": reason})
                path = f"{self._root}/dead/{pack}-{name.partition('~')[0]}.json"
                write_whole(path, letter.encode())
        self.acknowledge(leased)

    def counts(self, *, dead: bool = True) -> Counts:  # noqa: ARG002 counting them is cheap
        """Count the waiting, leased and dead messages by listing the files of the queue."""
        with self._translate_errors("read"):
            now = self._now()
            # Another worker may move a pack meanwhile: the last folder that contains it counts.
            packs: dict[str, tuple[int, int]] = {}
            for name in names_in(f"{self._root}/new"):
                if match := NEW.fullmatch(name):
                    packs[match[1]] = (int(match[2]), 0)
            for name in names_in(f"{self._root}/opening"):
                match = OPENING.fullmatch(name)
                if match and os.path.exists(f"{self._root}/opening/{name}/texts"):  # noqa: PTH110
                    packs[match[1]] = (int(match[2]), 0)
            for pack in self._packs():
                todo = filter(None, map(parse_name, names_in(f"{self._root}/open/{pack}/todo")))
                is_leased = [name.token != FREE and not name.is_over(now) for name in todo]
                packs[pack] = (is_leased.count(False), is_leased.count(True))
            letters = len(self._letters())
        waiting, leased = (sum(each) for each in zip((0, 0), *packs.values(), strict=True))
        return Counts(waiting, leased, letters)

    def leased(self, most: int) -> list[str]:
        """Return the texts of messages that are leased now; *most* limits their number."""
        leased_texts: list[str] = []
        with self._translate_errors("read"):
            now = self._now()
            for pack in self._packs():
                todo = filter(None, map(parse_name, names_in(f"{self._root}/open/{pack}/todo")))
                numbers = [
                    each.number for each in todo if each.token != FREE and not each.is_over(now)
                ]
                texts = (numbers and self._read(pack)) or []
                leased_texts += [texts[number] for number in numbers if number < len(texts)]
        return leased_texts[:most]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the dead letters; they stay in the queue."""
        for name in self._letters():
            with self._translate_errors("read"):
                letter = json.loads(Path(f"{self._root}/dead/{name}").read_bytes())
            yield DeadLetter(letter["body"], letter["reason"])

    def _remove_if_finished(self, pack: str) -> None:
        folder = f"{self._root}/open/{pack}"
        if remove_folder(f"{folder}/todo") and "todo" not in names_in(folder):
            self._texts.pop(pack, None)
            remove(f"{folder}/texts")
            remove_folder(folder)

    def remove(self) -> None:
        """Remove the folder of the queue."""
        with self._translate_errors("remove"), suppress(FileNotFoundError):
            shutil.rmtree(self._root)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""


# --- names and files ----------------------------------------------------------------------------


class Name(NamedTuple):
    """The parsed file name of a message; times are milliseconds of the file server's clock.

    Attributes:
        number: position of the message in its pack.
        receives: number of times that the message was received.
        ends: time before which the message cannot be received.
        token: random text that identifies the receipt; ``-`` if the message is not leased.
        since: time at which *ends* was set; 0 in file names of earlier versions.
    """

    number: int
    receives: int
    ends: int
    token: str
    since: int = 0

    def __str__(self) -> str:
        return "~".join(map(str, self if self.since else self[:-1]))

    def is_over(self, now: int) -> bool:
        """Return whether the lease or the delay of the message has ended at the time *now*.

        A lease that begins in the future counts as ended, because the server's clock was set back
        after the lease was written.
        """
        return self.ends <= now or self.since > now + SLACK_MS


def parse_name(name: str) -> Name | None:
    """Parse a file name; return ``None`` if it is not the name of a message."""
    match = _MESSAGE.fullmatch(name)
    if match is None:
        return None
    return Name(int(match[1]), int(match[2]), int(match[3]), match[4], int(match[5] or 0))


def names_in(folder: str) -> list[str]:
    """List the names in a folder, without temporary files; a missing folder counts as empty."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return []
    return [name for name in names if not name.startswith(TEMPORARY_PREFIX)]


def rename(source: str, target: str) -> bool:
    """Rename a file; return false if another worker has already renamed or removed the file."""
    try:
        os.rename(source, target)  # noqa: PTH104
    except OSError as error:
        if error.errno not in _GONE:
            raise
        # If the reply to the rename was lost, the new name exists: no other worker knows it.
        return os.path.lexists(target)
    return True


def remove(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True


def _make_empty(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))


def read_texts(path: str) -> list[str] | None:
    """Read the texts of all messages in the file *path*; ``None`` if it does not exist."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None
    try:
        texts: list[str] = json.loads(data)
    except ValueError as error:
        msg = (
            f"{path} is not a valid file of queue messages ({error}); remove the file and send its "
            f"tasks again"
        )
        raise QueueError(msg) from error
    return texts


def remove_folder(path: str) -> bool:
    """Remove a folder unless it contains files; return whether the folder no longer exists."""
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE):
            return False
        if error.errno != errno.ENOENT:
            raise
    return True


def make_messages(folder: str, count: int) -> bool:
    """Create the files of *count* messages in *folder*; return false if the folder was moved.

    If a worker needs more than `OPENING_S` s to open a pack, another worker takes over the pack and
    moves its folder.
    """
    try:
        Path(folder).mkdir(exist_ok=True)
        names = [f"{folder}/{Name(number, 0, 0, FREE)}" for number in range(count)]
        of_each_file(_make_empty, names, THREADS, "queue-open")
        sync(folder)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True
