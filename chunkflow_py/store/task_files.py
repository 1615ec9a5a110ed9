"""The files that tasks read and write, in any store, and the names of these files.

```
syns.h5              one file for all tasks
syns/                one file for each task: syns/0-64_0-512_0-512.h5
syns_                one file for each task: syns_0-64_0-512_0-512.h5
```
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.task import BOX, Output
from chunkflow_py.errors import GeometryError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFiles:
    """The value of an option that names one file per task, or one file for all tasks.

    Attributes:
        name: path or URL as a user writes it: a file, a folder, or the start of the files' names.
        suffix: end of the files' names.
        extensions: file extensions; if *name* ends with one of them, all tasks share one file.
        option: name of the option, for messages.
    """

    name: str
    suffix: str = ""
    extensions: tuple[str, ...] = ()
    option: str = "--prefix"

    def __post_init__(self) -> None:
        """Check that an address in a cloud has a path after the name of the bucket.

        Raises:
            OptionError: the address has no path after the bucket, so the boxes in the files' names
                would become part of the bucket's name.
        """
        scheme, separator, path = self.name.partition("://")
        if separator and scheme != "file" and "/" not in path:
            msg = (
                f"{self.option} {self.name} is only a bucket, without a path inside it; write "
                f"{scheme}://{path or 'bucket'}/"
            )
            raise OptionError(msg)

    @property
    def is_fixed(self) -> bool:
        """Whether all tasks share one file."""
        return self.name.lower().endswith(self.extensions) if self.extensions else False

    @property
    def place(self) -> str:
        """Absolute address of a task's file, with ``BOX`` instead of the task's box.

        If all tasks share one file, this is the address of that file.
        """
        name = self._named("BOX")
        return str(_local(name).absolute()) if _is_local(name) else name

    @property
    def output(self) -> Output:
        """The output for the spec of a run, if each task writes a single file."""
        return Output("file", self._address(self._named(BOX)))

    @property
    def outputs(self) -> Output:
        """The output for the spec of a run, if a task may write several files.

        The URL of this output is the common prefix of the addresses of the files.
        """
        address = self.output.url
        return Output("objects", address.rpartition(BOX)[0] or address)

    def url(self, region: Region | None) -> str:
        """Return the address of a task's file.

        Raises:
            GeometryError: files are named after boxes, but the task has no box.
        """
        if region is None and not self.is_fixed:
            msg = (
                f"{self.option} {self.name} names each file after the box of the task, but this "
                "task has no box; begin the pipeline with create-bbox or generate-tasks"
            )
            raise GeometryError(msg)
        return self._named(str(region))

    def _named(self, box: str) -> str:
        if self.is_fixed:
            return self.name
        # For files with an extension, the name may also be that of their folder.
        is_folder = bool(self.extensions) and not self.name.endswith("/") and _is_local(self.name)
        slash = "/" if is_folder and _local(self.name).is_dir() else ""
        return f"{self.name}{slash}{box}{self.suffix}"

    def size(self, region: Region | None) -> int | None:
        """Return the length of a task's file in bytes; ``None`` if the file does not exist.

        A folder with content, such as a zarr array, counts as a file of length 1. In a cloud, a
        folder is found only if the suffix ends with a slash.

        Raises:
            VolumeError: the store cannot be read.
        """
        store, key = _split(self.url(region).rstrip("/"))
        size = store.size(key)
        if size is None and (store.is_local or self.suffix.endswith("/")):
            return 1 if any(True for _ in store.list(f"{key}/")) else None
        return size

    def read(self, region: Region | None) -> bytes:
        """Return the content of a task's file.

        Raises:
            VolumeNotFoundError: the file does not exist.
        """
        url = self.url(region)
        store, key = _split(url)
        data = store.get(key)
        if data is None:
            msg = f"{url} does not exist; check {self.option}"
            raise VolumeNotFoundError(msg)
        return data

    def write(self, region: Region | None, data: bytes) -> Stored:
        """Write a task's file atomically and durably; return the record of the write."""
        store, key = _split(self.url(region))
        store.put(key, data)
        return Stored.of(self._address(self.url(region)), data)

    def touch(self, region: Region | None) -> Stored:
        """Create an empty file for a task, unless the file exists; return the file's record."""
        store, key = _split(self.url(region))
        content = b"" if store.put_if_absent(key, b"") else store.get(key)
        return Stored.of(self._address(self.url(region)), content or b"")

    @staticmethod
    def _address(url: str) -> str:
        store, key = _split(url)
        return f"{store.url.rstrip('/')}/{key}"


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def _local(url: str) -> Path:
    return Path(url.removeprefix("file://")).expanduser()


def _split(url: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the key of the file in this store."""
    folder, slash, key = url.removeprefix("file://").rpartition("/")
    return open_store(folder or slash or "."), key


def grown(region: Region | None, voxels: int) -> Region | None:
    """Return *region* with its box grown on every side; negative *voxels* shrink the box.

    Raises:
        GeometryError: the box would have a negative size.
    """
    return region and region.with_box(region.bbox.grow((voxels,) * 3))


@dataclass
class ItemSaver(OperatorBase):
    """Writes one item of each task, such as the synapses of the task, to a small file.

    Attributes:
        files: names of the files.
        input_name: name of the item.
        encode: function that returns the content of the file for an item.
        kind: required type of the item.
        touch: whether an empty file is written for a task whose item is ``None`` (no result).
    """

    files: TaskFiles
    input_name: str
    encode: Callable[[Any], bytes]
    kind: type
    touch: bool = True
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _writer: Region | None = field(default=None, init=False, repr=False)
    _is_written: bool = field(default=False, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    @hook
    def destination(self) -> str:
        """Address of a task's file, with ``BOX`` instead of the task's box.

        If all tasks share one file, this is the address of that file.
        """
        return self.files.place

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: one file for all tasks, or one file for each task."""
        return (self.files.output,)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that several tasks do not write the same file.

        Args:
            outline: what is known before the first task, a `chunkflow_py.core.outline.Outline`.

        Raises:
            OptionError: each task would replace the file of the previous task.
        """
        if self.files.is_fixed and outline.task_count > 1:
            name = self.files.name
            msg = (
                f"{self.files.option} {name} is one file, which each of the {outline.task_count} "
                f"tasks of this pipeline would replace; for one file per task, give a prefix such "
                f"as {name.rpartition('.')[0]}_"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Write the item of a task to the task's file, and return the task.

        Raises:
            VolumeError: the file cannot be written, or another task has written the same file.
        """
        if task[self.input_name] is None and self.touch:
            data = b""
        else:
            data = self.encode(task.item(self.input_name, self.kind))
        self.save(task, data)
        return task

    def save(self, task: Task, data: bytes, region: Region | None = None) -> None:
        """Write the content of a task's file.

        Args:
            task: task of the file; `Task.region` gives the file name.
            data: content of the file.
            region: region that gives the file name if `Task.region` is ``None``.

        Raises:
            VolumeError: the file cannot be written, or another task has written the same file.
        """
        with self._lock:  # `prepare` does not know the tasks of a queue
            if self.files.is_fixed and self._is_written and self._writer != task.region:
                msg = (
                    f"task {task} would replace {self.files.name}, which task {self._writer} has "
                    f"written; for one file per task, give {self.files.option} a prefix without "
                    "an extension"
                )
                raise VolumeError(msg)
            self._is_written, self._writer = True, task.region
        task.written.append(self.files.write(task.region or region, data))
        logger.info("wrote %s", without_secrets(self.files.url(task.region or region)))
