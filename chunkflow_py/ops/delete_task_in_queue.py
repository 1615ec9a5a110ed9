r"""Acknowledge the task's message.

Without this operator, the message of a task is acknowledged when the whole pipeline has finished
the task. With this operator, the message is acknowledged earlier: the queue does not deliver the
task again, even if a later operator fails.

Example: chunkflow fetch-task-from-sqs --queue-name affinity load-zarr --store em.zarr \
  save-zarr --store copy.zarr delete-task-in-queue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.task import Task

SECTION = "steer"


def acknowledge(task: Task) -> Task:
    """Acknowledge the message of *task*, if the task came from a queue."""
    if task.lease is not None:
        task.lease.acknowledge()
    return task


@operator("write")
def command() -> Callable[[Task], Task]:
    """Return `acknowledge`; the command has no options."""
    return acknowledge
