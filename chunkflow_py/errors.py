"""All exceptions that chunkflow_py raises on purpose.

ChunkflowError
├── OptionError (ValueError)            an option or argument that cannot work; exit code 2
├── GeometryError (ValueError)          boxes, sizes or grids that do not fit together
│   └── AlignmentError                  a write that covers only a part of a write unit
├── ChunkError (ValueError)             arrays whose shape, dtype or kind disagree
├── MissingChunkError (KeyError)        a chunk that no earlier operator has made
├── VolumeError (OSError)               a volume or file that cannot be read or written
│   ├── VolumeNotFoundError (FileNotFoundError)
│   ├── VolumeRefusedError (PermissionError)    credentials are missing or insufficient
│   └── VolumeUnreachableError (TransientError) the network or the store is down, or overloaded
├── ModelError (RuntimeError)           a network that cannot be loaded or run
│   ├── NonFiniteError                  a network that returned NaN or infinity
│   ├── WrongArithmeticError            a device or library that computes wrong values
│   └── OutOfMemoryError (MemoryError)  a batch that needs more memory than the device has
├── QueueError (OSError)                a queue that cannot be reached, or refuses a request
│   ├── LeaseLostError                  a lost lease: another worker may execute the task
│   └── QueueUnreachableError (TransientError)  the network or the queue is down, or overloaded
├── TransientError (OSError)            a temporary failure; all retries are spent
├── MissingExtraError (ImportError)     an optional dependency that is not installed
└── OperatorError (RuntimeError)        an exception in an operator; names operator and task

If two values disagree, the message states both values, with their names, axes and units. The
message then says what to change and, where there is one, the nearest value that works.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from importlib.util import find_spec
from traceback import walk_tb
from typing import TYPE_CHECKING

from chunkflow_py.core.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator


# Credentials before a host, and signatures in a query, anywhere in a message.
_SECRETS = (
    re.compile(r"(?<=://)[^\s/?#@]*@"),
    re.compile(r"(?<=\w)[?#](?=[^\s?#]*(?:[Ss]ig|[Tt]oken|[Kk]ey|[Cc]redential))[^\s|;,]+"),
)


LONGEST_TEXT = 2000  # characters of a message of an exception
PLUGIN_MODULE = "chunkflow_plugin_"  # prefix of the module names of loaded plugins


class ChunkflowError(Exception):
    """Base of all errors that chunkflow_py raises on purpose."""

    def __str__(self) -> str:
        """Return the message without credentials in addresses and without control characters."""
        text = plain(Exception.__str__(self))
        for pattern in _SECRETS:
            text = pattern.sub("", text)
        return text


class OptionError(ChunkflowError, ValueError):
    """An option or argument has a value that cannot work; the exit code is 2."""


class GeometryError(ChunkflowError, ValueError):
    """Boxes, sizes or grids contradict each other, such as a box outside of its volume."""


class AlignmentError(GeometryError):
    """A write covers only a part of a write unit (block or shard)."""


class ChunkError(ChunkflowError, ValueError):
    """Arrays disagree in shape, dtype, box or kind."""


class MissingChunkError(ChunkflowError, KeyError):
    """A task has no chunk or other result with the required name and type."""


class VolumeError(ChunkflowError, OSError):
    """A volume or file cannot be read or written."""


class VolumeNotFoundError(VolumeError, FileNotFoundError):
    """A volume, file or dataset does not exist."""


class VolumeRefusedError(VolumeError, PermissionError):
    """The store denies the request: credentials are missing or insufficient."""


class TransientError(ChunkflowError, OSError):
    """A temporary failure that has outlasted all retries."""


class VolumeUnreachableError(VolumeError, TransientError):
    """The store of a volume is down, overloaded, or cannot be reached for now."""


class ModelError(ChunkflowError, RuntimeError):
    """A network cannot be loaded, or returns a wrong result."""


class NonFiniteError(ModelError):
    """A network returned NaN or infinity."""


class WrongArithmeticError(ModelError):
    """A device, or the library that computes on it, returns wrong values."""


class OutOfMemoryError(ModelError, MemoryError):
    """A batch needs more memory than the device of the network has."""


class QueueError(ChunkflowError, OSError):
    """A queue cannot be reached, does not exist, or refuses a request."""


class QueueUnreachableError(QueueError, TransientError):
    """A queue is down, overloaded, or cannot be reached for now."""


class LeaseLostError(QueueError):
    """The lease of a task is lost, so this worker stops the task; another worker may execute it."""


class MissingExtraError(ChunkflowError, ImportError):
    """An optional dependency is not installed."""


class OperatorError(ChunkflowError, RuntimeError):
    """An operator has raised an exception while it worked on a task.

    Attributes:
        operator: label of the operator, such as ``inference`` or ``inference#2``.
        task: box of the task, such as ``0-64_0-512_0-512``, or ``None`` for a task without a box.
        cause: the original exception.
    """

    def __init__(self, operator: str, task: str | None, cause: BaseException) -> None:
        self.operator, self.task, self.cause = operator, task, cause
        where = f" on task {task}" if task else ""
        # errors of this package are sentences; others are clearer with their type
        what = text_of(cause)
        if isinstance(cause, MemoryError) and not isinstance(cause, ChunkflowError):
            why = f" ({what[0].lower()}{what[1:]})" if what else ""
            what = f"there is not enough memory{why}; make the chunk or the tasks smaller"
        elif not isinstance(cause, ChunkflowError):
            what = named(cause)
            what += _place_in_plugin(cause)
        super().__init__(f"{operator} failed{where}: {what}")

    @classmethod
    def reported(cls, operator: str, task: str | None, message: str) -> OperatorError:
        """Return an error with the text *message*, for an operator of another process."""
        error = cls(operator, task, RuntimeError(message))
        error.args = (message,)
        return error


def text_of(error: BaseException) -> str:
    """Return the message of any exception as valid Unicode of bounded length."""
    try:
        text = str(error)
    except BaseException as problem:  # noqa: BLE001  (any class may override __str__)
        return f"its message cannot be read ({type(problem).__name__})"
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]} … ({len(text)} characters in all)"
    return text.encode(errors="backslashreplace").decode()


def named(error: BaseException) -> str:
    """Return the message of an exception, preceded by its type unless it is a `ChunkflowError`."""
    text = text_of(error)
    if isinstance(error, ChunkflowError):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def as_error(error: BaseException, where: str) -> Exception:
    """Return *error* itself if ``except Exception`` catches *error*, else a `ChunkflowError`.

    For example, a `SystemExit` is replaced, because a `SystemExit` would end the process.

    Args:
        error: any exception.
        where: what failed, for the message, such as ``the source generate-tasks``.
    """
    if isinstance(error, Exception):
        return error
    return ChunkflowError(f"{where} failed: {named(error)}")


def _place_in_plugin(cause: BaseException) -> str:
    place = ""
    for frame, line in walk_tb(cause.__traceback__):
        if frame.f_globals.get("__name__", "").startswith(PLUGIN_MODULE):
            place = f" ({frame.f_code.co_filename.rpartition(os.sep)[2]}, line {line})"
    return place


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import into an error that states how to install the missing library.

    Args:
        extra: name of the extra of this package that contains the library.
        purpose: what needs the library, for the message, such as ``load-png``.

    Raises:
        MissingExtraError: an import inside the block failed.
    """
    try:
        yield
    except ImportError as error:
        msg = (
            f"{purpose} needs {error.name or error}, which is not installed; "
            f"install it with pip install 'chunkflow_py[{extra}]'"
        )
        raise MissingExtraError(msg) from error


def check_extra(extra: str, purpose: str, *modules: str) -> None:
    """Check that optional libraries are installed, without importing them.

    Args:
        extra: name of the extra of this package that contains the libraries.
        purpose: what needs the libraries, for the message, such as ``load-png``.
        modules: top-level modules of the libraries (names without a dot).

    Raises:
        MissingExtraError: one of the libraries is not installed.
    """
    with needs_extra(extra, purpose):
        for module in modules:
            if find_spec(module) is None:
                raise ModuleNotFoundError(name=module)
