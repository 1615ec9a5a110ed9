"""What reading costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """What reading has cost so far, in bytes.

    Attributes:
        stored_bytes: fetched, as stored.
        decoded_bytes: voxels of the blocks that were decoded.
        needed_bytes: voxels that were asked for.
        cache_hits: blocks that did not have to be fetched again.
    """

    stored_bytes: int = 0
    decoded_bytes: int = 0
    needed_bytes: int = 0
    cache_hits: int = 0
