"""Download files of models from the Hugging Face hub, or from another hub at ``HF_ENDPOINT``.

The library huggingface_hub sends the requests; it uses the access token of the user, if one is
configured. This module limits the size and the duration of downloads, and converts errors of
huggingface_hub to errors of this package.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from chunkflow_py.errors import (
    ChunkflowError,
    OptionError,
    VolumeError,
    VolumeRefusedError,
    VolumeUnreachableError,
    needs_extra,
)
from chunkflow_py.store.network_retry import TRANSIENT_STATUS, CallFailedError, Failure, retried
from chunkflow_py.store.store_address import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chunkflow_py.store.network_retry import RetryPolicy

logger = logging.getLogger(__name__)

PUBLIC_HUB = "https://huggingface.co"
PROGRESS_S = 10.0  # seconds between two log lines of a download
FORM = "hf://owner/name@commit/file"

_ADDRESS = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/]*))?/(?P<path>.+)", re.ASCII
)
_COMMIT = re.compile("[0-9a-f]{40}")
_SHA256 = re.compile("[0-9a-f]{64}")
_OTHER_KINDS = ("datasets", "spaces", "buckets", "kernels")


@dataclass(frozen=True)
class HubFile:
    """A file in a model repository of a hub.

    Attributes:
        repository: owner and name of the repository, such as ``owner/name``.
        revision: commit, branch or tag; empty if none is given.
        path: path of the file in the repository.
    """

    repository: str
    revision: str
    path: str

    @classmethod
    def parse(cls, address: str) -> HubFile:
        """Return the file at an address, such as ``hf://owner/name@commit/folder/net.pt``.

        Raises:
            OptionError: the address does not have this form.
        """
        rest = address.removeprefix("hf://")
        match = _ADDRESS.fullmatch(rest)
        if match is None or rest.endswith("/"):
            msg = f"{address} is not the address of a file on a hub; write {FORM}"
            raise OptionError(msg)
        if rest.split("/")[0] in _OTHER_KINDS:
            msg = f"{address} is not in a repository of models; write {FORM}"
            raise OptionError(msg)
        try:
            check_key(match["path"], f"hf://{match['repository']}")
        except VolumeError as error:
            raise OptionError(str(error)) from error
        return cls(match["repository"], match["revision"] or "", match["path"])

    @property
    def address(self) -> str:
        """The address of the file."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repository}{revision}/{self.path}"

    def check_commit(self, retry_policy: RetryPolicy) -> None:
        """Check that the revision is a commit, because files of a branch or tag may change.

        Raises:
            OptionError: the revision is not a commit. If the hub responds, the message names the
                commit that the revision refers to today.
        """
        if _COMMIT.fullmatch(self.revision):
            return
        revision = self.revision or "main"
        problem = f"names the revision {revision!r}, which is not a commit and can change"
        if not self.revision:
            problem = "names no commit, and the branch 'main' can change"
        try:
            found = _metadata(HubFile(self.repository, revision, self.path), retry_policy)
            commit = str(found.commit_hash)
        except VolumeError as error:
            # Errors about the file itself are more useful than this one.
            msg = (
                f"{self.address} {problem}; give a commit of 40 hexadecimal digits "
                f"({FORM}); today's commit could not be read: {error}"
            )
            raise OptionError(msg) from error
        pinned = HubFile(self.repository, commit, self.path).address
        msg = f"{self.address} {problem}; pin it to today's commit: {pinned}"
        raise OptionError(msg)

    def download(self, target: Path, most: int, retry_policy: RetryPolicy) -> str | None:
        """Write the content of the file to *target*.

        Args:
            target: path of a new file. During the download, a temporary folder exists beside the
                file; the name of the folder is the file name followed by ``.hub``.
            most: limit of the size of the file, bytes.
            retry_policy: deadlines and retries of requests.

        Returns:
            SHA-256 of the file according to the hub, 64 hexadecimal digits; ``None`` if the hub
            does not know the SHA-256.

        Raises:
            OptionError: the repository, revision or file does not exist, or the file is too large.
            VolumeError: the hub cannot be reached, or refuses the request.
            MissingExtraError: huggingface_hub is not installed.
        """
        found = _metadata(self, retry_policy)
        if found.commit_hash != self.revision:
            msg = (
                f"the hub {_hub()} returned the file of commit {found.commit_hash} instead of "
                f"{self.address}; check HF_ENDPOINT"
            )
            raise VolumeError(msg)
        if found.size is not None and found.size > most:
            msg = (
                f"{self.address} has {found.size} bytes, more than the allowed {most}; download "
                "the file yourself, and give its path"
            )
            raise OptionError(msg)
        library = _library()
        folder = target.with_name(f"{target.name}.hub")
        progress = _progress_class(self.address, most)

        def call() -> str:
            path: str = library.hf_hub_download(
                self.repository, self.path, revision=self.revision, local_dir=folder,
                endpoint=_hub(), library_name="chunkflow_py", tqdm_class=progress,
            )  # fmt: skip
            return path

        try:
            shutil.move(self._called(call, retry_policy), target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        digest = found.etag or ""
        return digest if _SHA256.fullmatch(digest) else None

    def _called(self, call: Callable[[], Any], retry_policy: RetryPolicy) -> Any:
        try:
            with _quiet_library():
                return retried(call, _understand, retry_policy, _hub())
        except CallFailedError as failed:
            self._fail(failed)

    def _fail(self, failed: CallFailedError) -> NoReturn:
        failure, hub = failed.failure, _hub()
        if failure.code == "EntryNotFound":
            revision = self.revision or "main"
            msg = (
                f"{self.repository} has no file {self.path} at the revision {revision}; correct "
                "the address, which must name a file, not a folder"
            )
            raise OptionError(msg) from None
        if failure.code == "RevisionNotFound":
            msg = f"{self.repository} has no revision {self.revision}; correct the address"
            raise OptionError(msg) from None
        if failure.status == 404:
            msg = f"{hub} has no model {self.repository} with a file {self.path}; correct the name"
            raise OptionError(msg) from None
        if failure.status in (401, 403):
            msg = (
                f"{hub} refuses to send {self.address} ({failed}): the repository does not exist, "
                "is private, or requires users to accept conditions; correct the name, or set "
                "HF_TOKEN to your access token and accept any conditions in a browser"
            )
            raise VolumeRefusedError(msg) from None
        kind = VolumeUnreachableError if failure.is_transient else VolumeError
        remedy = "try again later"
        if failure.is_unreachable:
            remedy = f"check the network and the address of the hub, {hub} (HF_ENDPOINT)"
        msg = f"cannot fetch {self.address}: {failed}; {remedy}"
        raise kind(msg) from None


def _progress_class(address: str, most: int) -> Any:
    """Return a class that logs the progress of a download instead of showing a progress bar.

    Args:
        address: address of the file.
        most: limit of the number of bytes; a download of more bytes ends with an `OptionError`.
    """
    from tqdm.auto import tqdm

    def start(bar: Any, *args: Any, **options: Any) -> None:
        tqdm.__init__(bar, *args, **options | {"disable": True})
        bar.received, bar.logged = options.get("initial") or 0, time.monotonic()
        bar.size = options.get("total")

    def update(bar: Any, count: float | None = 1) -> None:
        bar.received += count or 0
        if bar.received > most:
            msg = (
                f"{address} has more than the allowed {most} bytes; download the file yourself, "
                "and give its path"
            )
            raise OptionError(msg)
        if time.monotonic() - bar.logged >= PROGRESS_S:
            bar.logged = time.monotonic()
            logger.info("fetching %s: %s of %s bytes", address, bar.received, bar.size or "?")

    return type("DownloadProgress", (tqdm,), {"__init__": start, "update": update})


@contextmanager
def _quiet_library() -> Iterator[None]:
    # Other messages of huggingface_hub and its HTTP library may show addresses with signatures.
    logs = [logging.getLogger(name) for name in ("huggingface_hub", "httpx2", "httpcore2")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _hub() -> str:
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


def _library() -> Any:
    # Otherwise, the library requests a list of AI agents from the hub, to report those in use.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    with needs_extra("hub", "hf://"):
        import huggingface_hub
    return huggingface_hub


def _metadata(file: HubFile, retry_policy: RetryPolicy) -> Any:
    """Request the commit, the size and the digest of a file from the hub."""
    library = _library()
    url = library.hf_hub_url(file.repository, file.path, revision=file.revision, endpoint=_hub())

    def call() -> Any:
        return library.get_hf_file_metadata(
            url, timeout=retry_policy.stall_s, library_name="chunkflow_py", endpoint=_hub()
        )

    return file._called(call, retry_policy)


def _understand(error: Exception) -> Failure:
    """Return the cause of a failed call to huggingface_hub.

    Raises:
        Exception: *error* itself, if it comes neither from the network nor from the hub.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if isinstance(error, ChunkflowError):
        raise error
    response = getattr(error, "response", None)
    if response is not None:
        status, code = int(response.status_code), response.headers.get("X-Error-Code", "")
        return Failure(f"{status} {code}".strip(), status, code, status in TRANSIENT_STATUS)
    if isinstance(error, OfflineModeIsEnabled):
        return Failure("HF_HUB_OFFLINE forbids requests to the hub")
    if isinstance(error, HFValidationError):
        return Failure("the hub does not accept this name", 404)
    if isinstance(error, HfHubHTTPError.__bases__[0]):  # of the HTTP library, without an answer
        message = type(error).__name__
        connect = "Connect" in message
        text = "no connection could be made" if connect else f"the connection broke ({message})"
        return Failure(text, is_transient=True, is_unreachable=connect)
    if isinstance(error, OSError) and error.errno is None:  # of the library, such as a wrong size
        return Failure("the file did not arrive whole", is_transient=True)
    raise error
