"""Send the times of each task to Amazon CloudWatch.

Example: chunkflow create-chunk save-h5 --file-name chunk.h5 cloud-watch --log-name em-run

The time of each earlier operator of the pipeline becomes a metric, in seconds. The name of the
metric is the label of the operator. The dimension compute_device is the GPU or processor, and
--log-name is the namespace. Region and credentials come from the environment, as for any AWS
client. If CloudWatch cannot be reached, a warning is logged. If CloudWatch refuses the credentials,
the task fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.ops.viewing.metrics import CloudWatch

SECTION = "view"


def cloud_watch(log: dict[str, Any], log_name: str = "chunkflow") -> None:
    """Send the operator times in the log of a task to CloudWatch.

    Args:
        log: log of a task in the form that savers write:
            ``{"timer": {label: seconds}, "compute_device": name}``.
        log_name: the namespace of the metrics.

    Raises:
        OptionError: the AWS region or credentials are not set, or the log has no timer.
        VolumeRefusedError: CloudWatch refuses the credentials.
        MissingExtraError: boto3 is not installed.
    """
    from chunkflow_py.ops.viewing.metrics import CloudWatch
    from chunkflow_py.volume.output import compute_device

    if not isinstance(log.get("timer"), dict):
        msg = (
            "the log must have the key 'timer', with the seconds of each operator; this log has "
            f"the keys {', '.join(log) or 'none'}"
        )
        raise OptionError(msg)
    service = CloudWatch(log_name)
    service.put(log["timer"], log.get("compute_device") or compute_device())
    service.close()


@dataclass
class CloudWatcher:
    """Sends the operator times of every task to CloudWatch.

    Attributes:
        log_name: the namespace of the metrics.
    """

    log_name: str = "chunkflow"
    _service: CloudWatch | None = field(default=None, repr=False)

    def __enter__(self) -> CloudWatcher:
        """Check the AWS region and credentials before the first task."""
        from chunkflow_py.ops.viewing.metrics import CloudWatch

        self._service = CloudWatch(self.log_name)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections to CloudWatch."""
        if self._service is not None:
            self._service.close()

    def __call__(self, task: Task) -> Task:
        """Send the seconds that each earlier operator of the pipeline took."""
        from chunkflow_py.volume.output import compute_device

        if self._service is None:
            self.__enter__()
        if self._service is not None:
            self._service.put(task.seconds, compute_device())
        return task


@operator("write")
@click.option(
    "--log-name",
    "-l",
    default="chunkflow",
    show_default=True,
    help="CloudWatch namespace of the metrics.",
)
def command(log_name: str) -> CloudWatcher:
    """Return the operator, which connects to CloudWatch when the pipeline starts."""
    return CloudWatcher(log_name)
