"""Run the checks of `chunkflow doctor` in order."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator


@dataclass(frozen=True)
class Places:
    """Stores and queues to check in addition to this machine.

    Attributes:
        stores: URLs of folders, buckets or volumes.
        queues: URLs of queues.
        write: whether the checks may create test objects in the stores, and test queues beside the
            queues. The checks remove these objects and queues afterwards.
    """

    stores: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    write: bool = False


# name -> module and name of the function. Each module is imported when needed, so that a missing
# package is reported by one check and does not prevent the others.
CHECKS = {
    "python": "package_checks:check_python",
    "packages": "package_checks:check_packages",
    "extras": "package_checks:check_extras",
    "processor": "machine_checks:check_processor",
    "threads": "machine_checks:check_threads",
    "allocator": "machine_checks:check_allocator",
    "memory": "machine_checks:check_memory",
    "disk": "machine_checks:check_disk",
    "shared-memory": "machine_checks:check_shared_memory",
    "open-files": "machine_checks:check_open_files",
    "gpu": "machine_checks:check_gpus",
    "convolution": "machine_checks:check_convolution",
    "store": "store_checks:check_store",
    "queue": "queue_checks:check_queue",
    "clock": "clock_checks:check_clock",
}


def examine(places: Places, checks: Collection[str] = ()) -> Iterator[Finding]:
    """Run the checks, and yield each finding as soon as it is known.

    Args:
        places: stores and queues to check.
        checks: names of the checks to run, from `CHECKS` (default: all).
    """
    for name in CHECKS:
        if checks and name not in checks:
            continue
        try:
            yield from _findings(name, places)
        except ImportError as error:
            what = error.name or str(error)
            text = f"not checked, because {what} is not installed or cannot be imported"
            yield Finding(name, "problem", text, "run chunkflow doctor --only packages,extras")


def _findings(name: str, places: Places) -> Iterator[Finding]:
    if name == "store":
        for url in places.stores:
            yield from _call(CHECKS[name], url, write=places.write)
    elif name == "queue":
        for url in places.queues:
            yield from _call(CHECKS[name], url, write=places.write)
    elif name == "clock":
        found = [_call("store_checks:clock_of", url) for url in places.stores]
        found += [_call("queue_checks:clock_of", url) for url in places.queues]
        for address in dict.fromkeys(filter(None, found)):
            yield from _call(CHECKS[name], address)
    else:
        yield from _call(CHECKS[name])


def _call(place: str, *args: Any, **options: Any) -> Any:
    module, _, name = place.partition(":")
    function: Callable[..., Iterable[Finding] | str | None]
    function = getattr(import_module(f"chunkflow_py.planning.doctor.{module}"), name)
    return function(*args, **options)
