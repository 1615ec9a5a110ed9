"""What reading costs, and what it did not find."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Traffic:
    """What reading has cost so far, in bytes.

    Attributes:
        stored_bytes: fetched, as stored.
        decoded_bytes: voxels of the blocks that were decoded.
        needed_bytes: voxels that were asked for.
        cache_hits: blocks that did not have to be fetched again.
        missing_blocks: that are not stored and were read as the fill value, once for each read.
    """

    stored_bytes: int = 0
    decoded_bytes: int = 0
    needed_bytes: int = 0
    cache_hits: int = 0
    missing_blocks: int = 0


_here = threading.local()


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count, of what this thread reads inside the block, the blocks that are missing."""
    before, _here.traffic = getattr(_here, "traffic", None), Traffic()
    try:
        yield _here.traffic
    finally:
        _here.traffic = before


def note_missing(blocks: int) -> None:
    """Tell whoever counts in this thread of blocks that were read as the fill value."""
    traffic: Traffic | None = getattr(_here, "traffic", None)
    if traffic is not None:
        traffic.missing_blocks += blocks
