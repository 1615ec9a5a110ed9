"""delete-task-in-queue; lines that use it are tested with fetch-task-from-sqs."""

from chunkflow_py.core.task import Task
from chunkflow_py.ops.delete_task_in_queue import acknowledge


def test_a_task_that_is_from_no_queue_passes():
    """A line that is tried on tasks of a grid runs unchanged."""
    task = Task()
    assert acknowledge(task) is task
