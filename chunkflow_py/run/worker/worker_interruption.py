"""External requests to stop: preemption notices of clouds, and signals.

| cloud  | metadata path                         | meaning of the notice                         |
|--------|---------------------------------------|-----------------------------------------------|
| AWS    | ``spot/instance-action``              | an interruption follows in about two minutes  |
| AWS    | ``events/recommendations/rebalance``  | an interruption is likely                     |
| Google | ``instance/preempted``                | the preemption follows in about 30 seconds    |

After the first answer of a server, the worker also asks it for the type and the zone of the
machine, and adds both to the record of the worker.

Notices only save money; correctness never depends on them. Each metadata server is polled in its
own thread, so an absent, slow or faulty server does not delay the worker. A server that has never
answered is polled only a few times.
"""

from __future__ import annotations

import http.client
import logging
import os
import signal
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chunkflow_py.core.interrupts import (
    Interrupted,
    kept_signal,
    leave_within,
    on_stop_signals,
    restore_signals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
TIMEOUT_S = 2.0
TRIES = 3  # for a server that has never answered
GRACE_S = 10.0  # from a signal to the end of the process, for releasing tasks

_AMAZON = "http://169.254.169.254"
_GOOGLE = "metadata.google.internal"
_TOKEN_S = 21600  # longest lifetime of a token
_LONGEST_ANSWER = 4096  # bytes
_NOTICES = {
    "spot/instance-action": "this spot instance will be interrupted",
    "events/recommendations/rebalance": "this spot instance is likely to be interrupted",
}


class InterruptionWatch:
    """Polls the metadata servers of this machine until one of them announces a preemption.

    Args:
        on_notice: function that is called once, in a thread of the watch, with the text of the
            notice.
        interval_s: seconds between two polls.
        on_machine: function that is called, in a thread of the watch, with the type of the machine
            in its cloud and with its zone.
    """

    def __init__(
        self,
        on_notice: Callable[[str], None],
        interval_s: float = INTERVAL_S,
        on_machine: Callable[[str, str], None] | None = None,
    ) -> None:
        self._on_notice = on_notice
        self._on_machine = on_machine
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        for server in _servers():
            name = type(server).__name__.strip("_")
            thread = threading.Thread(target=self._run, args=(server,), name=name, daemon=True)
            thread.start()

    def close(self) -> None:
        """Stop polling, without waiting for a pending request."""
        self._stopped.set()

    def _run(self, server: _Amazon | _Google) -> None:
        has_answered, tries = False, 0
        while not self._stopped.is_set():
            try:
                notice = server.notice()
            except _NoAnswerError:
                tries += 1
                if not has_answered and tries >= TRIES:
                    logger.debug("found no metadata server of %s", type(server).__name__.strip("_"))
                    return
            else:
                if notice is not None:
                    self._notify(notice)
                if not has_answered and self._on_machine is not None:
                    with suppress(_NoAnswerError):
                        self._on_machine(*server.machine())
                if notice is not None:
                    return
                has_answered = True
            self._stopped.wait(self._interval_s)

    def _notify(self, notice: str) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        self._on_notice(notice)


class _NoAnswerError(Exception):
    """The metadata server did not answer, or its answer was not usable."""


class _Amazon:
    """The metadata service of Amazon EC2, version 2, which answers only requests with a token."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._prefix = parts.netloc, parts.path.rstrip("/")
        self._token, self._token_ends = "", 0.0

    def notice(self) -> str | None:
        for path, meaning in _NOTICES.items():
            status, answer = self._ask(f"/latest/meta-data/{path}")
            if status == 401:  # the token has expired early
                self._token_ends = 0.0
                status, answer = self._ask(f"/latest/meta-data/{path}")
            if status == 200:
                return f"{meaning} ({answer})"
            if status != 404:
                raise _NoAnswerError
        return None

    def machine(self) -> tuple[str, str]:
        """Return the type and the zone of the machine; empty texts if they are unknown."""
        names = ("instance-type", "placement/availability-zone")
        answers = [self._ask(f"/latest/meta-data/{name}") for name in names]
        kind, zone = (text if status == 200 else "" for status, text in answers)
        return kind, zone

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
    """The metadata server of Google Compute Engine."""

    def __init__(self, host: str) -> None:
        self._host = host

    def notice(self) -> str | None:
        status, answer = self._ask("preempted")
        if status != 200:
            raise _NoAnswerError
        return "this instance is being preempted" if answer.upper() == "TRUE" else None

    def machine(self) -> tuple[str, str]:
        """Return the type and the zone of the machine; empty texts if they are unknown."""
        answers = [self._ask(name) for name in ("machine-type", "zone")]
        # The answers are paths, such as projects/1/zones/us-east1-b.
        kind, zone = (text.rpartition("/")[2] if status == 200 else "" for status, text in answers)
        return kind, zone

    def _ask(self, name: str) -> tuple[int, str]:
        path = f"/computeMetadata/v1/instance/{name}"
        return _ask(self._host, "GET", path, {"Metadata-Flavor": "Google"})


def _ask(host: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    try:
        # Use no proxy: these link-local addresses have a different meaning on another machine.
        with closing(http.client.HTTPConnection(host, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            text = response.read(_LONGEST_ANSWER).decode(errors="replace").strip()
            return response.status, text
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NoAnswerError from error


def _servers() -> list[_Amazon | _Google]:
    servers: list[_Amazon | _Google] = []
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        servers.append(_Amazon(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _AMAZON))
    if os.environ.get("NO_GCE_CHECK", "").lower() != "true":
        servers.append(_Google(os.environ.get("GCE_METADATA_HOST") or _GOOGLE))
    return servers


# --- signals while no supervisor listens ---------------------------------------------------------


class StopRequested(Interrupted):
    """A signal asks the worker to stop; ``except Exception`` does not catch this exception."""


@contextmanager
def stops_on_signals(code: int) -> Iterator[None]:
    """Raise `StopRequested` in the main thread at the first signal, and exit at the second.

    These signal handlers are for the start of a worker and for the time between steps. During a
    step, the handlers of the supervisor replace them.

    Args:
        code: exit code of the process, if a second signal or a time limit ends it. The limit is
            `GRACE_S` seconds after the first signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    has_stopped = False

    def leave() -> None:
        os._exit(code)

    def stop(number: int) -> None:
        nonlocal has_stopped
        if has_stopped:
            leave()
        has_stopped = True
        leave_within(GRACE_S, leave)
        raise StopRequested(signal.Signals(number).name)

    before = on_stop_signals(stop)
    try:
        if (kept := kept_signal()) is not None:  # it arrived while modules were imported
            raise StopRequested(kept)
        yield
    finally:
        restore_signals(before)
