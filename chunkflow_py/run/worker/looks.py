"""What a worker does at one instant, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkflow_py.queue.protocol import Counts


@dataclass(frozen=True, slots=True)
class TaskLook:
    """A task that a child has begun.

    Attributes:
        box: of the task.
        operator: label of the one that works on it; nothing between two.
        lane: of the operator.
        seconds: since its first operator began.
        done: of what the operator does within, such as patches.
        total: the same; 0 if it does not tell.
    """

    box: str
    operator: str
    lane: str
    seconds: float
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class ChildLook:
    """A child.

    Attributes:
        number: among the children of its supervisor.
        pid: of its process.
        device: that it sees; ``None``: all.
        seconds: since it could take tasks; ``None`` if it cannot yet.
        network_seconds: for how long its network has run; ``None`` if it has none.
        read_bytes: that its loaders have fetched, as stored, as far as they count.
        memory_bytes: that it holds of the host's memory, 0 where the system does not tell.
        tasks: that it has begun, the oldest first.
    """

    number: int
    pid: int
    device: str | None
    seconds: float | None
    network_seconds: float | None
    read_bytes: int
    memory_bytes: int
    tasks: tuple[TaskLook, ...]


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker.

    Attributes:
        children: that it has.
        leases: of messages that it keeps.
        renewed: leases so far, each renewal counted.
        lost: leases so far.
        queued: what the queue said of itself last, when it was asked for other reasons; ``None``
            if it was not asked.
    """

    children: tuple[ChildLook, ...]
    leases: int
    renewed: int
    lost: int
    queued: Counts | None
