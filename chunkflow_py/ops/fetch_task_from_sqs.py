"""Take tasks from a queue; acknowledge finished ones.

The queue is one of Amazon SQS, by its name, or any other, by its URL.
A task is leased until it has passed the line: then it is acknowledged, or given back if it failed,
and the next one is taken. Leases are renewed, however long a task takes; of a worker that dies they
end by themselves, and the task goes to another one.

Example: chunkflow fetch-task-from-sqs -q affinity load-zarr -f em.zarr save-zarr -s copy.zarr
"""

from __future__ import annotations

import click

from chunkflow_py.pipeline.operator import source
from chunkflow_py.pipeline.params import is_dry_run
from chunkflow_py.queue.queue_tasks import USUAL_RETRIES, QueueTasks


@source
@click.option("--queue-name", "-q", required=True, help="URL of the queue, or name of one of SQS.")
@click.option(
    "--visibility-timeout",
    "-v",
    type=click.IntRange(1, 12 * 3600),
    default=120,
    show_default=True,
    help="Seconds after which others get the task of a worker that died; renewed while one lives.",
)
@click.option(
    "--num",
    "-n",
    type=click.IntRange(min=-1),
    default=-1,
    show_default=True,
    help="How many tasks to take; -1: as many as there are.",
)
@click.option(
    "--retry-times",
    "-r",
    type=click.IntRange(min=0),
    default=USUAL_RETRIES,
    show_default=True,
    help="How often to look into an empty queue before the line ends.",
)
@click.option(
    "--keep-task/--acknowledge-task",
    default=False,
    show_default=True,
    help="Give tasks back at the line's end, finished or not, instead of removing them.",
)
def command(
    queue_name: str, visibility_timeout: int, num: int, retry_times: int, keep_task: bool
) -> QueueTasks:
    """Set the source up; a dry run acknowledges nothing."""
    keep_task = keep_task or is_dry_run()
    return QueueTasks(queue_name, visibility_timeout, num, retry_times, keep_task)
