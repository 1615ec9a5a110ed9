"""Web servers, which can be read only."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.service import Service, without_password

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def web_server(scheme: str, path: str) -> Service:
    """Return the service for ``scheme://path``.

    Raises:
        VolumeError: no host is named, or the address is that of one signed object.
    """
    parts = urlsplit(f"{scheme}://{path}".rstrip("/"))
    url = without_password(parts.geturl()).partition("?")[0]
    if not parts.hostname:
        msg = f"{url} names no host; write {scheme}://host/path"
        raise VolumeError(msg)
    if parts.query or parts.fragment:
        msg = f"cannot open {url} with what follows ? or # in its address; leave that out"
        raise VolumeError(msg)

    headers = {}
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import HTTPStore

        return HTTPStore(
            url,
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
        )

    root = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    return Service(
        kind="https",
        bucket="",
        prefix="",
        url=url,
        root=root,
        anonymous=True,
        make=make,
        headers=headers,
    )
