"""Send the times of each task to Amazon CloudWatch.

Example: chunkflow create-chunk save-h5 --file-name chunk.h5 cloud-watch --log-name em-run

Each operator before this one becomes a metric in seconds, named after the operator's label. The
dimension compute_device is the GPU or processor, and --log-name is the namespace. Region and
credentials come from the environment, as for any AWS client. If CloudWatch cannot be
reached, a warning is logged; if it refuses the credentials, the task fails.
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
    """Send the times of one log to CloudWatch.

    Args:
        log: ``{"timer": {label: seconds}, "compute_device": name}``, as savers write it.
        log_name: the namespace of the metrics.

    Raises:
        OptionError: region or credentials are not set, or the log has no timer.
        VolumeRefusedError: CloudWatch refuses the credentials.
        MissingExtraError: boto3 is not installed.
    """
    from chunkflow_py.ops.viewing.metrics import CloudWatch
    from chunkflow_py.volume.output import compute_device

    if not isinstance(log.get("timer"), dict):
        msg = (
            f"a log needs a timer with seconds by label; this one has {', '.join(log) or 'nothing'}"
        )
        raise OptionError(msg)
    service = CloudWatch(log_name)
    service.put(log["timer"], log.get("compute_device") or compute_device())
    service.close()


@dataclass
class CloudWatcher:
    """Sends the times of every task.

    Attributes:
        log_name: the namespace of the metrics.
    """

    log_name: str = "chunkflow"
    _service: CloudWatch | None = field(default=None, repr=False)

    def __enter__(self) -> CloudWatcher:
        """Check region and credentials before the first task."""
        from chunkflow_py.ops.viewing.metrics import CloudWatch

        self._service = CloudWatch(self.log_name)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        if self._service is not None:
            self._service.close()

    def __call__(self, task: Task) -> Task:
        """Send the time that each operator before this one took, in seconds."""
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
    help="Namespace of the metrics.",
)
def command(log_name: str) -> CloudWatcher:
    """Return the operator, which connects to CloudWatch when the pipeline starts."""
    return CloudWatcher(log_name)
