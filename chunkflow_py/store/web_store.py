"""A read-only store on a web server, built on urllib3.

Servers that compress on the fly, such as Google's, send responses without a length. obstore's
client refuses such responses; urllib3, a dependency of boto3, accepts them. ``Content-Encoding:
gzip`` is decoded, as in browsers: a client cannot distinguish objects that are stored compressed
from objects that are compressed for the transfer.

Servers are not trusted. The size of a response is limited before and after decompression. The time
until the whole response has arrived, headers included, is limited. A redirect must not lead to an
address that only this client can reach; see `chunkflow_py.store.network_reach`. The IP address of
the connection is checked, because the owner of a host name can change its IP address.
"""

from __future__ import annotations

import io
import time
import zlib
from base64 import b64encode
from contextlib import suppress
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError, VolumeRefusedError, VolumeUnreachableError
from chunkflow_py.store.network_reach import is_loopback, may_send_on, reach_of
from chunkflow_py.store.network_retry import TRANSIENT_STATUS, CallFailedError, Failure, retried
from chunkflow_py.store.store_address import check_host, check_key, public_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.store.network_reach import Reach
    from chunkflow_py.store.network_retry import RetryPolicy

CONNECTIONS = 32
LARGEST_BYTES = 1 << 31  # of a response, if the caller gives no limit
REDIRECTS = 5  # followed one after the other
_SENT_ON = (301, 302, 303, 307, 308)
_PIECE_BYTES = 1 << 20
_DRAINED_BYTES = 1 << 16  # of an unused response that are read to keep its connection open
_ABSENT = (404, 410)
_AFTER_THE_END = 416


