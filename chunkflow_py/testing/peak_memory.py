"""The memory that a piece of work holds, whatever other threads of the process do meanwhile."""

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
    """Peak memory, in bytes above the memory in use before.

    Attributes:
        traced: allocated by Python and NumPy.
        resident: of the process, which includes what libraries allocate themselves.
    """

    traced: int
    resident: int


def peak_of(work: Callable[[], object]) -> Peak:
    """Run *work* in a fork of this process, which has one thread, and measure its peak memory.

    Servers and clients of other tests run in threads of this process; a measurement here would
    count what they allocate.

    Raises:
        AssertionError: The work failed, with its traceback.
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
        except BaseException:  # noqa: BLE001 whatever it is, it belongs to the test
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
