"""A plugin that does with a task what its drill says, and counts how often it was called.

The rig writes what into a file: `{"8,0,16": "segfault", "0,0,0": "raise@2", "": "sleep:0.1"}` by
the corner of the task's box; `@2` means the first two times, and the empty name all other tasks.
"""

import json
import os
import resource
import signal
import time
from pathlib import Path


def execute(chunk, acts, log):
    """Do it; the chunk stays as it is.

    Args:
        chunk: of the task.
        acts: file that says what to do.
        log: file to which each call adds a line: corner, process id of the supervisor, seconds of
            the monotonic clock.
    """
    corner = ",".join(map(str, chunk.voxel_offset))
    said = json.loads(Path(acts).read_text())
    with Path(log).open("a") as file:
        file.write(f"{corner} {os.getppid()} {time.monotonic():.3f}\n")
    act, _, many = said.get(corner, said.get("", "")).partition("@")
    if many:
        calls = sum(line.split()[0] == corner for line in Path(log).read_text().splitlines())
        if calls > int(many):
            return
    name, _, number = act.partition(":")
    if name:
        ACTS[name](float(number or 0))


def _raise(_):
    msg = "this task is poison"
    raise ValueError(msg)


def _segfault(_):
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def _kill(_):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _kill_all(_):
    """End the worker too, as a machine does that runs out of memory."""
    os.killpg(0, signal.SIGKILL)


def _hang(_):
    time.sleep(3600)


def _memory(_):
    """Ask for more memory than there may be; what is caught says so, as a library would."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY))
    try:
        bytearray(1 << 33)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


ACTS = {
    "raise": _raise,
    "segfault": _segfault,
    "kill": _kill,
    "kill-all": _kill_all,
    "hang": _hang,
    "memory": _memory,
    "sleep": time.sleep,
}
