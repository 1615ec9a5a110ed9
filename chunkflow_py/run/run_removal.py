"""Remove a run: its queue, exchange, hierarchy and run directory, but never its outputs.

The exchange consists of the patches that tasks have exchanged. The hierarchy consists of the
intermediate results of segmentation steps, such as graphs and edges.

```
store a mark -> remove hierarchy, exchange, queue
             -> remove the run directory, except spec and mark -> remove spec and mark
```

The mark, a file in the run directory, shows that a removal has begun. If a removal is interrupted,
the next removal completes the work. The spec is removed last, because the spec lists what to
remove.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, OptionError, QueueError
from chunkflow_py.queue.queue_protocol import Removable, open_queue
from chunkflow_py.run.ledger.ledger_journal import map_concurrently
from chunkflow_py.run.run_directory import SPEC
from chunkflow_py.run.run_prefix import RunPrefix
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.store.store_protocol import Store

_MARK = "removing"
# Options of operators of a segmentation whose objects only lead to the segmentation.
_INTERMEDIATE = ("graph_path", "hierarchy_path", "links_path", "edges_path")
_BATCH = 1000  # objects that are removed before the next ones are listed


@dataclass(frozen=True)
class RemovalPart:
    """Objects of a run that are removed together.

    Attributes:
        name: kind of the objects, such as ``exchange``.
        address: common address of the objects, without credentials.
        objects: number of objects.
        size: size of all objects in bytes.
    """

    name: str
    address: str
    objects: int
    size: int


@dataclass
class Removal:
    """The list of everything that `carry_out` will remove.

    Args:
        run: the run.
        expire: whether to remove only the exchange and the hierarchy, and to keep the run.

    Attributes:
        parts: objects by kind; kinds without objects are left out.
        queue: address of the queue to remove; empty if the queue is kept or does not exist.
    """

    run: RunDirectory
    expire: bool = False
    parts: list[RemovalPart] = field(default_factory=list, init=False)
    queue: str = field(default="", init=False)
    _stores: list[tuple[str, Store]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not self.run.exists() and self.has_begun:
            return  # only the mark is left
        by_url = {store.url.rstrip("/"): (name, store) for name, store in self._extra_stores()}
        self._stores = list(by_url.values())
        for name, store in self._stores:
            self._add(name, store.url, [size for _, size in sizes_of(store)])
        if self.expire:
            return
        by_folder: dict[str, list[int]] = {}
        for key, size in sizes_of(self.run.store):
            by_folder.setdefault(key.partition("/")[0], []).append(size)
        others = Counter[str]()
        for folder, sizes in sorted(by_folder.items()):
            address = f"{self.run.url.rstrip('/')}/{folder}"
            if not any(f"{url}/".startswith(f"{address}/") for url in by_url):
                if len(sizes) > 1:
                    self._add(folder, address, sizes)
                else:
                    others["objects"] += 1
                    others["size"] += sizes[0]
        if others:
            part = RemovalPart("other files", self.run.shown, others["objects"], others["size"])
            self.parts.append(part)
        self.queue = self._queue()

    @property
    def has_begun(self) -> bool:
        """Whether a removal of the run has begun, but not ended."""
        return self.run.store.size(_MARK) is not None

    def check(self, *, unfinished: bool) -> None:
        """Check that the run may be removed.

        Args:
            unfinished: whether an unfinished run may be removed.

        Raises:
            OptionError: the run is not finished, another run uses the records of the run, or the
                queue of the run has messages.
        """
        if self.has_begun:
            return
        step = self.run.current_step()
        if step is not None and not unfinished and not self._all_recorded():
            msg = (
                f"{self.run.shown} is not finished: step {step} has tasks without a record; finish "
                "the run, or add --unfinished to remove it nevertheless"
            )
            raise OptionError(msg)
        if self.expire:
            return
        if users := sorted(self._users()):
            msg = (
                f"{users[0]} was submitted with --fork, and uses records of {self.run.shown}; "
                f"remove {users[0]} first"
            )
            raise OptionError(msg)
        if self.queue:
            with closing(open_queue(self.queue)) as queue:
                counts = queue.counts(dead=False)
            if (counts.waiting or counts.leased) and not unfinished:
                msg = (
                    f"queue {without_secrets(self.queue)} has {counts.waiting} waiting and "
                    f"{counts.leased} leased messages, so another run may use the "
                    "queue; add --keep-queue to keep it"
                )
                raise OptionError(msg)

    def carry_out(self) -> None:
        """Remove exchange and hierarchy; if `expire` is false, also the queue and the run."""
        store = self.run.store
        if not self.expire:
            store.put(_MARK, b"")
        for _, each in self._stores:
            _remove_objects(each, keep=())
        if self.expire:
            return
        if self.queue:
            with closing(open_queue(self.queue)) as queue:
                if isinstance(queue, Removable):
                    queue.remove()
        _remove_objects(store, keep=(SPEC, _MARK))
        store.delete(SPEC)
        store.delete(_MARK)
        if store.is_local:  # the objects are gone; their folders remain
            shutil.rmtree(store.url.removeprefix("file://"), ignore_errors=True)

    def _extra_stores(self) -> Iterator[tuple[str, Store]]:
        for step in self.run.spec.steps:
            if step.name in self.run.spec.reused:
                continue
            if (exchange := self.run.exchange_of(step.name)) is not None:
                yield "exchange", open_store(exchange.url)
            written = [each.rstrip("/") for _, o in step.options for each in o.get("writes", ())]
            for _, options in step.options:
                for name in _INTERMEDIATE:
                    place = options.get(name)
                    if isinstance(place, str) and place:
                        store = open_store(place)
                        address = store.url.rstrip("/")
                        if any(f"{each}/".startswith(f"{address}/") for each in written):
                            yield "hierarchy", store

    def _add(self, name: str, url: str, sizes: list[int]) -> None:
        if sizes:
            self.parts.append(RemovalPart(name, without_secrets(url), len(sizes), sum(sizes)))

    def _queue(self) -> str:
        url = self.run.spec.queue
        if url:
            with suppress(QueueError), closing(open_queue(url)) as queue:
                if isinstance(queue, Removable):
                    return url
        return ""

    def _all_recorded(self) -> bool:
        return all(
            self.run.counts(step.name).finished >= step.tasks for step in self.run.spec.steps
        )

    def _users(self) -> Iterator[str]:
        """Yield the runs that reuse steps of this run, and are in the same folder as this run."""
        parent = self.run.url.rstrip("/").rpartition("/")[0]
        try:
            runs = RunPrefix(parent).runs()
        except ChunkflowError:
            return
        ours = self.run.url.rstrip("/")
        for other, _ in runs.values():
            if any(owner.rstrip("/") == ours for owner in other.spec.reused.values()):
                yield other.shown


def _remove_objects(store: Store, keep: tuple[str, ...]) -> None:
    """Remove all objects of a store except those with the keys *keep*."""
    while True:
        keys = []
        for key in store.list():
            if key not in keep:
                keys.append(key)
            if len(keys) >= _BATCH:
                break
        if not keys:
            break
        map_concurrently(store.delete, keys, store.connections)
    if store.is_local and not keep:
        shutil.rmtree(Path(store.url.removeprefix("file://")), ignore_errors=True)
