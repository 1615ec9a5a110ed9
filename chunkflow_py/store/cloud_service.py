"""`Service`: the clients, credentials and error messages of a bucket in any cloud."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import (
    VolumeError,
    VolumeNotFoundError,
    VolumeRefusedError,
    VolumeUnreachableError,
)
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ObjectStore

    from chunkflow_py.store.network_retry import CallFailedError, Failure, RetryPolicy

REFUSED_S = 60.0  # seconds for which refused credentials are reloaded and tried again
RENEW_S = 3.0  # minimum seconds between two reloads
# Error codes about the credentials themselves, not about their permissions. Such an error may be
# transient, because credentials are replaced during a long run.
_OF_CREDENTIALS = re.compile(r"Expired|Token|AccessKeyId|Signature|TimeTooSkewed")


def patiently(
    understand: Callable[[Exception], Failure], renew: Callable[[], None]
) -> Callable[[Exception], Failure]:
    """Return a variant of *understand* that treats refused credentials as transient.

    Credentials may be replaced during a long run. Each time the cloud refuses the credentials, the
    variant calls *renew*. For `REFUSED_S` seconds after the first refusal, the variant classifies
    refusals as transient, so that the call is tried again. Create a variant for each call, because
    it remembers the first refusal.

    Args:
        understand: function that classifies the exception of a failed try.
        renew: function that reloads the credentials.
    """
    since: list[float] = []

    def understood(error: Exception) -> Failure:
        failure = understand(error)
        if failure.is_transient or not _OF_CREDENTIALS.search(failure.code):
            return failure
        since.append(time.monotonic())
        renew()
        return replace(failure, is_transient=since[-1] - since[0] < REFUSED_S)

    return understood


@dataclass(frozen=True)
class Service:
    """A bucket, and the settings of all requests to the bucket.

    Attributes:
        kind: ``s3`` or ``gs``.
        bucket: name of the bucket.
        prefix: prefix of all keys, without slashes at its ends.
        url: address of the bucket, followed by the prefix.
        root: address of the bucket.
        anonymous: whether requests are sent without credentials.
        make: function that creates an obstore client from client options and retry options.
        headers: headers of every request.
        endpoint: address of a server that replaces the cloud's own server, or ``None``.
        clients: clients created so far; they are reused because they have open connections.
    """

    kind: str
    bucket: str
    prefix: str
    url: str
    root: str
    anonymous: bool
    make: Callable[[dict[str, Any], dict[str, Any]], ObjectStore]
    headers: dict[str, str] = field(repr=False)
    endpoint: str | None = None
    clients: dict[Any, ObjectStore] = field(default_factory=dict, repr=False, compare=False)

    def client(self, retry_policy: RetryPolicy, *, is_upload: bool = False) -> ObjectStore:
        """Return the obstore client for *retry_policy*; the first call creates the client.

        Args:
            retry_policy: deadlines of the client's calls.
            is_upload: whether the client is for large uploads. A server responds only after it has
                received all data, so the client may wait for the response until the time limit of
                one try. The client also retries each part of an upload separately.
        """
        if (retry_policy, is_upload) in self.clients:
            return self.clients[retry_policy, is_upload]
        options: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=retry_policy.connect_s),
            "read_timeout": timedelta(
                seconds=retry_policy.longest_s if is_upload else retry_policy.stall_s
            ),
            "timeout": timedelta(seconds=retry_policy.longest_s),
            "user_agent": "chunkflow_py",
        }
        if self.headers:
            options["default_headers"] = self.headers
        retries = {
            "max_retries": 3 if is_upload else 0,
            "retry_timeout": timedelta(seconds=retry_policy.budget_s),
        }
        return self.clients.setdefault((retry_policy, is_upload), self.make(options, retries))

    def check_writable(self) -> None:
        """Check that requests have the credentials that writing to a Google bucket requires.

        Raises:
            VolumeError: the bucket is a Google bucket, and requests are sent without credentials.
        """
        if self.kind == "gs" and self.anonymous:
            msg = f"cannot write to {self.url} without credentials; remove --use-https"
            raise VolumeError(msg)

    def error(self, what: str, failed: CallFailedError) -> VolumeError:
        """Return the exception to raise for a failed call, with a remedy in its message.

        Args:
            what: action and URL of the call, such as ``read gs://bucket/key``.
            failed: error that contains the failure of the last try and the number of tries.
        """
        status, code = failed.failure.status, failed.failure.code
        kind = VolumeUnreachableError if failed.failure.is_transient else VolumeError
        is_refused = status in (401, 403) or bool(_OF_CREDENTIALS.search(code))
        if is_refused:
            kind = VolumeRefusedError
        if code == "NoSuchBucket" or status == 404:
            kind = VolumeNotFoundError
            remedy = f"check the name of the bucket {self.bucket!r}, or create it"
        elif is_refused and self.anonymous:
            remedy = f"the bucket {self.bucket!r} is not public: use --use-credential"
        elif is_refused:
            remedy = (
                f"check that your credentials may use the bucket {self.bucket!r} "
                "(--use-https reads public data without credentials; --requester-pays bills the "
                "requests to you)"
            )
        elif status == 301 or code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
            remedy = f"set AWS_REGION to the region of the bucket {self.bucket!r}"
        elif failed.failure.is_unreachable:
            remedy = f"check the network and the address {self.address}"
        elif failed.failure.is_transient:
            remedy = "try again later, or with fewer workers"
        else:
            remedy = f"check the address and the settings of the bucket {self.root}"
        return kind(f"cannot {what}: {failed}; {remedy}")

    @property
    def identity(self) -> tuple[str | None, str]:
        """Endpoint and URL, which together identify the bucket."""
        return self.endpoint, self.root

    @property
    def address(self) -> str:
        """Address that a user should check if the server does not respond."""
        return without_secrets(self.endpoint) if self.endpoint else self.root


def no_token() -> dict[str, Any]:
    """Return placeholder credentials, so that obstore does not search for credentials itself."""
    return {"token": "none", "expires_at": None}
