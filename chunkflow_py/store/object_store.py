"""A store in a bucket of any cloud, built on obstore.

Every call has deadlines, transient failures are retried (`chunkflow_py.store.network_retry`), and
expired credentials are renewed. A truncated body is never returned. At most `CONNECTIONS` calls of
a store run at the same time.

A conditional write (`put_if_absent`, `update`) stores a random mark in the metadata of the object,
together with the marks of earlier writes. If the reply to a write is lost, the store looks for the
mark of this write in the stored object. If the mark is there, the write succeeded, even if other
writes have followed.

The store never decompresses an object, whatever its ``Content-Encoding``: `get` returns the bytes
as they are stored. A forked process must open its own stores.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

import obstore
from obstore.exceptions import BaseError

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.cloud_service import RENEW_S, patiently
from chunkflow_py.store.clouds import open_service
from chunkflow_py.store.network_retry import (
    TRANSIENT_STATUS,
    CallFailedError,
    Failure,
    RetryPolicy,
    retried,
)
from chunkflow_py.store.store_address import check_key, check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from obstore.store import ObjectStore

    from chunkflow_py.store.cloud_service import Service
    from chunkflow_py.store.store_protocol import Access

CONNECTIONS = 32
# Larger objects are uploaded in parts, several at a time; smaller ones in one request.
WHOLE_BYTES = 64 << 20
PART_BYTES = 16 << 20

_SEEN: set[tuple[str | None, str]] = set()  # buckets that are known to exist
_MARKS = "chunkflow-writes"  # metadata key; clouds store 2 KiB of metadata with an object
_MARKS_KEPT = 64
_NO_MARKS: tuple[str, ...] = ()
_NEW: Any = "create"
_TRANSIENT_CODES = ("RequestTimeout", "SlowDown", "InternalError", "ConditionalRequestConflict")
_STATUS = re.compile(r"Server returned non-2xx status code: ([0-9]{3}) ?([^:\n]*)")
# Responses of status 200 that are not valid: S3 may report an error after it has sent the status,
# and a proxy may send a page of its own.
_NOT_PARTIAL = "Received non-partial response"
_NO_ANSWER = re.compile(
    rf"missing from response|{_NOT_PARTIAL}|Got invalid \w+ response"
    r"|Server returned error response"
)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"kind: (\w+)")
_BREAKS = {
    "Connect": "no connection could be made",
    "Timeout": "no answer in time",
    "Interrupted": "the connection broke",
    "Request": "the connection broke",
    "Decode": "the answer was cut short",
    "Unknown": "the connection broke",
}


def understand(error: Exception) -> Failure:
    """Return the cause of a failed call to obstore, parsed from the text of *error*.

    Raises:
        Exception: *error* itself, if neither the network nor the answer of a server is the cause.
    """
    if not isinstance(error, BaseError | OSError):
        raise error
    text = str(error)
    if answer := _STATUS.search(text):
        status, code = int(answer[1]), _CODE.search(text, answer.end())
        name = code[1] if code else answer[2].strip()
        transient = status in TRANSIENT_STATUS or name in _TRANSIENT_CODES
        return Failure(f"{status} {name}".strip(), status, code[1] if code else "", transient)
    if _NO_ANSWER.search(text):
        code = _CODE.search(text)
        message = f"200 with the error {code[1]}" if code else "200 with an invalid response"
        return Failure(message, 200, code[1] if code else "", is_transient=True)
    if "redirect without LOCATION" in text:
        return Failure("301: the bucket is in another region", 301)
    if "HTTP error" in text:
        kinds = _KIND.findall(text)
        kind = kinds[0] if kinds else "Unknown"
        message = _BREAKS.get(kind, "the connection broke")
        return Failure(message, is_transient=True, is_unreachable=kind == "Connect")
    return Failure(_first_line(error))


def _first_line(error: Exception) -> str:
    # Addresses may contain a signature or a password.
    line = re.sub(r"\w+://\S+", "…", str(error).split("\n", 1)[0])
    return line[:200] or type(error).__name__


def _interruptible(call: Callable[[], Any]) -> Any:
    """Return the result of *call*; Ctrl-C interrupts the wait for the result.

    Python handles signals only in the main thread, and not while that thread is inside obstore.
    Therefore, another thread makes the call. That thread is not a daemon, so the process does not
    end before a write has finished.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 raised in the main thread
            done.set_exception(error)

    threading.Thread(target=run).start()
    return done.result()


