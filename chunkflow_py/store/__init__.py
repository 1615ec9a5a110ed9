"""Stores, which read and write objects (named byte strings) below a URL.

| URL                      | storage                                                            |
|--------------------------|--------------------------------------------------------------------|
| ``/data/em``, ``file://``| files of this machine (`folder_store`)                             |
| ``s3://bucket/em``       | S3, or a compatible server at ``AWS_ENDPOINT_URL``                 |
| ``gs://bucket/em``       | Google Cloud Storage                                               |
| ``https://host/em``      | a web server, to read single objects only; also ``http://``        |
| ``mem://name/em``        | the memory of this process, for tests                              |

Every write is atomic: readers get the complete old or the complete new object.

The module `object_store` implements stores in clouds; `web_store` implements stores on web
servers.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError, needs_extra
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.store_protocol import Access

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store

SCHEMES = ("file", "s3", "gs", "https", "http", "mem")


def open_store(
    url: str,
    access: Access = Access(),  # noqa: B008 frozen
    *,
    retry_policy: RetryPolicy | None = None,
) -> Store:
    """Open the store of the objects below *url*; the folder or prefix need not exist yet.

    Args:
        url: address of a folder or prefix, such as ``/data/em`` or ``s3://bucket/em``.
        access: how requests to a cloud are authenticated and billed.
        retry_policy: deadlines and retries of network calls (default: `RetryPolicy()`).

    Raises:
        VolumeError: the address is not valid, its scheme is unknown, or no credentials are found.
        MissingExtraError: the libraries for clouds are not installed.
    """
    scheme, separator, path = url.partition("://")
    if not separator or scheme == "file":
        from chunkflow_py.store.folder_store import FolderStore

        return FolderStore(path if separator else url)
    if scheme == "mem":
        from chunkflow_py.store.memory_store import MemoryStore

        return MemoryStore(path)
    if scheme in ("http", "https"):
        with needs_extra("cloud", f"{scheme}://"):
            from chunkflow_py.store.web_store import WebStore
        return WebStore(scheme, path, retry_policy or RetryPolicy())
    if scheme in SCHEMES:
        with needs_extra("cloud", f"{scheme}://"):
            from chunkflow_py.store.object_store import open_cloud
        return open_cloud(scheme, path, access, retry_policy or RetryPolicy())
    near = get_close_matches(scheme, SCHEMES, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}://?" if near else f"known schemes are {', '.join(SCHEMES)}"
    msg = f"cannot open {scheme}://…: unknown scheme {scheme}://; {hint}"
    raise VolumeError(msg)
