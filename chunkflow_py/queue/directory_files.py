"""Names and steps of a queue in a folder; each step is one call that one worker alone can win."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from chunkflow_py.errors import QueueError
from chunkflow_py.store.local_files import TEMPORARY_PREFIX, of_each_file, sync

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
