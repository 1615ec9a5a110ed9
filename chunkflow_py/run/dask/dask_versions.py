"""Whether what is installed on a cluster of Dask is what this machine has.

The scheduler and the workers that are there are asked before anything is sent; a worker that joins
later looks for itself, before its first task.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

OWN = "chunkflow_py"
SAME = ("python", "dask", "distributed")  # of which another version is refused


def versions_here() -> tuple[tuple[str, str], ...]:
    """Return the versions that must be the same everywhere, as this process has them."""
    python = ".".join(map(str, sys.version_info[:2]))
    return ("python", python), *((package, version(package)) for package in SAME[1:])


def check_here(wanted: Iterable[tuple[str, str]]) -> None:
    """Compare what this process has with what the client has.

    Raises:
        OptionError: names what differs.
    """
    here = dict(versions_here())
    for package, theirs in wanted:
        if here[package] != theirs:
            msg = (
                f"it has {package} {here[package]}, and who has begun the run {theirs}; install "
                "the same version everywhere"
            )
            raise OptionError(msg)


def check_cluster(client: Any, address: str) -> None:
    """Compare what is installed here and there.

    Raises:
        OptionError: names what differs, and where.
    """
    said: Any = client.get_versions(packages=[OWN])
    here = said["client"]["packages"]
    there = {"the scheduler": said["scheduler"], **said["workers"]}
    for name, each in there.items():
        packages = each["packages"]
        who = name if name == "the scheduler" else f"worker {name}"
        for package in (*SAME, OWN):
            mine, theirs = (_version(package, found) for found in (here, packages))
            if theirs is None:
                msg = (
                    f"{who} of {address} has no {package}; install {package} {mine} there, as "
                    "scheduler and workers need what this machine has"
                )
                raise OptionError(msg)
            if mine != theirs and package == OWN:
                logger.warning("%s of %s has %s %s, not %s", who, address, OWN, theirs, mine)
            elif mine != theirs:
                msg = (
                    f"{who} of {address} has {package} {theirs}, and this machine {mine}; install "
                    "the same version everywhere"
                )
                raise OptionError(msg)


def _version(package: str, found: dict[str, str | None]) -> str | None:
    version = found.get(package)
    return ".".join(version.split(".")[:2]) if package == "python" and version else version
