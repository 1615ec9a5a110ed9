"""Freed memory stays with the process, so that it is faulted in once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import chunkflow_py
from chunkflow_py.core import allocator

# Takes 96 MB in pieces of 32 MB (below the 64 MB of a thread's own heap in glibc) and gives them
# back, five times; prints how often a page was missing in the last three rounds.
SCRIPT = """
import resource, sys, threading
{first}
import numpy as np
def use():
    for round in range(5):
        if round == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [np.ones(32 << 20, np.uint8) for _ in range(3)]
        del pieces
    print("faults", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
{last}
"""
USE_IN_THREAD = "thread = threading.Thread(target=use); thread.start(); thread.join()"
KEEP = "from chunkflow_py import keep_freed_memory; assert keep_freed_memory()"
# As the command line is started by its script.
START = """
from chunkflow_py.cli.main import main
try:
    main(["--quiet", "create-chunk", "--size", "1", "1", "1"])
except SystemExit:
    pass
"""

glibc_only = pytest.mark.skipif(not allocator._is_glibc(), reason="the C library is not glibc")


def faults(first: str, last: str) -> int:
    """Return the page faults of a fresh process that runs *first*, then *last*."""
    # Huge pages would be faulted in by the 2 MB, and count for too little.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    script = SCRIPT.format(first=first, last=last)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout.split()[-1])


@glibc_only
@pytest.mark.parametrize("use", ["use()", USE_IN_THREAD], ids=["main thread", "another thread"])
def test_freed_memory_is_used_again(use: str) -> None:
    """Temporary buffers are faulted in once, in any thread; without the call, every time."""
    pages = 3 * 3 * (32 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("", use) > pages // 2
    assert faults(KEEP, use) < pages // 100


@glibc_only
def test_the_command_line_keeps_memory_by_itself() -> None:
    """The command line calls it by itself."""
    assert faults(START, USE_IN_THREAD) < 1000


@glibc_only
def test_the_heap_can_be_spared() -> None:
    """Buffers allocated outside the heap are returned at once; afterwards, memory is kept again."""
    spared = KEEP + "; from chunkflow_py.core.allocator import apart_from_heap"
    inside = "with apart_from_heap(): use()"
    assert faults(spared, inside) > 10_000
    assert faults(spared, f"{inside}\nuse()") < 1000


def test_nothing_is_kept_unless_asked_for() -> None:
    """A library does not change the allocator of a program behind its back."""
    code = (
        "from chunkflow_py.core import allocator\n"
        "with allocator.apart_from_heap(): pass\n"
        "print(allocator.keeps_freed_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@glibc_only
def test_it_may_be_called_again() -> None:
    """A second call changes nothing and returns the same."""
    assert chunkflow_py.keep_freed_memory()
    assert chunkflow_py.keep_freed_memory()
    assert allocator.keeps_freed_memory()


@pytest.mark.parametrize("answer", [None, "", ValueError("unknown"), OSError("unknown")])
def test_other_c_libraries_are_left_alone(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without glibc, nothing is done, and no error is raised."""

    def confstr(name: str) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "confstr", confstr, raising=False)
    assert not allocator.keep_freed_memory()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and macOS have allocators of their own."""
    monkeypatch.setattr(sys, "platform", platform)
    assert not allocator.keep_freed_memory()
