"""Fetch files from the network into a cache that all processes of this machine share.

| address                              | where the file is stored                                  |
|--------------------------------------|-----------------------------------------------------------|
| ``hf://owner/name@commit/path/file`` | the Hugging Face hub, or the hub at ``HF_ENDPOINT``       |
| ``https://host/path/file``           | a web server; ``http://`` only for servers on this machine|
| ``s3://bucket/key``, ``gs://…``      | a bucket                                                  |

An address may end in ``#sha256=`` and the 64 hexadecimal digits of the file's SHA-256. The address
is then pinned to this content. Files at a pinned address and files of a hub are fetched only once,
because their content never changes. Files at other addresses may change, so each call fetches them
again.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.store import local_cache, open_store
from chunkflow_py.store.local_files import os_errors, write_whole
from chunkflow_py.store.model_hub import HubFile
from chunkflow_py.store.network_reach import is_loopback
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.store_address import CONTROL, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

LARGEST_BYTES = 4 * 1000**3
"""Limit of the size of a file; a file of a web server or bucket is read into memory as a whole."""

SCHEMES = ("hf", "https", "http", "s3", "gs")
_PIN = re.compile("sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class FetchedFile:
    """A local copy of a file.

    Attributes:
        address: address of the file, without credentials and without ``#sha256=``.
        path: path of the copy; its file name is the same as in the address.
        sha256: SHA-256 of the content, 64 hexadecimal digits.
    """

    address: str
    path: Path
    sha256: str


def shown_address(text: str) -> str:
    """Return the address of a file for messages: without credentials, but with its ``#sha256=``."""
    address, separator, pin = text.partition("#")
    return f"{without_secrets(address)}{separator}{pin}"


def fetch(
    text: str, *, retry_policy: RetryPolicy | None = None, most: int = LARGEST_BYTES
) -> FetchedFile:
    """Return a local copy of the file at an address; fetch the file if necessary.

    Args:
        text: address of a file, such as ``https://host/path/file``; the table at the top of this
            module lists all forms.
        retry_policy: deadlines and retries of requests (default: `RetryPolicy()`).
        most: limit of the size of the file, bytes.

    Raises:
        OptionError: *text* is not the address of a file, the file does not exist, or its content
            does not match the SHA-256 in *text*. For ``hf://`` addresses also: the text after ``@``
            is not a commit, or the file is too large.
        VolumeError: the file cannot be fetched or stored. For web servers and buckets also: the
            file is too large.
        MissingExtraError: the library for this kind of address is not installed.
    """
    address, _, pin = text.partition("#")
    shown = without_secrets(address)
    if pin and not _PIN.fullmatch(pin):
        msg = (
            f"the part after # of {shown} must be sha256= and the 64 hexadecimal digits of the "
            "SHA-256 of the file; correct that part, or remove # and the part after #"
        )
        raise OptionError(msg)
    pinned = pin.removeprefix("sha256=")
    scheme = address.partition("://")[0]
    if scheme not in SCHEMES:
        msg = (
            f"{shown} cannot be fetched: {scheme}:// is not one of "
            f"{', '.join(f'{each}://' for each in SCHEMES)}; copy the file to this machine, and "
            "give its path"
        )
        raise OptionError(msg)
    retry_policy = retry_policy or RetryPolicy()
    if scheme == "hf":
        found = _fetched_from_hub(address, most, retry_policy)
    else:
        found = _fetched_from_store(address, pinned, most, retry_policy)
    if pinned not in ("", found.sha256):
        msg = (
            f"{found.address} has the SHA-256 {found.sha256}, but the address is pinned to "
            f"{pinned}; find out who changed the file, or correct the part after #"
        )
        raise OptionError(msg)
    return found


def _fetched_from_hub(address: str, most: int, retry_policy: RetryPolicy) -> FetchedFile:
    file = HubFile.parse(address)
    name = _file_name(file.path.rpartition("/")[2], address)
    file.check_commit(retry_policy)
    entry = _entry(file.address)
    if found := _cached(entry, name, file.address):
        return found

    def write(target: Path) -> None:
        logger.info("fetching %s", file.address)
        stated = file.download(target, most, retry_policy)
        digest = local_cache.sha256_of_file(target)
        if stated not in (None, digest):
            msg = (
                f"the file fetched from {file.address} has the SHA-256 {digest}, but the hub "
                f"announced {stated}; try again"
            )
            raise VolumeError(msg)

    return _stored(entry, name, file.address, write)


