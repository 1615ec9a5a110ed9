"""A queue in a folder of a file system that machines share; needs no server.

```
queue                                  touched to learn the file server's time
new/PACK~500                           texts of 500 messages, as they were sent: one file
opening/PACK~500~ENDS~TOKEN/           a pack that somebody makes ready: the folder below
open/PACK/texts                        the same file
open/PACK/todo/7~2~ENDS~TOKEN~SINCE    message 7 of it, received twice, leased from SINCE to ENDS
open/PACK/todo/8~0~0~-                 message 8, never received; released ones have no token either
dead/PACK-9.json                       a message that was put aside, and the reason
```

All that happens to a message is one rename of an empty file, which one worker alone can win; its
name says the rest. So nothing can be torn or lost by a kill, whenever it comes. Packs are opened
when the open ones have nothing to do, and go when their messages are acknowledged: neither many
waiting messages nor many finished ones are many files, and workers meet in a folder seldom.

Times are milliseconds of the file server's clock: ends of leases are comparable on all machines,
whatever their own clocks say. A lease that begins in the future is not believed: the server's clock
was set back since. A rename whose reply was lost on a network is asked for again by the
system, and fails; the new name holds a token that nobody else knows, so its existence tells.

Sync policy: what was sent or buried is on the disk (fsync) when the call returns. A power cut of
the file server may take back leases and the last acknowledgements: these come again.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

PACK = 500  # messages of one file
PACKS = 16  # that are written before their folder is synced
LOOKS = 32  # open packs that one receive looks through
OPENING_S = 10.0  # for which a pack is kept for who opens it, who needs one at most
BURYING_S = 60.0  # for which a message is kept for who puts it aside
CLOCK_S = 10.0  # for which the difference of the clocks is good
PAUSES_S = 0.01, 1.0  # the first and the longest between two looks

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

SLACK_MS = 60_000  # by which machines may disagree about the file server's time
THREADS = 8  # calls that wait for the file server at the same time
# Somebody else was faster; network file systems have two words for it.
_GONE = (errno.ENOENT, errno.ESTALE)


class DirectoryQueue:
    """A queue in a shared folder; see `chunkflow_py.queue.queue_protocol.Queue`."""

    longest_lease_s = math.inf

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Open the queue in the folder at *path*.

        Args:
            path: of a folder that is nothing else.
            create: make it if there is none, with the folders above it.

        Raises:
            QueueError: there is none, or the folder holds other things.
        """
        self._root = absolute(path)
        self.url = f"file://{self._root}"
        self._mark = f"{self._root}/queue"
        # Used by several threads without a lock: each step is harmless, claims are won on disk.
        self._found: list[tuple[str, Name]] = []
        self._last = ""  # the pack that they are of
        self._texts: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}  # handle -> path under which the message is now
        self._difference, self._good_until = 0.0, -math.inf
        with self._calling("open"):
            if not os.path.exists(self._mark):  # noqa: PTH110 as all paths here are strings
                self._make(create=create)
            for name in _FOLDERS:
                make_folder(f"{self._root}/{name}")

    def _make(self, *, create: bool) -> None:
        if not create:
            msg = (
                f"queue {self.url} does not exist; "
                f"generate-tasks --queue-name and submit --queue make it, and chunkflow repair RUN "
                f"makes that of a run again"
            )
            raise QueueError(msg)
        make_folder(self._root)
        # A queue that has lost its mark is made anew around what it still holds.
        others = [each for each in names_in(self._root) if each not in ("queue", *_FOLDERS)]
        if others:
            msg = (
                f"queue {self.url} cannot be made in a folder that holds {min(others)!r}; "
                f"use a new one, such as {self.url}/queue"
            )
            raise QueueError(msg)
        write_whole(self._mark, _MARK)

    @contextmanager
    def _calling(self, action: str) -> Iterator[None]:
        try:
            with os_errors(action, self._root):
                yield
        except VolumeError as error:
            msg = f"queue {self.url} fails: {error}"
            raise QueueError(msg) from error

    def _now(self) -> int:
        """Return the file server's time in milliseconds, asked for now and then."""
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= self._good_until:
            os.utime(self._mark)  # without times: the server sets its own
            touched = Path(self._mark).stat().st_mtime
            # Afterwards: rather late than early, so that nobody's lease is cut short.
            here = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._difference, self._good_until = touched - here, here + CLOCK_S
        return int(1000 * (time.clock_gettime(time.CLOCK_BOOTTIME) + self._difference))

    def send(self, bodies: Iterable[str]) -> int:
        """Add messages, 500 to a file."""
        texts = iter(bodies)
        store = FolderStore(f"{self._root}/new")
        sent = 0
        with ThreadPoolExecutor(THREADS, thread_name_prefix="queue-send") as pool:
            while batch := list(islice(texts, PACK * PACKS)):
                packs = [batch[first : first + PACK] for first in range(0, len(batch), PACK)]
                try:
                    with self._calling("write"), store.together() as folder:

                        def put(pack: list[str], folder: FolderStore = folder) -> None:
                            name = f"{secrets.token_hex(8)}~{len(pack)}"
                            folder.put(name, json.dumps(pack).encode())

                        list(pool.map(put, packs))
                except QueueError as error:
                    msg = f"{error}; {sent} messages before it were sent"
                    raise QueueError(msg) from error
                sent += len(batch)
        return sent

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return up to *most* messages, each leased for *lease_s* from now."""
        return poll_for_messages(lambda: self._take(most, lease_s), wait_s, PAUSES_S)

    def _take(self, most: int, lease_s: float) -> list[Message]:
        with self._calling("read"):
            return self._taken(most, lease_s, self._now())

    def _taken(self, most: int, lease_s: float, now: int) -> list[Message]:
        messages: list[Message] = []
        looks = 0
        while len(messages) < most:
            try:
                pack, name = self._found.pop()
            except IndexError:
                looks += 1
                # What others have taken in the meantime is looked for again, but not for ever.
                if messages or looks > LOOKS or not self._look(now):
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
                self._names[handle] = path
                messages.append(Message(texts[name.number], handle, leased.receives))
        return messages

    def _look(self, now: int) -> bool:
        """Find messages that can be received, in an open pack or else in a new one."""
        packs = self._packs()
        random.shuffle(packs)
        # First the one that had some the last time: so workers stay apart.
        packs.sort(key=lambda pack: pack != self._last)
        return any(self._look_into(pack, now) for pack in packs[:LOOKS]) or self._open(now)

    def _packs(self) -> list[str]:
        return [name for name in names_in(f"{self._root}/open") if PACK_NAME.fullmatch(name)]

    def _letters(self) -> list[str]:
        return [name for name in names_in(f"{self._root}/dead") if name.endswith(".json")]

    def _look_into(self, pack: str, now: int) -> bool:
        names = names_in(f"{self._root}/open/{pack}/todo")
        if not names:  # who acknowledged the last was killed before it could tidy up
            self._close_finished(pack)
            return False
        found = [(pack, name) for name in map(parse_name, names) if name and name.is_over(now)]
        random.shuffle(found)
        self._found.extend(found)
        if found:
            self._last = pack
        return bool(found)

    def _read(self, pack: str) -> list[str] | None:
        texts = read_texts(f"{self._root}/open/{pack}/texts")
        if texts is not None:
            if len(self._texts) >= LOOKS:
                self._texts.clear()
            self._texts[pack] = texts
        return texts

    def _open(self, now: int) -> bool:
        """Open a pack, of somebody who was killed while doing so or a new one."""
        opening, ends = f"{self._root}/opening", now + int(1000 * OPENING_S)
        for left in names_in(opening):
            match = OPENING.fullmatch(left)
            if match and not now < int(match[3]) < now + 1000 * OPENING_S + SLACK_MS:
                folder = f"{opening}/{match[1]}~{match[2]}~{ends}~{secrets.token_hex(8)}"
                if rename(f"{opening}/{left}", folder) and self._publish(folder, match[1], now):
                    return True
        new = [name for name in names_in(f"{self._root}/new") if NEW.fullmatch(name)]
        random.shuffle(new)
        for name in new[:LOOKS]:
            folder = f"{opening}/{name}~{ends}~{secrets.token_hex(8)}"
            os.mkdir(folder)  # noqa: PTH102
            if not rename(f"{self._root}/new/{name}", f"{folder}/texts"):
                remove_folder(folder)
            elif self._publish(folder, name.partition("~")[0], now):
                return True
        return False

    def _publish(self, folder: str, pack: str, now: int) -> bool:
        """Make the files of a pack's messages and open it to all."""
        texts = read_texts(f"{folder}/texts")
        if texts is None:  # who made the folder was killed before it had the pack
            remove_folder(folder)
            return False
        return (
            make_messages(f"{folder}/todo", len(texts))
            and rename(folder, f"{self._root}/open/{pack}")
            and self._look_into(pack, now)
        )

    def _todo(self, pack: str, name: Name) -> str:
        return f"{self._root}/open/{pack}/todo/{name}"

    def _ours(self, message: Message) -> tuple[str, str, Name] | None:
        """Return pack, path and name of a message, as they are if it is still ours."""
        match = HANDLE.fullmatch(message.handle)
        if match is None or match[6] == FREE:
            return None
        path = self._names.get(message.handle, f"{self._root}/open/{match[1]}/todo/{match[2]}")
        name = parse_name(path.rpartition("/")[2])
        return (match[1], path, name) if name else None

    def _change(
        self, messages: Sequence[Message], change: Callable[[Message, str, str, Name], bool]
    ) -> list[Message]:
        """Change every message that is ours; return the others."""
        lost = []
        for message in messages:
            ours = self._ours(message)
            if ours is None or not change(message, *ours):
                self._names.pop(message.handle, None)
                lost.append(message)
        return lost

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages; return those that were not leased to us any more."""
        packs = set()

        def finish(message: Message, pack: str, path: str, _: Name) -> bool:
            packs.add(pack)
            self._names.pop(message.handle, None)
            return remove(path)

        with self._calling("write"):
            lost = self._change(messages, finish)
            for pack in packs:
                self._close_finished(pack)
        return lost

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Let leases end *lease_s* from now; return those messages that are not ours any more."""
        with self._calling("write"):
            now = self._now()
            ends = now + int(1000 * lease_s)

            def keep(message: Message, pack: str, path: str, name: Name) -> bool:
                later = self._todo(pack, name._replace(ends=ends, since=now))
                if is_ours := rename(path, later):
                    self._names[message.handle] = later
                return is_ours

            return self._change(messages, keep)

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Give messages back, to be received by others after *delay_s*."""
        with self._calling("write"):
            # Without a delay at once for all, however well they know the server's time.
            now = self._now() if delay_s > 0 else 0
            ends = now + int(1000 * delay_s) if delay_s > 0 else 0

            def free(message: Message, pack: str, path: str, name: Name) -> bool:
                self._names.pop(message.handle, None)
                freed = name._replace(ends=ends, token=FREE, since=now)
                return rename(path, self._todo(pack, freed))

            self._change(messages, free)

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Put messages aside with the reason."""
        # Nobody else gets them in the meantime, and those that are not ours are left alone.
        lost = self.extend(messages, BURYING_S)
        ours = [message for message in messages if message not in lost]
        with self._calling("write"):
            for message in ours:
                pack, _, name = message.handle.partition("/")
                letter = json.dumps({"body": message.body, "reason": reason})
                path = f"{self._root}/dead/{pack}-{name.partition('~')[0]}.json"
                write_whole(path, letter.encode())
        self.acknowledge(ours)

    def counts(self, *, dead: bool = True) -> Counts:  # noqa: ARG002 they cost nothing
        """Return how many messages there are; looks into every open pack."""
        with self._calling("read"):
            now = self._now()
            # On its way a pack is in one place after the other: the last one seen counts.
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
        """Return the texts of up to *most* messages that are leased now."""
        found: list[str] = []
        with self._calling("read"):
            now = self._now()
            for pack in self._packs():
                todo = filter(None, map(parse_name, names_in(f"{self._root}/open/{pack}/todo")))
                held = [
                    each.number for each in todo if each.token != FREE and not each.is_over(now)
                ]
                texts = (held and self._read(pack)) or []
                found += [texts[number] for number in held if number < len(texts)]
        return found[:most]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield what was put aside."""
        for name in self._letters():
            with self._calling("read"):
                letter = json.loads(Path(f"{self._root}/dead/{name}").read_bytes())
            yield DeadLetter(letter["body"], letter["reason"])

    def _close_finished(self, pack: str) -> None:
        """Remove what is left of a pack, unless it still holds messages."""
        folder = f"{self._root}/open/{pack}"
        if remove_folder(f"{folder}/todo") and "todo" not in names_in(folder):
            self._texts.pop(pack, None)
            remove(f"{folder}/texts")
            remove_folder(folder)

    def close(self) -> None:
        """Do nothing: no file stays open."""


# --- names and files ----------------------------------------------------------------------------


class Name(NamedTuple):
    """What the name of a message says.

    Attributes:
        number: its place in the pack.
        receives: how often it was received.
        ends: milliseconds of the file server's clock, before which nobody may take it.
        token: of the receipt; ``-`` if nobody has it.
        since: milliseconds of that clock when *ends* was set; earlier versions did not say it.
    """

    number: int
    receives: int
    ends: int
    token: str
    since: int = 0

    def __str__(self) -> str:
        return "~".join(map(str, self if self.since else self[:-1]))

    def is_over(self, now: int) -> bool:
        """Whether the lease or the delay has ended.

        One that begins later than now was given by a clock that has been set back since.
        """
        return self.ends <= now or self.since > now + SLACK_MS


def parse_name(name: str) -> Name | None:
    """Return what the name of a file says, or ``None`` if it is no message."""
    match = _MESSAGE.fullmatch(name)
    if match is None:
        return None
    return Name(int(match[1]), int(match[2]), int(match[3]), match[4], int(match[5] or 0))


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, those of half-written files left out."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return []
    return [name for name in names if not name.startswith(TEMPORARY_PREFIX)]


def rename(source: str, target: str) -> bool:
    """Give a file another name; tell whether it was us."""
    try:
        os.rename(source, target)  # noqa: PTH104
    except OSError as error:
        if error.errno not in _GONE:
            raise
        # The answer to our first request may have been lost: nobody else knows this name.
        return os.path.lexists(target)
    return True


def remove(path: str) -> bool:
    """Remove a file; tell whether it was there."""
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
    """Return the messages of a pack, or ``None`` if it is not there (any more)."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None
    try:
        texts: list[str] = json.loads(data)
    except ValueError as error:
        msg = f"{path} holds no messages of a queue ({error}); remove it and send its tasks again"
        raise QueueError(msg) from error
    return texts


def remove_folder(path: str) -> bool:
    """Remove a folder if it is empty; tell whether it is gone."""
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE):
            return False
        if error.errno != errno.ENOENT:
            raise
    return True


def make_messages(folder: str, count: int) -> bool:
    """Make the files of *count* messages; return False if the folder is somebody else's now."""
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
