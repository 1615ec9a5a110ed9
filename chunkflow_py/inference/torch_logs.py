"""Silence PyTorch's log messages about errors that chunkflow expects and handles."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

# These loggers print whole tracebacks of errors that PyTorch then raises as well.
_LOGGERS = ("torch.export", "torch.export.pt2_archive._package", "torch._subclasses.fake_tensor")


def quiet_torch() -> AbstractContextManager[None]:
    """Silence the tracebacks that PyTorch logs for errors in a ``with`` block."""
    return quiet_logs(_LOGGERS, logging.CRITICAL)


@contextmanager
def quiet_logs(names: Iterable[str], level: int) -> Iterator[None]:
    """Let some loggers drop their messages below *level* inside a ``with`` block.

    Args:
        names: names of the loggers.
        level: messages of this level and above are still logged; a constant such as
            `logging.ERROR`.
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
