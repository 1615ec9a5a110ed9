"""All runs below one prefix, such as ``s3://bucket/runs/``, which one pool of workers can execute.

```
s3://bucket/runs/em.run/spec.json     each folder with a spec is a run
                 cells.run/spec.json
```
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, OptionError, named
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.scheduling import Scheduling, scheduling_of
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import subfolders_of

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

MOST_RUNS = 1000  # of one prefix; the first ones by name count


def is_run_prefix(text: str) -> bool:
    """Return whether an address is the prefix of several runs, instead of the address of one run.

    An address that ends with ``/`` is a prefix, unless there is a spec at the address.
    """
    return text.endswith("/") and "#" not in text and not RunDirectory(text.rstrip("/")).exists()


@dataclass
class RunPrefix:
    """The runs below one prefix.

    Attributes:
        url: address of the prefix, without a slash at its end.
        store: store of the prefix.
        unreadable: names of the folders whose runs could not be read.
    """

    url: str
    store: Store = field(init=False, repr=False)
    unreadable: set[str] = field(default_factory=set, init=False)
    _runs: dict[str, RunDirectory] = field(default_factory=dict, init=False, repr=False)
    _warned: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        self.store = open_store(self.url)
        if self.store.is_local:
            self.url = self.store.url.rstrip("/")

    @property
    def shown(self) -> str:
        """The address of the prefix without user name and password, with a slash at its end."""
        return f"{without_secrets(self.url)}/"

    def runs(self) -> dict[str, tuple[RunDirectory, Scheduling]]:
        """Return the readable runs and their priorities, with the name of the run as key.

        A warning names each run that cannot be read, and the reason. The warning is not repeated
        until the reason changes.
        """
        found: dict[str, tuple[RunDirectory, Scheduling]] = {}
        names = sorted(subfolders_of(self.store))
        if len(names) > MOST_RUNS:
            self.warn(
                self.shown,
                f"there are {len(names)} folders, but only the first {MOST_RUNS} by name are "
                "searched for runs; move finished runs to another prefix",
            )
        for name in names[:MOST_RUNS]:
            try:
                run = self._runs.get(name) or RunDirectory(f"{self.url}/{name}")
                if name not in self._runs:
                    if not run.exists():
                        continue  # a folder without a run, or a run that is being submitted
                    run.spec.check_current()
                    self._runs[name] = run
                found[name] = run, scheduling_of(run.store)
                self.unreadable.discard(name)
            except ChunkflowError as error:
                self.unreadable.add(name)
                self.warn(f"{self.shown}{name}", f"this run is left out: {named(error)}")
        for name in self._runs.keys() - set(names):
            del self._runs[name]
        self.unreadable &= set(names)
        return found

    def run(self, name: str) -> RunDirectory | None:
        """Return the run in the folder *name*; ``None`` if the prefix has no such run."""
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            return None
        run = self._runs.get(name) or RunDirectory(f"{self.url}/{name}")
        return run if run.exists() else None

    def warn(self, about: str, reason: str) -> None:
        """Log a warning about a run, unless the last warning about this run had the same reason."""
        if self._warned.get(about) != reason:
            self._warned[about] = reason
            logger.warning("%s: %s", about, reason)


def check_has_runs(prefix: RunPrefix) -> None:
    """Check that there is a run below a prefix.

    Raises:
        OptionError: there is no run below the prefix.
    """
    if not prefix.runs():
        msg = (
            f"there is no run at {prefix.shown}, and no run in a folder below it; correct the "
            "address, or create a run with chunkflow submit"
        )
        raise OptionError(msg)
