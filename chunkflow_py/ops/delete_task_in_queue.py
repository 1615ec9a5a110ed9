"""Acknowledge the task's message.

Without it, a task is acknowledged when it has passed the whole line. What comes after it here may
still fail, but the task does not come again.

Example: chunkflow fetch-task-from-sqs -q affinity load-zarr -f em.zarr save-zarr -s copy.zarr \
  delete-task-in-queue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.task import Task

SECTION = "steer"


def acknowledge(task: Task) -> Task:
    """Tell the queue of a task, if it is from one, that it is finished."""
    if task.lease is not None:
        task.lease.acknowledge()
    return task


@operator("write")
def command() -> Callable[[Task], Task]:
    """Return the function: there is nothing to choose."""
    return acknowledge
