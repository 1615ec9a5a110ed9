"""Settings for all tests."""

import gc
import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from rigs.s3 import google, gs, ministack, ministack_address, moto, s3  # fixtures
from rigs.sqs import fauxqs, sqs_queue, sqs_server

# Suites of tests: pytest explains only the asserts of files that it rewrites.
pytest.register_assert_rewrite("chunkflow_py.testing", "contracts")

# Machines that run the suite are slow and shared: time is no reason to fail an example. A gate has
# to give one answer, so it draws the same examples each time; elsewhere each run draws new ones.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")

__all__ = [
    "fauxqs", "google", "gs", "ministack", "ministack_address", "moto", "s3", "sqs_queue",
    "sqs_server",
]  # fmt: skip


def stop_ignoring_signals():
    """Let no test inherit ignored signals from the shell: children of this process have defaults.

    A shell ignores SIGINT and SIGQUIT for what it starts in the background, and nohup SIGHUP. A
    program that is started with an ignored signal cannot be tested for what it does on it. SIGHUP
    still does nothing here, but by a handler, which ends at exec.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    ignored_by_python = {signal.SIGPIPE, signal.SIGXFSZ}  # and restored by subprocess
    for number in signal.valid_signals() - ignored_by_python:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, defaults.get(number, signal.SIG_DFL))


stop_ignoring_signals()


# Variables that our code and what it calls read; torch sets others as it goes.
SETTINGS = (
    "AWS_",
    "CHUNKFLOW",
    "CLOUD",
    "GOOGLE",
    "HOME",
    "OMP_",
    "PATH",
    "PYTHONP",
    "TMP",
    "XDG_",
)


def what_tests_share():
    """Return what one test could change for the tests that follow in its process."""
    ours = logging.getLogger("chunkflow_py")
    # pytest adds its own while our loggers keep what they say to themselves.
    handlers = [each for each in ours.handlers if type(each).__module__ != "_pytest.logging"]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    return {
        "folder": Path.cwd(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(SETTINGS)},
        "signals": [signal.getsignal(number) for number in numbers],
        "log": (ours.level, ours.propagate, ours.disabled, handlers),
        "timers": {
            each
            for each in threading.enumerate()
            if isinstance(each, threading.Timer) and not each.finished.is_set()
        },
    }


@pytest.fixture(autouse=True)
def _leaves_all_as_it_was():
    """A test that changes what others rely on fails itself, not the test that comes next."""
    before = what_tests_share()
    yield
    after = what_tests_share()
    assert not after.pop("timers") - before.pop("timers")
    assert after == before


@pytest.hookimpl(wrapper=True)  # before tests are deselected, and after they were shuffled
def pytest_collection_modifyitems(items):
    """Leave tests on a second server to `make drills`, and put long tests first.

    So no process is left with a long one when the others have finished. The order is otherwise
    kept, which shares the fixtures of a module between its tests.
    """
    names = {item.nodeid for item in items}
    for item in items:
        if "[moto" in item.nodeid and item.nodeid.replace("[moto", "[ministack") in names:
            item.add_marker(pytest.mark.long)
    yield
    items.sort(key=lambda item: -duration_s(item))


def pytest_collection_finish():
    """Exempt the imported modules from garbage collections, which tests cause in large numbers."""
    gc.collect()
    gc.freeze()


def duration_s(item):
    """Return a guess of how many seconds a test takes, from its marks; 0 for short ones."""
    limit = item.get_closest_marker("timeout")
    if limit:
        return limit.args[0]
    return 20 if item.get_closest_marker("slow") else 5 if item.get_closest_marker("drill") else 0
