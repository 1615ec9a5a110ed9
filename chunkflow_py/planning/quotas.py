"""Compare the simultaneous needs of a fleet of machines with the quotas of cloud services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError
from chunkflow_py.run.worker.worker_pool import held_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.planning.duration_estimate import Fleet
    from chunkflow_py.planning.prices import Instance
    from chunkflow_py.planning.task_amounts import Transfer

# Messages that workers of a standard SQS queue have received but not deleted, at the same time:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
SQS_IN_FLIGHT = 120_000
# Requests per second that a store answers without growing first; S3: for each prefix, Google: for
# each bucket. https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
# https://cloud.google.com/storage/docs/request-rate
RATES = {"s3": {"GET": 5500, "PUT": 3500}, "gs": {"GET": 5000, "PUT": 1000}}
_PLACES = {"s3": "S3, per prefix", "gs": "Google Cloud Storage, per bucket"}


@dataclass(frozen=True)
class QuotaUse:
    """An amount that all workers of a run need simultaneously, and the quota for this amount.

    Attributes:
        what: the amount in words, such as ``messages in flight``.
        amount: largest amount that the run needs at any moment.
        quota: largest amount that the service allows; ``None`` if it is not known.
        source: service or option that sets the quota.
        remedy: what to change if the amount is larger than the quota.
        is_problem: whether the run fails if the amount exceeds the quota. If false, the run only
            becomes slower, or the quota may not apply.
    """

    what: str
    amount: float
    quota: float | None
    source: str
    remedy: str
    is_problem: bool = False

    @property
    def is_exceeded(self) -> bool:
        """Whether the amount is larger than the quota."""
        return self.quota is not None and self.amount > self.quota

    def __str__(self) -> str:
        """Return the use as text, such as ``80 of 64 vCPUs (--vcpu-quota)``."""
        amount = f"{self.amount:,.0f}" if self.amount >= 10 else f"{self.amount:.2g}"
        of = "" if self.quota is None else f" of {self.quota:,.0f}"
        return f"{amount}{of} {self.what} ({self.source})"


def vcpu_use(instance: Instance | None, fleet: Fleet, quota: int | None) -> QuotaUse | None:
    """Return how many virtual processors a fleet has, and how many the account may use.

    The result is ``None`` if neither number is known.

    Args:
        instance: type of the machines; ``None`` if it is not known.
        fleet: numbers of machines and worker processes.
        quota: largest number of virtual processors that the account may use; ``None`` if unknown.

    Raises:
        OptionError: *quota* is given, but the type of the machines or the number of its processors
            is not known.
    """
    if instance is None or not instance.cores:
        if quota is None:
            return None
        missing = "--instance TYPE" if instance is None else f"cores of {instance.name}"
        where = "" if instance is None else " to the --price-file"
        msg = (
            f"--vcpu-quota {quota} needs the number of virtual processors of a machine; add "
            f"{missing}{where}"
        )
        raise OptionError(msg)
    remedy = "ask the provider for a larger quota"
    if quota is not None and (machines := quota // instance.cores):
        remedy = f"give --machines {machines}, or {remedy}"
    source = f"{instance.name}; your quota is not known" if quota is None else "--vcpu-quota"
    needed = fleet.machines * instance.cores
    return QuotaUse("vCPUs", needed, quota, source, remedy, is_problem=True)


def message_use(fleet: Fleet, window: int, task_s: float | None) -> QuotaUse:
    """Return the greatest number of messages received but not yet deleted, with its quota.

    Args:
        fleet: numbers of machines and worker processes.
        window: number of tasks that a worker process has in its pipeline at the same time.
        task_s: duration of a task in seconds; ``None`` if it is not known.
    """
    amount = fleet.machines * held_tasks([window] * fleet.processes, task_s)
    remedy = "with SQS, lower --ahead, use fewer workers, or split the run in two with two queues"
    return QuotaUse("messages in flight", amount, SQS_IN_FLIGHT, "SQS", remedy)


def rate_uses(
    reads: Sequence[Transfer], writes: Sequence[Transfer], seconds: float
) -> list[QuotaUse]:
    """Return the mean rate of requests to each volume in a cloud, with the quota of the store.

    Args:
        reads: amounts that loaders read from volumes.
        writes: amounts that savers write to volumes.
        seconds: duration of the step.
    """
    remedy = (
        "use larger blocks or shards, or fewer machines; a store adapts to the load, but refuses "
        "some requests at first, and workers repeat these requests"
    )
    return [
        QuotaUse(
            f"{kind} requests per second by {transfer.operator}",
            transfer.requests / max(seconds, 1e-9),
            RATES[transfer.protocol][kind],
            _PLACES[transfer.protocol],
            remedy,
        )
        for kind, transfers in (("GET", reads), ("PUT", writes))
        for transfer in transfers
        if transfer.protocol in RATES and transfer.requests
    ]
