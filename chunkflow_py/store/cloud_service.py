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
RENEW_S = 3.0  # least seconds between two reloads
# Error codes about the credentials themselves, not about their permissions. Such an error may be
# transient, because credentials are replaced during a long run.
_OF_CREDENTIALS = re.compile(r"Expired|Token|AccessKeyId|Signature|TimeTooSkewed")


def patiently(
    understand: Callable[[Exception], Failure], renew: Callable[[], None]
) -> Callable[[Exception], Failure]:
    """Wrap *understand* for one call: retry refused credentials for `REFUSED_S`.

    Args:
        understand: classifies an exception.
        renew: reloads the credentials.
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
    """A bucket and the settings of its requests.

    Attributes:
        kind: ``s3`` or ``gs``.
        bucket: name of the bucket.
        prefix: prefix of all keys, without slashes at its ends.
        url: address of bucket and prefix.
        root: address of the bucket.
        anonymous: whether no credentials are sent.
        make: creates an obstore client from client options and retry options.
        headers: headers of every request.
        endpoint: address that is used instead of the cloud's own, if any.
        clients: existing clients, which are reused because they have open connections.
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
        """Return a client with the deadlines of a retry policy, created at its first use.

        Args:
            retry_policy: deadlines of the client's calls.
            is_upload: whether it is for large uploads; it then waits for a response until all data
                have been sent, and retries each part by itself.
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
        """Raise an error before writing to Google without credentials.

        Raises:
            VolumeError: there are no credentials.
        """
        if self.kind == "gs" and self.anonymous:
            msg = f"cannot write {self.url} without credentials; leave out --use-https"
            raise VolumeError(msg)

    def error(self, what: str, failed: CallFailedError) -> VolumeError:
        """Return the error for a call that failed.

        Args:
            what: action and URL, such as ``read gs://bucket/key``.
            failed: the last failure and the number of tries.
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
            remedy = "it is not public: use credentials (--use-credential)"
        elif is_refused:
            remedy = (
                f"check that your credentials may use the bucket {self.bucket!r} "
                "(--use-https reads public data without any, --requester-pays pays for requests)"
            )
        elif status == 301 or code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
            remedy = f"set AWS_REGION to the region of the bucket {self.bucket!r}"
        elif failed.failure.is_unreachable:
            remedy = f"check the network and the address {self.address}"
        elif failed.failure.is_transient:
            remedy = "try again later, or with fewer workers"
        else:
            remedy = f"check the settings of {self.root}"
        return kind(f"cannot {what}: {failed}; {remedy}")

    @property
    def identity(self) -> tuple[str | None, str]:
        """Endpoint and URL of the bucket, which identify it."""
        return self.endpoint, self.root

    @property
    def address(self) -> str:
        """Address that a user should check if there is no response."""
        return without_secrets(self.endpoint) if self.endpoint else self.root


def no_token() -> dict[str, Any]:
    """Return placeholder credentials; without any, obstore would look for its own."""
    return {"token": "none", "expires_at": None}
