"""Silence PyTorch's own log messages where its failures are expected and handled."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

# They log whole tracebacks of what they then raise.
_LOGGERS = ("torch.export", "torch.export.pt2_archive._package", "torch._subclasses.fake_tensor")


def quiet_torch() -> AbstractContextManager[None]:
    """Silence the loggers of PyTorch that print tracebacks."""
    return quiet_logs(_LOGGERS, logging.CRITICAL)


@contextmanager
def quiet_logs(names: Iterable[str], level: int) -> Iterator[None]:
    """Silence messages of loggers below *level*.

    Args:
        names: of the loggers.
        level: of the standard library.
    """
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(level)
        yield
    finally:
        for log, its_level in zip(logs, before, strict=True):
            log.setLevel(its_level)
