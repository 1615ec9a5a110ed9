"""Translate exceptions of libraries, codecs and metadata parsers to `VolumeError`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours for a terminal


def reason_of(error: Exception) -> str:
    """Return the message of an exception, without colour codes.

    For an exception without a message, return the name of its class.
    """
    return _ANSI.sub("", str(error)).strip() or type(error).__name__


@contextmanager
def translated_errors(
    failure: str, remedy: str = "", reason: Callable[[Exception], str] = reason_of
) -> Iterator[None]:
    """Translate exceptions in the ``with`` block to `VolumeError`; let a `ChunkflowError` pass.

    Args:
        failure: what failed, as the beginning of the message, such as ``cannot open em.zarr``.
        remedy: end of the message, including a separator such as ``; ``.
        reason: function that returns the reason to show for an exception.

    Raises:
        VolumeError: the block raised an exception that is not a `ChunkflowError`.
    """
    try:
        yield
    except ChunkflowError:
        raise
    except Exception as error:
        msg = f"{failure}: {reason(error)}{remedy}"
        raise VolumeError(msg) from error