def _fetched_from_store(
    address: str, pinned: str, most: int, retry_policy: RetryPolicy
) -> FetchedFile:
    shown, is_web = without_secrets(address), address.startswith("http")
    folder, _, last = address.rpartition("/")
    if is_web:
        _check_web(address, shown)
        last = unquote(last)
    if folder.endswith("/"):  # only a host or a bucket is given
        msg = f"{shown} names no file; give the address of a file"
        raise OptionError(msg)
    name = _file_name(last, shown)
    if pinned and (found := _cached(_entry(f"{name}#{pinned}"), name, shown)):
        return found
    logger.info("fetching %s", shown)
    start = time.monotonic()
    store = open_store(folder, retry_policy=retry_policy)
    content = store.get(name, most)
    if content is None:
        msg = f"{shown} does not exist; correct the address"
        if not is_web and next(iter(store.list(f"{name}/")), None) is not None:
            msg = f"{shown} is a folder; give the address of a file"
        raise OptionError(msg)
    digest, seconds = hashlib.sha256(content).hexdigest(), time.monotonic() - start
    logger.info("fetched %s: %d bytes in %.1f s, SHA-256 %s", shown, len(content), seconds, digest)
    if not pinned:
        logger.info(
            "the file at this address may change, so each command fetches it again; to fetch the "
            "file only once, add #sha256= and the SHA-256 above to the address"
        )
    entry = _entry(f"{name}#{digest}")
    return _cached(entry, name, shown) or _stored(
        entry, name, shown, lambda target: write_whole(target, content)
    )


def _check_web(address: str, shown: str) -> None:
    """Check the address of a file on a web server.

    Raises:
        OptionError: the address has a query, or the connection would not be encrypted.
    """
    if "?" in address:
        msg = (
            f"{shown} is given with a query (?…), which may contain a secret; leave the query out, "
            "or fetch the file yourself and give its path"
        )
        raise OptionError(msg)
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    if address.startswith("http:") and not is_loopback(host):
        msg = (
            f"the connection to {shown} is not encrypted, so an attacker could replace the file; "
            "use https://, or fetch the file yourself and give its path"
        )
        raise OptionError(msg)


def _file_name(name: str, shown: str) -> str:
    """Return *name* if it can be the name of a file in the cache.

    Raises:
        OptionError: the name is empty, begins with a dot, contains a slash or a control character,
            or is the name of the file in which the cache stores checksums.
    """
    is_plain = "/" not in name and not CONTROL.search(name)
    if name and name[0] != "." and is_plain and name != local_cache.CONTENTS:
        return name
    problem = f"ends in {name!r}, which cannot be the name of a model file"
    if not name:
        problem = "is the address of a folder"
    msg = f"{shown} {problem}; give the address of a file"
    raise OptionError(msg)


def _entry(text: str) -> Path:
    return local_cache.cache_folder("models") / hashlib.sha256(text.encode()).hexdigest()


def _cached(entry: Path, name: str, address: str) -> FetchedFile | None:
    digest = local_cache.intact_files(entry).get(name)
    if digest is None:
        return None
    local_cache.set_used(entry)
    logger.debug("%s found in %s", address, entry)
    return FetchedFile(address, entry / name, digest)


def _stored(entry: Path, name: str, address: str, write: Callable[[Path], None]) -> FetchedFile:
    scratch = local_cache.scratch_folder(entry)
    try:
        with os_errors("write", scratch):
            write(scratch / name)
            local_cache.seal(scratch)
        local_cache.publish(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    local_cache.drop_oldest(entry.parent)
    if found := _cached(entry, name, address):
        return found
    msg = f"cannot store {address} in {entry}; set CHUNKFLOW_CACHE_DIR to a writable folder"
    raise VolumeError(msg)