class WebStore:
    """A read-only store on a web server; see `chunkflow_py.store.store_protocol.Store`."""

    is_local = False
    connections = CONNECTIONS
    reach = staticmethod(reach_of)

    def __init__(self, scheme: str, path: str, retry_policy: RetryPolicy) -> None:
        """Parse the address, without sending a request.

        Raises:
            VolumeError: the address has no host, or the address has a query (as in a signed URL)
                or a fragment.
        """
        parts = urlsplit(check_host(f"{scheme}://{path}".rstrip("/")))
        host = parts.netloc.rpartition("@")[2]
        self.url = f"{scheme}://{host}{parts.path}"
        if parts.query or parts.fragment:
            msg = f"cannot open {self.url} with a query (?…) or a fragment (#…); remove that part"
            raise VolumeError(msg)
        self._root = f"{scheme}://{host}"
        self._retry_policy = retry_policy
        self._headers = {"User-Agent": "chunkflow_py"}
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        options: dict[str, Any] = {
            "maxsize": CONNECTIONS,
            "block": True,
            "timeout": urllib3.Timeout(connect=retry_policy.connect_s, read=retry_policy.stall_s),
            # This class follows redirects and retries failures, not urllib3.
            "retries": urllib3.Retry(connect=0, read=0, status=0, other=0, redirect=0),
        }
        self._origin: Reach | None = None  # of the server, after the first connection
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        if proxy:
            check_host(proxy, f"{scheme}_proxy")

        def pool(check: Callable[[Reach], None]) -> urllib3.PoolManager:
            def connected(connection: socket.socket) -> None:
                if not proxy:  # only a proxy would know the address
                    check(self.reach(connection.getpeername()[0]))

            made = (
                urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
            )
            made.pool_classes_by_scheme = _pools(retry_policy, connected)
            return made

        self._pool = pool(self._set_origin)
        self._pool_sent_on = pool(self._check_sent_on)

    def _set_origin(self, reach: Reach) -> None:
        self._origin = reach

    def _check_sent_on(self, reach: Reach) -> None:
        if not may_send_on(self._origin, reach):
            msg = (
                f"the server redirects to a {reach} address, which only this machine or network "
                "can reach"
            )
            raise _UnfitError(msg)

    def _ask(
        self,
        method: str,
        key: str,
        headers: dict[str, str],
        most: int | None = None,
        enough: int | None = None,
    ) -> tuple[int, Any, bytes]:
        """Send a request; return the status (possibly 404, 410 or 416), headers and body.

        Args:
            method: HTTP method.
            key: key of the object.
            headers: headers of the request.
            most: limit of the size of the decoded body, bytes.
            enough: number of bytes of the body that the caller needs. If the status is 200, reading
                may stop after these bytes.
        """
        address = f"{self.url}/{quote(check_key(key, self.url))}"

        def call() -> tuple[int, Any, bytes]:
            answer = self._answer(method, address, self._headers | headers)
            try:
                body = _read(answer, method, most or LARGEST_BYTES, enough)
            except BaseException:
                answer.close()
                raise
            finally:
                answer.release_conn()
            return answer.status, answer.headers, body

        try:
            return retried(call, _understand, self._retry_policy, self._root)
        except CallFailedError as failed:
            self._fail(key, failed)

    def _answer(
        self, method: str, address: str, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and follow redirects; return the final response, with its body unread."""
        pool = self._pool
        for _ in range(REDIRECTS + 1):
            answer = pool.request(
                method, address, headers=headers, redirect=False, preload_content=False,
                decode_content=False,
            )  # fmt: skip
            location = answer.headers.get("Location")
            if answer.status not in _SENT_ON or not location:
                return answer
            answer.close()
            answer.release_conn()
            following = self._following(address, location)
            if not _is_same_server(f"{self._root}/", following):
                pool = self._pool_sent_on
                headers = {name: headers[name] for name in headers if name != "Authorization"}
            address = following
        msg = f"the server redirects more than {REDIRECTS} times"
        raise _UnfitError(msg)

    def _following(self, address: str, location: str) -> str:
        """Return the target of a redirect, after all checks that need no connection."""
        shown = public_line(location, 200)
        try:
            following = urljoin(address, location)
            urllib3.util.parse_url(following)
            parts = urlsplit(following)
            host = parts.hostname if parts.port != 0 else None  # raises for a port beyond 65535
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            msg = f"the server redirects to {shown!r}, which is not the address of a web server"
            raise _UnfitError(msg)
        if (urlsplit(address).scheme, parts.scheme) == ("https", "http"):
            msg = f"the server redirects from https to {shown!r}, which is not encrypted"
            raise _UnfitError(msg)
        if not _is_same_server(f"{self._root}/", following):
            # A host name is checked later, by the IP address of its connection.
            with suppress(ValueError):
                self._check_sent_on(self.reach("127.0.0.1" if is_loopback(host) else host))
        return following

    def _fail(self, key: str, failed: CallFailedError) -> NoReturn:
        failure = failed.failure
        kind = VolumeUnreachableError if failure.is_transient else VolumeError
        if failure.status in (401, 403):
            kind = VolumeRefusedError
            remedy = "this server requires credentials; use an s3:// or gs:// address instead"
        elif failure.is_unreachable:
            remedy = f"check the network and the address {self._root}"
        elif failure.is_transient:
            remedy = "try again later, or with fewer workers"
        else:
            remedy = "check the address"
        msg = f"cannot read {self.url}/{key}: {failed}; {remedy}"
        raise kind(msg) from None

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist."""
        status, _, body = self._ask("GET", key, {"Accept-Encoding": "gzip"}, most)
        return None if status in _ABSENT else body

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or its last ``-start`` bytes if *start* < 0."""
        if 0 <= stop <= start:
            return None if self.size(key) is None else b""
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{stop - 1}"
        headers = {"Range": wanted, "Accept-Encoding": "identity"}
        most, enough = (-start, None) if start < 0 else (stop - start, stop)
        # A server without ranges sends the whole object, which must be read to find its end.
        status, _, body = self._ask("GET", key, headers, most if enough else None, enough)
        if status in _ABSENT:
            return None
        if status == _AFTER_THE_END:
            return b""
        return body if status == 206 else body[start : stop if start >= 0 else None]

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""
        status, headers, _ = self._ask("HEAD", key, {"Accept-Encoding": "identity"})
        if status in _ABSENT:
            return None
        length = headers.get("Content-Length", "")
        if is_digits(length) and "Content-Encoding" not in headers:
            return int(length)
        whole = self.get(key)
        return None if whole is None else len(whole)

    def _refuse(self, action: str) -> NoReturn:
        msg = (
            f"cannot {action} {self.url}: a web server only allows reading single objects; use an "
            "s3:// or gs:// address"
        )
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
        """Raise a `VolumeError`: web servers are read-only."""
        self._refuse("write")

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:  # noqa: ARG002
        """Raise a `VolumeError`: web servers are read-only."""
        self._refuse("write")

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:  # noqa: ARG002
        """Raise a `VolumeError`: web servers are read-only."""
        self._refuse("write")

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Raise a `VolumeError`: web servers are read-only."""
        self._refuse("write")

    def list(self, prefix: str = "") -> Iterator[str]:  # noqa: ARG002
        """Raise a `VolumeError`: web servers do not list their content."""
        self._refuse("list")


class _RefusedError(Exception):
    """The server answers with an error status."""

    def __init__(self, status: int, reason: str | None) -> None:
        """Store status and reason of the response."""
        self.status, self.reason = status, reason or ""


class _UnfitError(Exception):
    """The response cannot be accepted, and another try would not help."""


def _is_same_server(one: str, other: str) -> bool:
    """Return whether two addresses have the same scheme, host and port."""
    a, b = urlsplit(one), urlsplit(other)
    port = {"http": 80, "https": 443}
    return (a.scheme, a.hostname, a.port or port[a.scheme]) == (
        b.scheme, b.hostname, b.port or port.get(b.scheme)
    )  # fmt: skip


def _read(answer: urllib3.BaseHTTPResponse, method: str, most: int, enough: int | None) -> bytes:
    # The body of a response with the status 404, 410 or 416 is returned as b"".
    if answer.status < 300 and method != "HEAD":
        return _body(answer, most, enough if answer.status == 200 else None)
    if len(answer.read(_DRAINED_BYTES)) == _DRAINED_BYTES:
        answer.close()
    if answer.status >= 300 and answer.status not in (*_ABSENT, _AFTER_THE_END):
        raise _RefusedError(answer.status, answer.reason)
    return b""


def _body(answer: urllib3.BaseHTTPResponse, most: int, enough: int | None) -> bytes:
    # Reading stops once *enough* bytes are read. Without *enough*, *most* limits the length.
    pieces: Iterable[bytes] = iter(lambda: answer.read(_PIECE_BYTES), b"")
    if answer.headers.get("Content-Encoding") == "gzip" and answer.status == 200:
        pieces = _unpacked(pieces)
    elif enough is None and (answer.length_remaining or 0) > most:
        msg = f"the response has {answer.length_remaining} bytes, more than the allowed {most}"
        raise _UnfitError(msg)
    kept, size = [], 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if enough is not None and size >= enough:
            answer.close()
            break
        if enough is None and size > most:
            msg = f"the response has more than the {most} bytes that are allowed"
            raise _UnfitError(msg)
    return b"".join(kept)


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress gzipped *pieces* into pieces of limited size."""
    unpack = None
    for piece in pieces:
        rest = piece if unpack else piece.lstrip(b"\0")  # zeros may follow a gzip member
        while rest:
            unpack = unpack or zlib.decompressobj(31)
            yield unpack.decompress(rest, _PIECE_BYTES)
            rest = unpack.unconsumed_tail
            if unpack.eof:
                rest, unpack = unpack.unused_data.lstrip(b"\0"), None
    if unpack is not None:
        raise EOFError


class _Until(io.RawIOBase):
    """Reads from a socket; raises a `TimeoutError` after a deadline."""

    def __init__(self, raw: Any, connection: Any, stall_s: float, end: float) -> None:
        self._raw, self._connection = raw, connection
        self._stall_s, self._end = stall_s, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            msg = "the answer takes too long"
            raise TimeoutError(msg)
        self._connection.settimeout(min(left, self._stall_s))
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


def _pools(retry_policy: RetryPolicy, connected: Callable[[socket.socket], None]) -> dict[str, Any]:
    """Return urllib3's pool classes by scheme, with a time limit for each response.

    Args:
        retry_policy: policy with the time limit of a response.
        connected: function that is called with each new connection; it raises an error to refuse
            the connection.
    """

    class Answer(HTTPResponse):
        def __init__(self, connection: Any, *args: Any, **options: Any) -> None:
            super().__init__(connection, *args, **options)
            end = time.monotonic() + retry_policy.longest_s
            raw = _Until(self.fp.detach(), connection, retry_policy.stall_s, end)
            self.fp = io.BufferedReader(raw)

    class Checked:
        def _new_conn(self) -> socket.socket:
            made: socket.socket = super()._new_conn()  # type: ignore[misc]
            try:
                connected(made)
            except BaseException:
                made.close()
                raise
            return made

    class Plain(Checked, HTTPConnection):
        response_class = Answer

    class Secure(Checked, HTTPSConnection):
        response_class = Answer

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def _understand(error: Exception) -> Failure:
    if isinstance(error, _UnfitError):
        return Failure(str(error))
    if isinstance(error, _RefusedError):
        message = f"{error.status} {error.reason}".strip()
        return Failure(message, error.status, is_transient=error.status in TRANSIENT_STATUS)
    if isinstance(error, EOFError | zlib.error):
        return Failure("the answer was cut short", is_transient=True)
    if not isinstance(error, HTTPError):
        raise error
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, SSLError):
        return Failure("no secure connection could be made: the certificate is not accepted")
    if isinstance(error, NewConnectionError | ConnectTimeoutError):
        return Failure("no connection could be made", is_transient=True, is_unreachable=True)
    if isinstance(error, ReadTimeoutError):
        return Failure("no answer in time", is_transient=True)
    return Failure("the connection broke", is_transient=True)
