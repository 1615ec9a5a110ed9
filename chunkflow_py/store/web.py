"""Objects of a web server: reading only, by urllib3.

obstore's client refuses answers that do not tell their length, as servers send that compress on the
way, Google's among them; so this one is built on what boto3 has installed already. A
``Content-Encoding: gzip`` is undone, as browsers do: whether an object is stored in that way, or
was packed for the journey, cannot be told.
"""

from __future__ import annotations

import gzip
import zlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from chunkflow_py.errors import VolumeError, VolumeRefusedError, VolumeUnreachableError
from chunkflow_py.store.address import check_host
from chunkflow_py.store.keys import check_key
from chunkflow_py.store.retry import TRANSIENT_STATUS, CallFailedError, Failure, retried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.store.retry import Manners

CONNECTIONS = 32
_ABSENT = (404, 410)
_AFTER_THE_END = 416


class WebStore:
    """A web server as a store; see `chunkflow_py.store.protocol.Store`."""

    is_local = False
    connections = CONNECTIONS

    def __init__(self, scheme: str, path: str, manners: Manners) -> None:
        """Take an address apart; nothing is sent yet.

        Raises:
            VolumeError: no host is named, or the address is that of one signed object.
        """
        parts = urlsplit(check_host(f"{scheme}://{path}".rstrip("/")))
        host = parts.netloc.rpartition("@")[2]
        self.url = f"{scheme}://{host}{parts.path}"
        if parts.query or parts.fragment:
            msg = f"cannot open {self.url} with what follows ? or # in its address; leave that out"
            raise VolumeError(msg)
        self._root = f"{scheme}://{host}"
        self._manners = manners
        self._headers = {"User-Agent": "chunkflow_py"}
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        options: dict[str, Any] = {
            "maxsize": CONNECTIONS,
            "block": True,
            "timeout": urllib3.Timeout(connect=manners.connect_s, read=manners.stall_s),
            # Redirects are followed; what fails is tried again here, not there.
            "retries": urllib3.Retry(connect=0, read=0, status=0, other=0, redirect=5),
        }
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        if proxy:
            check_host(proxy, f"{scheme}_proxy")
            self._pool: urllib3.PoolManager = urllib3.ProxyManager(proxy, **options)
        else:
            self._pool = urllib3.PoolManager(**options)

    def _ask(self, method: str, key: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        """Return status, headers and body of an answer that is no error; 404 and 416 are none."""
        address = f"{self.url}/{quote(check_key(key, self.url))}"

        def call() -> tuple[int, Any, bytes]:
            answer = self._pool.request(
                method, address, headers=self._headers | headers, decode_content=False
            )
            body = answer.data
            if answer.status >= 300 and answer.status not in (*_ABSENT, _AFTER_THE_END):
                raise _RefusedError(answer.status, answer.reason)
            if answer.headers.get("Content-Encoding") == "gzip" and answer.status == 200:
                body = gzip.decompress(body)
            return answer.status, answer.headers, body

        try:
            return retried(call, _understand, self._manners, self._root)
        except CallFailedError as failed:
            self._fail(key, failed)

    def _fail(self, key: str, failed: CallFailedError) -> NoReturn:
        failure = failed.failure
        kind = VolumeUnreachableError if failure.is_transient else VolumeError
        if failure.status in (401, 403):
            kind = VolumeRefusedError
            remedy = "this server wants credentials; open it as s3:// or gs://"
        elif failure.is_unreachable:
            remedy = f"check the network and the address {self._root}"
        elif failure.is_transient:
            remedy = "try again later, or with fewer workers"
        else:
            remedy = "check the address"
        msg = f"cannot read {self.url}/{key}: {failed}; {remedy}"
        raise kind(msg) from None

    def get(self, key: str) -> bytes | None:
        """Return the whole object, or ``None`` if there is none."""
        status, _, body = self._ask("GET", key, {"Accept-Encoding": "gzip"})
        return None if status in _ABSENT else body

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes *start* to *stop*, or the last ``-start`` bytes."""
        if 0 <= stop <= start:
            return None if self.size(key) is None else b""
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{stop - 1}"
        headers = {"Range": wanted, "Accept-Encoding": "identity"}
        status, _, body = self._ask("GET", key, headers)
        if status in _ABSENT:
            return None
        if status == _AFTER_THE_END:
            return b""
        # A server that knows no ranges sends all.
        return body if status == 206 else body[start : stop if start >= 0 else None]

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if there is none."""
        status, headers, _ = self._ask("HEAD", key, {"Accept-Encoding": "identity"})
        if status in _ABSENT:
            return None
        if "Content-Length" in headers and "Content-Encoding" not in headers:
            return int(headers["Content-Length"])
        whole = self.get(key)
        return None if whole is None else len(whole)

    def _refuse(self, verb: str) -> NoReturn:
        msg = f"cannot {verb} {self.url}: web servers can only be read; use s3:// or gs://"
        raise VolumeError(msg)

    def put(
        self,
        key: str,  # noqa: ARG002 refused whatever it is
        data: bytes | memoryview,  # noqa: ARG002
        *,
        content_type: str | None = None,  # noqa: ARG002
        content_encoding: str | None = None,  # noqa: ARG002
        cache_control: str | None = None,  # noqa: ARG002
    ) -> None:
        """Refuse."""
        self._refuse("write")

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:  # noqa: ARG002
        """Refuse."""
        self._refuse("write")

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:  # noqa: ARG002
        """Refuse."""
        self._refuse("write")

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse("write")

    def list(self, prefix: str = "") -> Iterator[str]:  # noqa: ARG002
        """Refuse: a web server has no list of what it holds."""
        self._refuse("list")


class _RefusedError(Exception):
    """The server answers that it will not."""

    def __init__(self, status: int, reason: str | None) -> None:
        """Keep what it says."""
        self.status, self.reason = status, reason or ""


def _understand(error: Exception) -> Failure:
    if isinstance(error, _RefusedError):
        words = f"{error.status} {error.reason}".strip()
        return Failure(words, error.status, is_transient=error.status in TRANSIENT_STATUS)
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return Failure("the answer was cut short", is_transient=True)
    if not isinstance(error, HTTPError):
        raise error
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, SSLError):
        return Failure("no secure connection could be made: its certificate is not accepted")
    if isinstance(error, NewConnectionError | ConnectTimeoutError):
        return Failure("no connection could be made", is_transient=True, is_unreachable=True)
    if isinstance(error, ReadTimeoutError):
        return Failure("no answer in time", is_transient=True)
    return Failure("the connection broke", is_transient=True)
