"""A client of Amazon SQS that retries requests, enforces deadlines and reloads credentials.

Each try runs in a thread that the caller can abandon. Therefore, the caller continues at the
deadline even if the response arrives very slowly or a name server does not respond. If the service
refuses the credentials, the client reloads the credentials and tries again for up to a minute,
because the credentials of a machine's IAM role are replaced during a long run.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import QueueError, QueueUnreachableError, needs_extra
from chunkflow_py.queue.daemon_threads import DaemonThreads
from chunkflow_py.store.cloudvolume_secrets import FOLDER, aws_session
from chunkflow_py.store.network_retry import (
    TRANSIENT_STATUS,
    CallFailedError,
    Failure,
    RetryPolicy,
    retried,
)
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from concurrent.futures import Future

RETRY_POLICY = RetryPolicy(
    connect_s=5, stall_s=10, budget_s=150, unreachable_s=150, longest_wait_s=8
)
REFUSED_S = 60.0  # time for which refused credentials are reloaded
RELOAD_S = 3.0  # shortest time between two reloads
LONGEST_POLL_S = 20
CONNECTIONS = 32

# DeletedRecently: for a minute after a queue was deleted, its name cannot be used again.
_TRANSIENT_CODE = re.compile(
    r"Throttl|OverLimit|TooManyRequests|SlowDown|ServiceUnavailable|Internal|DeletedRecently"
)
_REFUSED_CODE = re.compile(r"Token|AccessDenied|AccessKey|Signature|UnrecognizedClient|Credential")


class SqsRefusedError(QueueError):
    """The service refuses a request, and would refuse the same request again.

    Attributes:
        code: error code of the service, such as ``ReceiptHandleIsInvalid``.
    """

    def __init__(self, message: str, code: str) -> None:
        """Create the error.

        Args:
            message: text of the error, for the user.
            code: error code of the service.
        """
        super().__init__(message)
        self.code = code


class SqsClient:
    """Sends requests to SQS; safe to call from several threads.

    Args:
        what: subject of error messages, such as ``queue 'affinity'``.
        endpoint: URL of the service; with ``None``, boto3 chooses the URL.
        region: AWS region of the service; with ``None``, boto3 chooses the region.
    """

    def __init__(self, what: str, endpoint: str | None = None, region: str | None = None) -> None:
        """Create the client; boto3 finds the region and the credentials.

        Raises:
            QueueError: no region is set, or boto3 rejects the endpoint or the configuration.
            MissingExtraError: boto3 is not installed.
        """
        self._what, self._endpoint, self._region = what, endpoint, region
        self._lock = threading.Lock()
        self._reloaded_at = -RELOAD_S
        with needs_extra("sqs", what):
            import botocore.config
        self._config = botocore.config.Config(
            # `ask` retries, with one budget for all tries.
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=RETRY_POLICY.connect_s,
            read_timeout=LONGEST_POLL_S + RETRY_POLICY.stall_s,
            max_pool_connections=CONNECTIONS,
            # These two take a quarter of the CPU time of a request.
            parameter_validation=False,
            disable_request_compression=True,
            user_agent="chunkflow_py",
            tcp_keepalive=True,
        )
        self._client = self._make_client()
        self.region: str = self._client.meta.region_name
        self._where = without_secrets(self._client.meta.endpoint_url)
        self._threads = DaemonThreads(CONNECTIONS, "sqs")

    def _make_client(self) -> Any:
        from botocore.exceptions import BotoCoreError, NoRegionError

        try:
            # A new session, as the default session never reloads its credentials.
            client = aws_session(self._what, extra="sqs").client(
                "sqs",
                config=self._config,
                endpoint_url=self._endpoint,
                region_name=self._region,
            )
        except NoRegionError as error:
            msg = (
                f"{self._what}: no region is set in the environment, in ~/.aws or in {FOLDER}; "
                "set AWS_DEFAULT_REGION, for example to us-east-1"
            )
            raise QueueError(msg) from error
        except (BotoCoreError, ValueError) as error:
            msg = f"{self._what} cannot be reached: {error}"
            raise QueueError(msg) from error
        client.meta.events.register("before-parse.sqs", _check_whole)
        return client

    def ask(
        self,
        action: str,
        *,
        wait_s: float = 0.0,
        budget_s: float = RETRY_POLICY.budget_s,
        retries_credentials: bool = True,
        **request: Any,
    ) -> dict[str, Any]:
        """Send one request, retry after transient failures, and return the response.

        Args:
            action: name of the method of boto3's client.
            wait_s: time in seconds for which the service may delay its response (long poll).
            budget_s: time for all tries together, in seconds; the last try may end later, by up
                to ``min(10, 2 * budget_s) + wait_s``.
            retries_credentials: whether to reload refused credentials and try again.
            **request: arguments of the method.

        Raises:
            QueueUnreachableError: all tries failed, but a later request may succeed.
            SqsRefusedError: the service refuses the request.
            QueueError: boto3 finds no credentials.
        """
        policy = RETRY_POLICY
        if budget_s < policy.budget_s:
            policy = replace(
                policy,
                stall_s=min(policy.stall_s, 2 * budget_s),
                budget_s=budget_s,
                unreachable_s=budget_s,
            )
        refused_at: list[float] = []

        def classify(error: Exception) -> Failure:
            failure = _classify(error)
            if failure.status in (401, 403) and not failure.is_transient:
                refused_at.append(time.monotonic())
                may_pass = retries_credentials and refused_at[-1] - refused_at[0] < REFUSED_S
                self._reload_credentials()
                return replace(failure, is_transient=may_pass)
            return failure

        limit_s = wait_s + policy.stall_s
        try:
            answer: dict[str, Any] = retried(
                partial(self._try_once, action, request, limit_s),
                classify,
                policy,
                self._where,
                silent_s=wait_s,
            )
        except CallFailedError as error:
            msg = f"{self._what}: {error}"
            if error.failure.status in (401, 403):
                msg += "; check the credentials and their permissions"
                raise SqsRefusedError(msg, error.failure.code) from error
            if error.failure.is_transient:
                raise QueueUnreachableError(msg) from error
            raise SqsRefusedError(msg, error.failure.code) from error
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._threads.close()
        self._client.close()

    def _try_once(self, action: str, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        future: Future[dict[str, Any]] = self._threads.submit(self._request, action, request)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()  # if no thread has begun the call
            raise

    def _request(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        # Look up the client now: another thread may have reloaded the credentials.
        answer: dict[str, Any] = getattr(self._client, action)(**request)
        return answer

    def _reload_credentials(self) -> None:
        """Make a new boto3 client, which reads the credentials; at most every `RELOAD_S` s."""
        with self._lock:
            if time.monotonic() - self._reloaded_at < RELOAD_S:
                return
            self._reloaded_at = time.monotonic()
            old_client, self._client = self._client, self._make_client()
            old_client.close()  # does not interrupt its requests under way


def _check_whole(response_dict: dict[str, Any], **_: object) -> None:
    """Raise an error if a response of the service is truncated or malformed.

    botocore would parse such a response as an empty response. An empty response to a batch would
    mean that all messages of the batch were sent.
    """
    from botocore.exceptions import IncompleteReadError

    body, headers = response_dict["body"], response_dict["headers"]
    announced = int(headers.get("content-length") or len(body))
    is_cut = len(body) != announced and "content-encoding" not in headers
    # A quote within the text of a message would be escaped by a backslash.
    is_error = not body.rstrip().endswith(b"}") or b'"__type"' in body
    if is_cut or (body and response_dict["status_code"] == 200 and is_error):
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=announced)


def _classify(error: Exception) -> Failure:
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError

    if isinstance(error, boto.ClientError):
        details = error.response.get("Error", {})
        code, message = str(details.get("Code", "")), str(details.get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        may_pass = status in TRANSIENT_STATUS or status >= 500
        may_pass = may_pass or bool(_TRANSIENT_CODE.search(code))
        if _REFUSED_CODE.search(code) and not may_pass:
            status = 403  # SQS answers some of these with 400
        return Failure(f"{code}: {message[:300]}", status, code, is_transient=may_pass)
    if isinstance(error, TimeoutError):
        return Failure("no answer in time", is_transient=True)
    if isinstance(error, boto.NoCredentialsError):
        msg = (
            f"no credentials were found in the environment, in ~/.aws, in {FOLDER}, or at the "
            "metadata service of this machine; set AWS_ACCESS_KEY_ID or run aws configure"
        )
        raise QueueError(msg) from error
    if isinstance(error, boto.CredentialRetrievalError | boto.MetadataRetrievalError):
        return Failure(f"cannot obtain credentials: {error}", 403)
    if isinstance(error, boto.ConnectionError):
        return Failure(str(error), is_transient=True, is_unreachable=True)
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | ResponseParserError):
        return Failure(str(error), is_transient=True)
    if isinstance(error, boto.BotoCoreError):
        return Failure(str(error))
    raise error
