"""Client of Amazon CloudWatch that sends the times of tasks as metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError, VolumeRefusedError, needs_extra
from chunkflow_py.store.cloudvolume_secrets import FOLDER, aws_session

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

METRICS_AT_ONCE = 1000  # metrics per request, a limit of the service


class CloudWatch:
    """Sends the times of operators, in seconds, to Amazon CloudWatch.

    Args:
        log_name: namespace of the metrics.
    """

    def __init__(self, log_name: str) -> None:
        """Connect to CloudWatch with the AWS region and credentials of this machine.

        Raises:
            OptionError: the region or the credentials are not set.
            MissingExtraError: boto3 is not installed.
        """
        with needs_extra("cloud", "cloud-watch"):
            import botocore.config
            from botocore.exceptions import BotoCoreError
        self.log_name = log_name
        config = botocore.config.Config(
            connect_timeout=5,
            read_timeout=10,
            retries={"mode": "standard", "total_max_attempts": 4},
        )
        try:
            session = aws_session("cloud-watch")
            self._client = session.client("cloudwatch", config=config)
            credentials = session.get_credentials()
        except BotoCoreError as error:
            msg = f"cloud-watch: {error}; set AWS_DEFAULT_REGION, for example to us-east-1"
            raise OptionError(msg) from error
        if credentials is None:
            msg = (
                f"cloud-watch: no credentials in the environment, in ~/.aws or in {FOLDER}; set "
                "AWS_ACCESS_KEY_ID or run aws configure"
            )
            raise OptionError(msg)

    def put(self, seconds: Mapping[str, float], compute_device: str) -> None:
        """Send the seconds of each operator; if CloudWatch cannot be reached, only log a warning.

        Args:
            seconds: seconds by operator label, which becomes the name of the metric.
            compute_device: value of the dimension ``compute_device`` of the metrics.

        Raises:
            VolumeRefusedError: the credentials do not allow sending metrics.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        dimension = {"Name": "compute_device", "Value": compute_device[:1024] or "unknown"}
        metrics: list[Any] = [
            {"MetricName": label, "Dimensions": [dimension], "Value": value, "Unit": "Seconds"}
            for label, value in seconds.items()
        ]
        try:
            for start in range(0, len(metrics), METRICS_AT_ONCE):
                part = metrics[start : start + METRICS_AT_ONCE]
                self._client.put_metric_data(Namespace=self.log_name, MetricData=part)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "unknown")
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (401, 403):
                msg = (
                    f"CloudWatch refuses the metrics of {self.log_name}: {code}; allow "
                    "cloudwatch:PutMetricData, or leave cloud-watch out"
                )
                raise VolumeRefusedError(msg) from error
            logger.warning("CloudWatch did not accept the metrics: %s", code)
        except BotoCoreError as error:
            logger.warning("CloudWatch did not accept the metrics: %s", error)

    def close(self) -> None:
        """Close the connections to CloudWatch."""
        self._client.close()
