"""Requests to Amazon SQS: credentials, deadlines, and what is tried again.

Every try runs in a thread that can be given up, so that it ends by its deadline even if an answer
comes byte by byte or a name server is silent. Credentials that are refused are looked for anew, for
some time: those of a machine's role change under a long run.
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
    Manners,
    retried,
)
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from concurrent.futures import Future

MANNERS = Manners(connect_s=5, stall_s=10, budget_s=150, unreachable_s=150, longest_wait_s=8)
REFUSED_S = 60.0  # for which credentials that are refused are looked for anew
RENEW_S = 3.0  # between two looks
LONGEST_POLL_S = 20
CONNECTIONS = 32

# The last: for a minute after a queue was deleted none of its name can be made.
_PASSING = re.compile(
    r"Throttl|OverLimit|TooManyRequests|SlowDown|ServiceUnavailable|Internal|DeletedRecently"
)
_REFUSED = re.compile(r"Token|AccessDenied|AccessKey|Signature|UnrecognizedClient|Credential")


class SqsRefusedError(QueueError):
    """The service refuses a request, for good.

    Attributes:
        code: of the service, such as ``ReceiptHandleIsInvalid``.
    """

    def __init__(self, text: str, code: str) -> None:
        """Keep the code."""
        super().__init__(text)
        self.code = code


class SqsClient:
    """Asks SQS; safe to call from several threads.

    Args:
        what: is to be done, as the subject of errors, such as ``queue 'affinity'``.
        endpoint: address of the service; ``None``: where boto3 finds it.
        region: of the service; the same.
    """

    def __init__(self, what: str, endpoint: str | None = None, region: str | None = None) -> None:
        """Look for region and credentials.

        Raises:
            QueueError: they are not set.
            MissingExtraError: boto3 is not installed.
        """
        self._what, self._endpoint, self._region = what, endpoint, region
        self._lock = threading.Lock()
        self._renewed = -RENEW_S
        with needs_extra("sqs", what):
            import botocore.config
        self._config = botocore.config.Config(
            # Tries are made here, where they have one budget.
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=MANNERS.connect_s,
            read_timeout=LONGEST_POLL_S + MANNERS.stall_s,
            max_pool_connections=CONNECTIONS,
            # What a request costs in computing counts: these are a quarter of it.
            parameter_validation=False,
            disable_request_compression=True,
            user_agent="chunkflow_py",
            tcp_keepalive=True,
        )
        self._client = self._make()
        self.region: str = self._client.meta.region_name
        self._where = without_secrets(self._client.meta.endpoint_url)
        self._threads = DaemonThreads(CONNECTIONS, "sqs")

    def _make(self) -> Any:
        from botocore.exceptions import BotoCoreError, NoRegionError

        try:
            # A session of its own: the default one keeps the first credentials it has seen.
            client = aws_session(self._what, extra="sqs").client(
                "sqs",
                config=self._config,
                endpoint_url=self._endpoint,
                region_name=self._region,
            )
        except NoRegionError as error:
            msg = (
                f"{self._what}: no region is set in the environment, in ~/.aws or in {FOLDER}; "
                "set AWS_DEFAULT_REGION, such as us-east-1"
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
        budget_s: float = MANNERS.budget_s,
        patient: bool = True,
        **said: Any,
    ) -> dict[str, Any]:
        """Return the answer to one request.

        Args:
            action: name of the method of boto3's client.
            wait_s: for which the service may rightly be silent.
            budget_s: for all tries together, in seconds; the last one may go on for twice as long.
            patient: whether credentials that are refused may pass.
            **said: the request.

        Raises:
            QueueUnreachableError: it failed, and may succeed later.
            SqsRefusedError: the service refuses.
            QueueError: there are no credentials.
        """
        manners = MANNERS
        if budget_s < MANNERS.budget_s:
            shorter = {"budget_s": budget_s, "unreachable_s": budget_s}
            manners = replace(MANNERS, stall_s=min(MANNERS.stall_s, 2 * budget_s), **shorter)
        refused_at: list[float] = []

        def understand(error: Exception) -> Failure:
            failure = _understood(error)
            if failure.status in (401, 403) and not failure.is_transient:
                refused_at.append(time.monotonic())
                passes = patient and refused_at[-1] - refused_at[0] < REFUSED_S
                self._renew()
                return Failure(failure.words, failure.status, failure.code, is_transient=passes)
            return failure

        limit_s = wait_s + manners.stall_s
        try:
            answer: dict[str, Any] = retried(
                partial(self._once, action, said, limit_s),
                understand,
                manners,
                self._where,
                silent_s=wait_s,
            )
        except CallFailedError as error:
            msg = f"{self._what}: {error}"
            if error.failure.status in (401, 403):
                msg += "; check the credentials and what they allow"
                raise SqsRefusedError(msg, error.failure.code) from error
            if error.failure.is_transient:
                raise QueueUnreachableError(msg) from error
            raise SqsRefusedError(msg, error.failure.code) from error
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._threads.close()
        self._client.close()

    def _once(self, action: str, said: dict[str, Any], limit_s: float) -> dict[str, Any]:
        # Not a bound method of the client: it holds other credentials by the next try.
        future: Future[dict[str, Any]] = self._threads.submit(self._request, action, said)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()  # if no thread has begun on it
            raise

    def _request(self, action: str, said: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client, action)(**said)
        return answer

    def _renew(self) -> None:
        """Look for credentials anew, unless that was just done."""
        with self._lock:
            if time.monotonic() - self._renewed < RENEW_S:
                return
            self._renewed = time.monotonic()
            before, self._client = self._client, self._make()
            before.close()  # its requests under way go on


def _check_whole(response_dict: dict[str, Any], **_: object) -> None:
    """Refuse what is no answer: botocore takes for an empty one what is no JSON, or an error.

    An error with status 200 would otherwise say that all messages of a batch were sent.
    """
    from botocore.exceptions import IncompleteReadError

    body, headers = response_dict["body"], response_dict["headers"]
    said = int(headers.get("content-length") or len(body))
    cut = len(body) != said and "content-encoding" not in headers
    # A quote within a text would have a backslash before it.
    is_error = not body.rstrip().endswith(b"}") or b'"__type"' in body
    if cut or (body and response_dict["status_code"] == 200 and is_error):
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=said)


def _understood(error: Exception) -> Failure:
    """Return what an exception of botocore means; raise what is none."""
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError

    if isinstance(error, boto.ClientError):
        said = error.response.get("Error", {})
        code, words = str(said.get("Code", "")), str(said.get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        passes = status in TRANSIENT_STATUS or status >= 500 or bool(_PASSING.search(code))
        if _REFUSED.search(code) and not passes:
            status = 403  # SQS says 400 of some of them
        return Failure(f"{code}: {words[:300]}", status, code, is_transient=passes)
    if isinstance(error, TimeoutError):
        return Failure("no answer in time", is_transient=True)
    if isinstance(error, boto.NoCredentialsError):
        msg = (
            f"no credentials were found in the environment, in ~/.aws, in {FOLDER}, or from the "
            "metadata service of this machine; set AWS_ACCESS_KEY_ID or run aws configure"
        )
        raise QueueError(msg) from error
    if isinstance(error, boto.CredentialRetrievalError | boto.MetadataRetrievalError):
        return Failure(f"credentials cannot be had: {error}", 403)
    if isinstance(error, boto.ConnectionError):
        return Failure(str(error), is_transient=True, is_unreachable=True)
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | ResponseParserError):
        return Failure(str(error), is_transient=True)
    if isinstance(error, boto.BotoCoreError):
        return Failure(str(error))
    raise error
