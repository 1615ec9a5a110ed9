"""Translation of the exceptions of codecs, libraries and damaged metadata to `VolumeError`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours for a terminal


def reason_of(error: Exception) -> str:
    """Return the text of an exception without colours, or its type if it has no text."""
    return _ANSI.sub("", str(error)).strip() or type(error).__name__


@contextmanager
def translated_errors(
    failure: str, remedy: str = "", reason: Callable[[Exception], str] = reason_of
) -> Iterator[None]:
    """Translate every exception raised in the ``with`` block; libraries raise many types.

    Args:
        failure: what failed, such as ``cannot open em.zarr``; begins the message.
        remedy: end of the message, with its separator.
        reason: returns the part of the message between the two.

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
