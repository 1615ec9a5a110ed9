"""What takes seconds to make, made once for all processes of one run of pytest."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return a new folder with what *build* writes; only one process of pytest calls *build*.

    A module's tests run in several processes, each with its own module fixtures. What takes seconds
    to make is therefore made once, and each process gets a copy that its tests may change.

    Args:
        factory: the fixture ``tmp_path_factory``.
        name: name of the folder, unique among all tests.
        build: function that gets an empty folder and fills it. Absolute paths that it stores lead
            to that folder, which tests must not change.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    source = folder / f"built-{name}"
    with source.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = source.with_suffix(".done")
        if not done.exists():
            shutil.rmtree(source, ignore_errors=True)  # a build that failed
            source.mkdir()
            build(source)
            done.touch()
    return shutil.copytree(source, factory.mktemp(name) / name)
