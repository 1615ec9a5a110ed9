"""Notices that this machine will be taken away, as clouds give them to the machine itself.

| cloud  | what is asked                         | means                            |
|--------|---------------------------------------|----------------------------------|
| AWS    | ``spot/instance-action``              | stopped in about two minutes     |
| AWS    | ``events/recommendations/rebalance``  | likely to be stopped before long |
| Google | ``instance/preempted``                | stopped in about thirty seconds  |

A notice only saves money: correctness never rests on one. A server that is absent, slow or wrong
delays nothing, since it is asked in a thread of its own; one that has never answered is asked a few
times and then no more.
"""

from __future__ import annotations

import http.client
import logging
import os
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

EVERY_S = 5.0
TIMEOUT_S = 2.0
TRIES = 3  # of a server that has never answered

_AMAZON = "http://169.254.169.254"
_GOOGLE = "metadata.google.internal"
_TOKEN_S = 21600  # for which a token is good, at most
_LONGEST = 4096  # bytes of an answer that are looked at
_NOTICES = {
    "spot/instance-action": "this spot instance is to be interrupted",
    "events/recommendations/rebalance": "this spot instance is likely to be interrupted soon",
}


class _NoAnswerError(Exception):
    """A metadata server is absent, slow, or none."""


class _Amazon:
    """The metadata service of EC2, version 2: every question carries a token."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._prefix = parts.netloc, parts.path.rstrip("/")
        self._token, self._token_ends = "", 0.0

    def notice(self) -> str | None:
        for path, words in _NOTICES.items():
            status, said = self._ask(f"/latest/meta-data/{path}")
            if status == 401:  # the token has ended before its time
                self._token_ends = 0.0
                status, said = self._ask(f"/latest/meta-data/{path}")
            if status == 200:
                return f"{words} ({said})"
            if status != 404:
                raise _NoAnswerError
        return None

    def _ask(self, path: str) -> tuple[int, str]:
        now = time.monotonic()
        if now >= self._token_ends:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            status, self._token = _ask(
                self._host, "PUT", f"{self._prefix}/latest/api/token", headers
            )
            if status != 200:
                raise _NoAnswerError
            self._token_ends = now + _TOKEN_S / 2
        return _ask(
            self._host, "GET", self._prefix + path, {"X-aws-ec2-metadata-token": self._token}
        )


class _Google:
    """The metadata server of Compute Engine."""

    def __init__(self, host: str) -> None:
        self._host = host

    def notice(self) -> str | None:
        path = "/computeMetadata/v1/instance/preempted"
        status, said = _ask(self._host, "GET", path, {"Metadata-Flavor": "Google"})
        if status != 200:
            raise _NoAnswerError
        return "this instance is being preempted" if said.upper() == "TRUE" else None


def _ask(host: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    try:
        # No proxy: these addresses mean this very machine.
        with closing(http.client.HTTPConnection(host, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_LONGEST).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NoAnswerError from error


class InterruptionWatch:
    """Asks the metadata servers of this machine until one gives notice.

    Args:
        on_notice: called once, in the thread of the watch, with the notice in words.
        every_s: between two questions, in seconds.
    """

    def __init__(self, on_notice: Callable[[str], None], every_s: float = EVERY_S) -> None:
        """Start a thread a server."""
        self._on_notice, self._every_s = on_notice, every_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        for server in _servers():
            name = type(server).__name__.strip("_")
            thread = threading.Thread(target=self._run, args=(server,), name=name, daemon=True)
            thread.start()

    def close(self) -> None:
        """Ask no more; does not wait for a question under way."""
        self._stopped.set()

    def _run(self, server: _Amazon | _Google) -> None:
        has_answered, tries = False, 0
        while not self._stopped.is_set():
            try:
                notice = server.notice()
            except _NoAnswerError:
                tries += 1
                if not has_answered and tries >= TRIES:
                    logger.debug("there is no metadata server of %s", type(server).__name__)
                    return
            else:
                has_answered = True
                if notice is not None:
                    self._tell(notice)
                    return
            self._stopped.wait(self._every_s)

    def _tell(self, notice: str) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        self._on_notice(notice)


def _servers() -> list[_Amazon | _Google]:
    servers: list[_Amazon | _Google] = []
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        servers.append(_Amazon(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _AMAZON))
    if os.environ.get("NO_GCE_CHECK", "").lower() != "true":
        servers.append(_Google(os.environ.get("GCE_METADATA_HOST") or _GOOGLE))
    return servers
