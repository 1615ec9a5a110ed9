"""Keep what PyTorch logs out of sight where its failures are expected and answered."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# They log whole tracebacks of what they then raise.
_LOGGERS = ("torch.export", "torch.export.pt2_archive._package", "torch._subclasses.fake_tensor")


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence the loggers of PyTorch that print tracebacks."""
    logs = [logging.getLogger(name) for name in _LOGGERS]
    before = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.CRITICAL)
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
