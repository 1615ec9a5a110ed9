"""Check whether a URL can be read and written, and whether it supports conditional writes."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, MissingExtraError, VolumeError
from chunkflow_py.planning.doctor.finding import Finding
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.store import open_store
from chunkflow_py.store.cloudvolume_secrets import aws_session
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.store.store_protocol import Store

# the user is waiting, so give up early
RETRY_POLICY = RetryPolicy(stall_s=10, budget_s=5, unreachable_s=5)
PROBE_BYTES = 1 << 20
_CLOUDS = {"s3": "https://s3.amazonaws.com", "gs": "https://storage.googleapis.com"}


def check_store(url: str, *, write: bool = False) -> Iterator[Finding]:
    """Check whether a store can be read and, if *write* is set, written.

    Args:
        url: address of a folder, bucket or volume, such as ``zarr://s3://bucket/em``.
        write: whether the check may write a test object with an unused name. The check removes the
            object afterwards.
    """
    shown = without_secrets(url)
    try:
        place = Location.parse(url).store_url
        store = open_store(place, retry_policy=RETRY_POLICY)
        start = time.monotonic()
        listed = _read(store)
        seconds = time.monotonic() - start
    except (ChunkflowError, OSError) as error:
        yield Finding("store", "problem", f"{shown}: {error}")
        return
    if store.is_local:
        yield _folder(Path(store.url.removeprefix("file://")))
    else:
        by = _credentials(place)
        text = f"{shown} can be read in {1000 * seconds:.0f} ms{listed}{by}"
        yield Finding("store", "ok", text)
    if write:
        yield from _write(store, shown)
    elif not store.is_local and not place.startswith("http"):
        yield Finding(
            "store", "note", f"{shown}: writing was not checked", "give --write to check writing"
        )


def _read(store: Store) -> str:
    """Read from the store, and return a remark if the store is empty, else an empty string."""
    # Without permission to list the bucket, S3 reports a missing object as forbidden.
    store.get(f"chunkflow-doctor-{secrets.token_hex(8)}")
    if store.url.startswith("http"):
        return ""
    return "" if list(islice(store.list(), 1)) else "; the store is empty"


def _folder(folder: Path) -> Finding:
    """Check that a local folder exists or can be created, and that it is writable."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        return Finding(
            "store", "problem", f"{folder}: {there} is not a folder", "choose another folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        text = f"{folder}: no permission to write to {there}"
        remedy = f"change the permissions of {there}, or choose another folder"
        return Finding("store", "problem", text, remedy)
    return Finding("store", "ok", f"{folder} {'exists' if there == folder else 'can be created'}")


def _write(store: Store, shown: str) -> Iterator[Finding]:
    """Check that an object can be written, read, removed, and written conditionally."""
    key, data = f"chunkflow-doctor-{secrets.token_hex(8)}", secrets.token_bytes(PROBE_BYTES)
    folder = Path(store.url.removeprefix("file://")) if store.is_local else None
    made = (
        [] if folder is None else [each for each in (folder, *folder.parents) if not each.exists()]
    )
    try:
        try:
            start = time.monotonic()
            store.put(key, data)
            between = time.monotonic()
            same = store.get(key) == data and store.get_range(key, 7, 99) == data[7:99]
            end = time.monotonic()
        finally:
            store.delete(key)
        gone = store.size(key) is None
        home = RunDirectory(store.url)
        home.store = store
        home.check_store()
    except (VolumeError, OSError) as error:
        yield Finding("store", "problem", f"{shown}: {error}")
        return
    finally:
        for each in made:
            with suppress(OSError):  # it does not exist, or another process uses it
                each.rmdir()
    if not same:
        text = f"{shown} does not return the bytes that were written"
        yield Finding("store", "problem", text, "do not use this store for volumes")
    elif not gone:
        text = f"{shown} still contains {key}, although the store reported its deletion"
        yield Finding(
            "store",
            "problem",
            text,
            f"delete {key} yourself, and use a store in which deleted objects disappear",
        )
    else:
        speed = PROBE_BYTES / 1e6
        text = (
            f"{shown} can be written ({speed / (between - start):.0f} MB/s), read "
            f"({speed / (end - between):.0f} MB/s), written conditionally, and deleted"
        )
        yield Finding("store", "ok", text)


def _credentials(place: str) -> str:
    """Return where the S3 credentials come from, as text without the credentials themselves."""
    if not place.startswith("s3://"):
        return ""
    bucket = place.removeprefix("s3://").partition("/")[0]
    found = aws_session("s3://", bucket).get_credentials()
    return f"; credentials: {found.method}" if found is not None else ""


def clock_of(url: str) -> str | None:
    """Return the address of a store's server, for `check_clock`; ``None`` without a server."""
    try:
        place = Location.parse(url).store_url
        scheme, _, path = place.partition("://")
        if scheme in ("http", "https"):
            return f"{scheme}://{path.rpartition('@')[2].partition('/')[0]}"
        if scheme not in _CLOUDS:
            return None
        from chunkflow_py.store.clouds import open_service
        from chunkflow_py.store.store_protocol import Access

        return open_service(scheme, path, Access()).endpoint or _CLOUDS[scheme]
    except (ChunkflowError, MissingExtraError):  # `check_store` reports this error
        return None
