r"""Take tasks from a queue; acknowledge finished ones.

--queue-name is the name of an Amazon SQS queue, or the URL of any other queue. The pipeline leases
each task that it receives, so that nobody else receives this task. A finished task is acknowledged,
and a failed task is returned to the queue; then the next task is received. Leases are renewed while
tasks run. If a worker dies, its leases expire, and its tasks go to other workers.

Example: chunkflow fetch-task-from-sqs --queue-name affinity load-zarr --store em.zarr \
  save-zarr --store copy.zarr
"""

from __future__ import annotations

import click

from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import is_dry_run
from chunkflow_py.queue.queue_tasks import USUAL_RETRIES, QueueTasks


@source
@click.option(
    "--queue-name", "-q", required=True, help="URL of the queue, or name of an SQS queue."
)
@click.option(
    "--visibility-timeout",
    "-v",
    type=click.IntRange(1, 12 * 3600),
    default=120,
    show_default=True,
    help="Length of a task's lease, seconds; the lease is renewed while the task runs, and "
    "expires if the worker dies.",
)
@click.option(
    "--num",
    "-n",
    type=click.IntRange(min=-1),
    default=-1,
    show_default=True,
    help="Number of tasks to take; -1 takes all.",
)
@click.option(
    "--retry-times",
    "-r",
    type=click.IntRange(min=0),
    default=USUAL_RETRIES,
    show_default=True,
    help="Number of times to poll an empty queue before the pipeline ends.",
)
@click.option(
    "--keep-task/--acknowledge-task",
    default=False,
    show_default=True,
    help="Return finished tasks to the queue when the pipeline ends, or acknowledge them.",
)
def command(
    queue_name: str, visibility_timeout: int, num: int, retry_times: int, keep_task: bool
) -> QueueTasks:
    """Return the source of tasks; in a dry run, no task is acknowledged."""
    keep_task = keep_task or is_dry_run()
    return QueueTasks(queue_name, visibility_timeout, num, retry_times, keep_task)
