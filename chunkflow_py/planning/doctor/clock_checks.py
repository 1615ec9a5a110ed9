"""Measure the offset of this machine's clock from the clock of a server."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from chunkflow_py.planning.doctor.finding import Finding
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_OFFSET_S = 10.0
REFUSED_S = 300.0  # offset from which clouds refuse signatures
TIMEOUT_S = 5.0


def check_clock(address: str) -> Iterator[Finding]:
    """Compare this machine's clock with the Date header of a server's response.

    Args:
        address: address of the server, with ``https://`` or ``http://``. The server may respond
            with an error, because error responses also have a Date header.
    """
    where = without_secrets(address)
    try:
        offset = offset_from(address)
    except OSError:  # other checks of this address report this error
        return
    if offset is None:
        yield Finding("clock", "note", f"not checked, because {where} sends no Date header")
    elif abs(offset) > LARGEST_OFFSET_S:
        way = "ahead of" if offset > 0 else "behind"
        text = f"the clock of this machine is {abs(offset):.0f} s {way} the clock of {where}; "
        text += f"clouds refuse signed requests if the offset is {REFUSED_S:.0f} s or more"
        yield Finding("clock", "problem", text, "run timedatectl set-ntp true, or start chronyd")
    else:
        yield Finding(
            "clock",
            "ok",
            f"the clock of this machine is within {max(1, round(abs(offset)))} s of the clock of "
            f"{where}",
        )


def offset_from(address: str) -> float | None:
    """Return the offset of this machine's clock from the clock of a server.

    The offset is not known exactly, because the Date header has whole seconds and the response
    takes time. Of all possible offsets, the one nearest to 0 is returned.

    Returns:
        Offset in seconds, positive if this machine's clock is ahead; ``None`` if the server sends
        no Date header.

    Raises:
        OSError: the server does not respond.
    """
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 the caller checks the scheme
    before = time.time()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:  # an error response is sufficient
        headers = error.headers
        error.close()
    after = time.time()
    try:
        server_s = parsedate_to_datetime(headers.get("Date")).timestamp()
    except (TypeError, ValueError):
        return None
    least, most = before - (server_s + 1), after - server_s
    return min(max(0.0, least), most)
