"""The record of a submission: who submitted a run, when, with which version and command line."""

from __future__ import annotations

import getpass
import json
import shlex
import socket
import sys
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core import strict_json
from chunkflow_py.store.store_address import public_line

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LONGEST_RECORD = 65_536  # bytes
_LONGEST_TEXT = 4000  # characters
_LATEST = 1e13  # largest valid time, in seconds since 1970


@dataclass(frozen=True)
class SubmissionRecord:
    """The submission of a run; an attribute that is unknown is an empty text.

    Attributes:
        user: name of the user.
        host: name of the host.
        when: time of the submission, in seconds since 1970 by the clock of the host.
        version: version of chunkflow_py.
        command: command line, without the user names, passwords and signatures of addresses.
    """

    user: str = ""
    host: str = ""
    when: float = 0.0
    version: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        """Make all texts single lines that are safe to show."""
        show_safely(self)

    @classmethod
    def here(cls) -> SubmissionRecord:
        """Return the record of a submission by this process."""
        arguments = [public_line(each, _LONGEST_TEXT) for each in sys.argv[1:]]
        program = Path(sys.argv[0]).name
        program = "chunkflow" if program == "__main__.py" else program
        command = shlex.join([program, *arguments])
        own = version("chunkflow_py")
        return cls(user_name(), socket.gethostname(), time.time(), own, command)

    def to_json(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> SubmissionRecord:
        """Parse a record; fields that this version does not know are ignored.

        Raises:
            ValueError: *content* is not a submission record.
        """
        return cls(**known_fields(content, cls))


def user_name() -> str:
    """Return the name of the user of this process; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user, for example in a container
        return ""


def show_safely(record: DataclassInstance) -> None:
    """Replace all texts of an untrusted record with single lines that are safe to print."""
    for each in fields(record):
        value = getattr(record, each.name)
        if isinstance(value, str):
            object.__setattr__(record, each.name, public_line(value, _LONGEST_TEXT))


def known_fields(content: bytes, record: type[DataclassInstance]) -> dict[str, Any]:
    """Parse a JSON object; return only the fields that the dataclass *record* has.

    Raises:
        ValueError: *content* is not a JSON object, or a value has the wrong type.
    """
    if len(content) > LONGEST_RECORD:
        msg = f"it has more than {LONGEST_RECORD} bytes"
        raise ValueError(msg)
    values = strict_json.loads(content)
    if not isinstance(values, dict):
        msg = f"it is not a JSON object, but a {type(values).__name__}"
        raise ValueError(msg)  # noqa: TRY004  (wrong content, not a wrong argument)
    known = {each.name: values[each.name] for each in fields(record) if each.name in values}
    for name, value in known.items():
        is_good = type(value) in (int, float) if name == "when" else isinstance(value, str)
        if not is_good or (name == "when" and not 0 <= value < _LATEST):
            msg = f"{name!r} has the value {value!r:.80}"
            raise ValueError(msg)
    return known
