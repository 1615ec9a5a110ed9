"""Measure the peak memory of a function, without the memory of other threads."""

import os
import resource
import signal
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from typing import NamedTuple

MOST_SECONDS = 120


class Peak(NamedTuple):
    """Peak memory of a function, in bytes above the memory in use before the call.

    Attributes:
        traced: memory allocated by Python and NumPy.
        resident: resident memory of the process, which includes allocations of other libraries.
    """

    traced: int
    resident: int


def peak_of(work: Callable[[], object]) -> Peak:
    """Run *work* in a fork of this process, and return the peak memory of *work*.

    Servers and clients of other tests run in threads of this process. A measurement in this process
    would include the memory of these threads. The fork has only one thread.

    Raises:
        AssertionError: *work* failed (the message is the traceback) or took too long.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(MOST_SECONDS)
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            tracemalloc.start()
            work()
            traced = tracemalloc.get_traced_memory()[1]
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answer = f"{traced} {(after - before) * 1024}"
        except BaseException:  # noqa: BLE001 the test reports any error
            answer = traceback.format_exc()
        os.write(writing, answer[-4000:].encode(errors="replace"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    numbers = answer.split()
    assert len(numbers) == 2, answer or f"the work took more than {MOST_SECONDS} s"
    return Peak(*map(int, numbers))
