"""Whose fault an error is: the task's own, a passing one's, or this machine's.

| class     | what                                            | what a worker does                |
|-----------|-------------------------------------------------|-----------------------------------|
| permanent | anything not below                              | counts it; a few end the task     |
| transient | network, store or queue down, despite retries   | gives the task back for later     |
| resource  | disk full; memory of the machine or its GPU;    | gives all back, and takes no more |
|           | no access: the store refuses this worker        |                                   |
"""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.plain_text import tail
from chunkflow_py.errors import OperatorError, TransientError, VolumeRefusedError, text_of
from chunkflow_py.store.address import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.task import Skip
    from chunkflow_py.run.ledger.record import FailureKind

Shortage = Literal["disk", "memory", "access"]

LONGEST_TRACEBACK = 16_000  # characters
_DISK = (errno.ENOSPC, errno.EDQUOT)
_NETWORK = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ESTALE,  # a file server was restarted
    errno.ETIMEDOUT,
}
# What torch says of memory where it raises a plain RuntimeError.
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "not enough memory: you tried",
)
# After these nothing runs on the device any more in this process.
_BROKEN_DEVICE = ("CUDA error:", "CUDNN_STATUS_INTERNAL_ERROR", "device-side assert")


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong with a task.

    Attributes:
        kind: whose fault it is.
        reason: one sentence.
        traceback: of the exception, or what the process said when it died.
        shortage: what there is too little of, for the kind ``resource``.
        breaks_process: whether what comes next in the same process would fail as well.
    """

    kind: FailureKind
    reason: str
    traceback: str = ""
    shortage: Shortage | None = None
    breaks_process: bool = False

    def __post_init__(self) -> None:
        """Make both safe to record and to show: an operator may have raised anything."""
        object.__setattr__(self, "reason", public(self.reason))
        object.__setattr__(self, "traceback", public(self.traceback))

    @property
    def is_final(self) -> bool:
        """Whether the same would fail again, however long one waits."""
        return self.kind == "permanent" or self.shortage == "access"


def fault_of(error: BaseException) -> Fault:
    """Return what *error* and its causes say."""
    chain = list(_causes(error))
    text = _traceback_of(error)
    reason = text_of(error) or type(error).__name__
    shortage = _shortage(chain)
    if shortage is not None:
        return Fault("resource", reason, text, shortage)
    broken = any(word in text_of(each) for each in chain for word in _BROKEN_DEVICE)
    transient = any(_is_transient(each) for each in chain)
    return Fault("transient" if transient else "permanent", reason, text, breaks_process=broken)


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as problem:  # noqa: BLE001  (it calls methods of anybody's classes)
        text = "".join(traceback.format_tb(error.__traceback__))
        text += f"the exception cannot be shown ({type(problem).__name__})\n"
    return tail(text, LONGEST_TRACEBACK)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and what it was raised from, each once."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        cause = following.cause if isinstance(following, OperatorError) else None
        following = following.__cause__ or cause


def _shortage(chain: list[BaseException]) -> Shortage | None:
    for each in chain:
        if isinstance(each, OSError) and each.errno in _DISK:
            return "disk"
        if isinstance(each, VolumeRefusedError):
            return "access"
        # torch.OutOfMemoryError is a RuntimeError; its name is known without importing torch.
        if isinstance(each, MemoryError) or type(each).__name__ == "OutOfMemoryError":
            return "memory"
        if isinstance(each, OSError) and each.errno == errno.ENOMEM:
            return "memory"
        if isinstance(each, RuntimeError) and any(word in text_of(each) for word in _OUT_OF_MEMORY):
            return "memory"
    return None


def _is_transient(error: BaseException) -> bool:
    # The last is of a file that another process has locked.
    if isinstance(error, (TransientError, ConnectionError, TimeoutError, BlockingIOError)):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK


def reason_of(skip: Skip) -> str:
    """Return why a task was skipped."""
    return public(text_of(skip)) or "no reason given"
