"""A plugin that fails on chosen tasks, in every way in which Python code can fail.

A file says what to do: `{"8,0,16": "exit", "0,0,0": "raise@2"}` by the corner of the task's box;
`@2` means the first two times.
"""

import asyncio
import ctypes
import json
import os
import signal
import threading
import time
from pathlib import Path


def execute(chunk, acts, log):
    """Do it; the chunk stays as it is.

    Args:
        chunk: of the task.
        acts: file that says what to do.
        log: file to which each call adds a line with the corner.
    """
    corner = ",".join(map(str, chunk.voxel_offset))
    act, _, times = json.loads(Path(acts).read_text()).get(corner, "").partition("@")
    with Path(log).open("a") as file:
        file.write(f"{corner}\n")
    if times and Path(log).read_text().split().count(corner) > int(times):
        return
    if act:
        ACTS[act]()


class PanicException(BaseException):
    """As libraries written in Rust raise it."""


class SilentError(Exception):
    """An error whose text cannot be made."""

    def __str__(self):
        """Fail."""
        msg = "there is no text"
        raise RuntimeError(msg)


def raises(error):
    """Return what raises an error."""

    def act():
        raise error

    return act


def _signals(number):
    def act():
        os.kill(os.getpid(), number)
        time.sleep(2)  # children of a worker are deaf to what asks a worker to stop

    return act


def _in_thread():
    """Fail in another thread as well as here."""
    thread = threading.Thread(target=raises(SystemExit(3)))
    thread.start()
    thread.join()
    msg = "the thread has failed"
    raise RuntimeError(msg)


def _chained():
    try:
        {}["cause"]
    except KeyError as error:
        raise PanicException from error


def _fork():
    """Leave a process behind for a while, which holds all that was open here, and fail."""
    if not os.fork():
        time.sleep(10)
        os._exit(0)
    msg = "left a process behind"
    raise ValueError(msg)


# May pass by themselves, and are tried again as long as they do not.
PASSING = {
    "broken-pipe": raises(BrokenPipeError(32, "Broken pipe")),
    "timeout": raises(TimeoutError("timed out")),
    "memory": raises(MemoryError()),
}
# What a process is asked to end with; tasks go on.
DEAF = {"term": _signals(signal.SIGTERM), "int": _signals(signal.SIGINT)}
POISON = {
    "raise": raises(ValueError("this task is poison")),
    "surrogate": raises(ValueError("lone \ud800 surrogate")),
    "escape": raises(ValueError("\x1b[2J\x00\u202e evil")),
    "long": raises(ValueError("x" * 1_000_000)),
    "empty": raises(ValueError()),
    "silent": raises(SilentError()),
    "group": raises(ExceptionGroup("several", [ValueError("one"), KeyError("two")])),
    "base-group": raises(BaseExceptionGroup("several", [KeyboardInterrupt("one")])),
    "exit-0": raises(SystemExit(0)),
    "exit-1": raises(SystemExit(1)),
    "exit-text": raises(SystemExit("leaving")),
    "interrupt": raises(KeyboardInterrupt()),
    "cancelled": raises(asyncio.CancelledError()),
    "generator-exit": raises(GeneratorExit()),
    "stop-iteration": raises(StopIteration()),
    "panic": raises(PanicException("a Rust library panicked")),
    "chained": _chained,
    "recursion": raises(RecursionError("maximum recursion depth exceeded")),
    "assertion": raises(AssertionError()),
    "eof": raises(EOFError()),
    "warning": raises(UserWarning("is an exception, too")),
    "unicode": raises(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")),
    "os-exit-0": lambda: os._exit(0),
    "os-exit-7": lambda: os._exit(7),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "kill": _signals(signal.SIGKILL),
    "in-thread": _in_thread,
    "fork": _fork,
}
ACTS = PASSING | DEAF | POISON
