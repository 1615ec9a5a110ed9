"""Fail points at which tests stop a process, and safeguards that tests disable.

A fail point is a named place in the code, where `reached` or `corrupts` is called. Normally, fail
points do nothing and all safeguards work. Tests set these environment variables:

| variable                | value, a comma-separated list                                          |
|-------------------------|------------------------------------------------------------------------|
| ``CHUNKFLOW_FAILPOINT`` | ``name:action``: act each time that the code arrives at the fail point |
|                         | *name*; ``name:action@N``: act only the Nth time                       |
| ``CHUNKFLOW_UNSAFE``    | names of the safeguards to disable                                     |

| action     | effect                                                                              |
|------------|-------------------------------------------------------------------------------------|
| `kill`     | send SIGKILL to the process                                                         |
| `kill-all` | send SIGKILL to the process group: a worker and its worker processes                |
| `stop-all` | send SIGSTOP to the process group                                                   |
| `raise`    | raise `FailPointError`                                                              |
| `hang`     | sleep forever                                                                       |
| `corrupt`  | compute wrong values, at the fail points whose code calls `corrupts`                |
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from functools import cache
from typing import Literal

Point = Literal[
    "leased",
    "mid-read",
    "mid-inference",
    "mid-write",
    "written-not-recorded",
    "recorded-not-acknowledged",
    "convolution",
]
Safeguard = Literal[
    "put-if-absent",
    "atomic-write",
    "heartbeat",
    "checksum",
    "ledger-before-acknowledgement",
    "pinned-spec",
]

_passed: Counter[str] = Counter()
_lock = threading.Lock()  # several threads write blocks


class FailPointError(RuntimeError):
    """The error that the action ``raise`` of a fail point raises."""


def reached(point: Point) -> None:
    """Perform the action, if any, that a test has set for the fail point *point*."""
    if point not in _points():
        return
    action, which = _points()[point]
    with _lock:
        _passed[point] += 1
        number = _passed[point]
    if which not in (0, number):
        return
    if action == "stop-all":
        os.killpg(0, signal.SIGSTOP)
        return  # after a SIGCONT
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "kill-all":
        os.killpg(0, signal.SIGKILL)
    while action == "hang":
        time.sleep(60)
    msg = f"fail point {point}"
    raise FailPointError(msg)


def corrupts(point: Point) -> bool:
    """Return whether a test has set the action ``corrupt`` for the fail point *point*."""
    return _points().get(point, ("", 0))[0] == "corrupt"


def removed(safeguard: Safeguard) -> bool:
    """Return whether a test has disabled *safeguard*."""
    return safeguard in _removed()


@cache
def _points() -> dict[str, tuple[str, int]]:
    found = {}
    for each in os.environ.get("CHUNKFLOW_FAILPOINT", "").split(","):
        name, _, action = each.partition(":")
        action, _, which = action.partition("@")
        if name:
            found[name] = (action, int(which or 0))
    return found


@cache
def _removed() -> frozenset[str]:
    return frozenset(filter(None, os.environ.get("CHUNKFLOW_UNSAFE", "").split(",")))