class CloudStore:
    """A store in a bucket of a cloud; see `chunkflow_py.store.store_protocol.Store`."""

    is_local = False
    connections = CONNECTIONS

    def __init__(self, service: Service, retry_policy: RetryPolicy) -> None:
        """Create the client of a bucket.

        Args:
            service: the bucket, with its address and credentials.
            retry_policy: deadlines and retries of all calls.
        """
        self._service = service
        self._retry_policy = retry_policy
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        try:
            self._client = service.client(retry_policy)
        except (BaseError, ValueError) as error:
            msg = f"cannot open {service.url}: {_first_line(error)}; check this address"
            raise VolumeError(msg) from None
        self._patient: ObjectStore | None = None
        self._renewed = -RENEW_S
        self.url = service.url

    def _name(self, key: str) -> str:
        prefix = self._service.prefix
        return f"{prefix}/{check_key(key, self.url)}" if prefix else check_key(key, self.url)

    def _call(self, call: Callable[[], Any]) -> Any:
        return self._retried(call, understand)

    def _retried(self, call: Callable[[], Any], understand: Callable[[Exception], Failure]) -> Any:
        def one_try() -> Any:
            with self._slots:
                return _interruptible(call)

        if self._service.identity in _SEEN:
            understand = patiently(understand, self._renew)
        return retried(one_try, understand, self._retry_policy, self._service.root)

    def _renew(self) -> None:
        """Create a client with new credentials, but at most one client in `RENEW_S` seconds."""
        if time.monotonic() - self._renewed > RENEW_S:
            self._renewed = time.monotonic()
            self._service.clients.clear()
            self._client, self._patient = self._service.client(self._retry_policy), None

    def _fail(self, action: str, key: str, failed: CallFailedError) -> NoReturn:
        raise self._service.error(f"{action} {self.url}/{key}".rstrip("/"), failed) from None

    def _is_absent(self, failed: CallFailedError) -> bool:
        return failed.failure.status == 404 and failed.failure.code != "NoSuchBucket"

    # Reading

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist."""
        found = self._fetch(key, None, most)
        return None if found is None else found[0]

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or its last ``-start`` bytes if *start* < 0."""
        if 0 <= stop <= start:
            return None if self.size(key) is None else b""
        found = self._fetch(key, {"suffix": -start} if start < 0 else (start, stop))
        return None if found is None else found[0]

    def _fetch(self, key: str, part: Any, most: int | None = None) -> tuple[bytes, Any] | None:
        # The result is the content and the response, or None if the object does not exist.
        name = self._name(key)

        def call() -> tuple[bytes, Any]:
            options: Any = None if part is None else {"range": part}
            try:
                answer = obstore.get(self._client, name, options=options)
            except BaseError as error:
                # For the end of an empty object, some servers return the whole object.
                if _NOT_PARTIAL not in str(error) or obstore.head(self._client, name)["size"]:
                    raise
                return b"", None
            if most is not None and answer.meta["size"] > most:
                return b"", answer
            # This raises an error if the body is shorter than its header states.
            content = bytes(answer.bytes())
            if not answer.meta.get("e_tag"):  # every object has one
                msg = f"Got invalid GET response: {content[:1000].decode(errors='replace')}"
                raise OSError(msg)
            return content, answer

        try:
            found: tuple[bytes, Any] = self._call(call)
        except CallFailedError as failed:
            if self._is_absent(failed):
                _SEEN.add(self._service.identity)
                return None
            if failed.failure.status == 416:  # the range starts after the end
                return b"", None
            # No valid response header can describe the end of an empty object.
            if isinstance(part, dict) and failed.failure.status is None and self.size(key) == 0:
                return b"", None
            self._fail("read", key, failed)
        _SEEN.add(self._service.identity)
        if found[1] is not None:
            check_size(int(found[1].meta["size"]), most, key, self.url)
        return found

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""
        name = self._name(key)
        try:
            return int(self._call(lambda: obstore.head(self._client, name))["size"])
        except CallFailedError as failed:
            if not self._is_absent(failed):
                self._fail("read", key, failed)
        # A response to HEAD has no body that tells a missing bucket from a missing object.
        if self._service.identity not in _SEEN:
            self._fetch(key, (0, 1))
        return None

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*."""
        return (key for key, _ in self.sizes(prefix))

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the key and the length in bytes of each object whose key begins with *prefix*."""
        folder = "/".join(filter(None, (self._service.prefix, prefix.rpartition("/")[0])))
        start = f"{self._service.prefix}/" if self._service.prefix else ""
        last: list[str] = []

        def pages() -> Any:
            # After a failure, listing resumes after the last key: keys are in byte order.
            return obstore.list(self._client, folder or None, offset=last[0] if last else None)

        stream = pages()

        def page() -> Any:
            nonlocal stream
            try:
                return next(stream, None)
            except Exception:
                stream = pages()
                raise

        while True:
            try:
                entries = self._call(page)
            except CallFailedError as failed:
                self._fail("list", prefix, failed)
            if not entries:
                return
            last = [entries[-1]["path"]]
            for entry in entries:
                key = entry["path"].removeprefix(start)
                if key.startswith(prefix):
                    yield key, entry["size"]

    def subfolders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the URL of the store.

        One request is sent for each 1000 names.
        """
        folder = self._service.prefix
        try:
            listed = self._call(lambda: obstore.list_with_delimiter(self._client, folder or None))
        except CallFailedError as failed:
            self._fail("list", "", failed)
        start = f"{folder}/" if folder else ""
        for name in listed["common_prefixes"]:
            yield name.removeprefix(start).rstrip("/")

    # Writing

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        cache_control: str | None = None,
    ) -> None:
        """Write an object atomically."""
        name = self._name(key)
        self._service.check_writable()
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": content_encoding,
            "Cache-Control": cache_control,
        }
        attributes: Any = {header: value for header, value in headers.items() if value}
        in_parts = len(data) > WHOLE_BYTES

        def call() -> None:
            obstore.put(
                self._writer(len(data)),
                name,
                data,
                attributes=attributes,
                use_multipart=in_parts,
                chunk_size=PART_BYTES,
                max_concurrency=4,
            )

        try:
            self._call(call)
        except CallFailedError as failed:
            self._fail("write", key, failed)

    def _writer(self, size: int) -> ObjectStore:
        """Return the client for an upload of *size* bytes; large uploads need longer timeouts."""
        if size <= PART_BYTES // 4:
            return self._client
        if self._patient is None:
            self._patient = self._service.client(self._retry_policy, is_upload=True)
        return self._patient

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether this call wrote it."""
        self._service.check_writable()
        return self._put_on_condition(key, data, _NEW, _NO_MARKS)

    def _put_on_condition(
        self, key: str, data: bytes | memoryview, condition: Any, earlier: tuple[str, ...]
    ) -> bool:
        """Write an object if *condition* holds; return whether the object was written.

        Args:
            key: key of the object.
            data: new content of the object.
            condition: the condition, as the argument ``mode`` of `obstore.put`.
            earlier: marks of earlier writes, which are stored with the mark of this write.
        """
        name, mark = self._name(key), secrets.token_hex(8)
        marks = " ".join([mark, *earlier][:_MARKS_KEPT])
        replies_lost = 0

        def call() -> None:
            options: Any = {
                "mode": condition,
                "attributes": {_MARKS: marks},
                "use_multipart": False,
            }
            obstore.put(self._writer(len(data)), name, data, **options)

        def counting(error: Exception) -> Failure:
            nonlocal replies_lost
            failure = understand(error)
            replies_lost += failure.is_transient
            return failure

        try:
            self._retried(call, counting)
        except CallFailedError as failed:
            status, code = failed.failure.status, failed.failure.code
            refused = status == 412 or (status == 404 and code != "NoSuchBucket")
            if not refused and not failed.failure.is_transient:
                self._fail("write", key, failed)
            # A try may have succeeded although no response arrived.
            if replies_lost and mark in self._marks_of(key):
                return True
            if not refused:
                self._fail("write", key, failed)
            return False
        return True

    def _marks_of(self, key: str) -> tuple[str, ...]:
        found = self._fetch(key, None)
        return _NO_MARKS if found is None else _marks(found[1])

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace an object by the result of *change*; concurrent updates are not lost."""
        self._service.check_writable()
        start = time.monotonic()
        while time.monotonic() - start < self._retry_policy.budget_s:
            found = self._fetch(key, None)
            old, condition, earlier = None, _NEW, _NO_MARKS
            if found is not None:
                old, answer = found
                known = {name: answer.meta.get(name) for name in ("e_tag", "version")}
                condition = {name: value for name, value in known.items() if value}
                earlier = _marks(answer)
            new = bytes(change(old))
            if self._put_on_condition(key, new, condition, earlier):
                return new
        msg = (
            f"cannot update {self.url}/{key}: for {self._retry_policy.budget_s:g} s, other "
            "processes always changed the object first; run fewer processes"
        )
        raise VolumeError(msg)

    def delete(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        name = self._name(key)
        self._service.check_writable()
        try:
            self._call(lambda: obstore.delete(self._client, name))
        except CallFailedError as failed:
            if not self._is_absent(failed):
                self._fail("remove", key, failed)


def _marks(answer: Any) -> tuple[str, ...]:
    return tuple(str(answer.attributes.get(_MARKS, "")).split())


def open_cloud(scheme: str, path: str, access: Access, retry_policy: RetryPolicy) -> CloudStore:
    """Open the store at ``scheme://path``.

    Raises:
        VolumeError: the address is not valid, or no credentials are found.
        MissingExtraError: the library of the cloud (boto3 or google-auth) is not installed.
    """
    return CloudStore(open_service(scheme, path, access), retry_policy)
