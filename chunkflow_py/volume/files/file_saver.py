"""Base class of the operators that save a chunk of each task to a local file."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.task import Output
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.local_files import replacing, stored_file
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.files.file_name import FileName

logger = logging.getLogger(__name__)


@dataclass
class FileSaver(OperatorBase):
    """Writes the chunk of each task to a file.

    Attributes:
        files: name of the file, or prefix of one file per task.
        write: function (path, chunk) -> None that writes the file; the file gets its final name
            only when it is complete.
        input_name: name of the chunk in the task.
        touch: what to do if the chunk of a task is ``None`` (no result): ``True`` writes an empty
            file, ``False`` writes nothing, and ``None`` raises an error.
        others: types of objects, other than chunks, that *write* accepts.
    """

    files: FileName
    write: Callable[[Path, Any], None]
    input_name: str = "chunk"
    touch: bool | None = None
    others: tuple[type, ...] = ()
    _written: tuple[Path, Region | None] | None = field(default=None, repr=False)

    @property
    @hook
    def destination(self) -> str:
        """Path of the file; ``BOX`` in the path stands for the box of each task."""
        return self.files.place

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return one output: the path of the file, with ``BOX`` in place of a task's box."""
        return (Output("file", f"file://{self.files.place}"),)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the file of each task can be created, and that no two tasks write one file.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.

        Raises:
            OptionError: several tasks would write one file.
            VolumeError: the file cannot be created.
        """
        self.files.check_written_once(outline.task_count)
        self.files.check_writable()

    def __call__(self, task: Task) -> Task:
        """Write the chunk.

        Raises:
            VolumeError: the file cannot be written, or an earlier task has written the same file.
        """
        item = task[self.input_name] if self.touch is not None else None
        if self.touch is not None and item is None:
            path = self._path(task, task.region)
            if self.touch:
                with replacing(path) as temporary:
                    temporary.touch()
                task.written.append(stored_file(path))
            else:
                task.written.append(Stored(f"file://{path.absolute()}"))
            return task
        region = task.region
        if not isinstance(item, self.others):
            item = task.chunk(self.input_name)
            region = region or Region(item.bbox)
        path = self._path(task, region)
        self.write(path, item)
        task.written.append(stored_file(path))
        logger.info("wrote %s", path)
        return task

    def _path(self, task: Task, region: Region | None) -> Path:
        path = self.files.path(region)
        # The tasks of a queue are not known in advance, so `prepare` cannot detect this.
        if (
            self._written is not None
            and self._written[0] == path
            and self._written[1] != task.region
        ):
            msg = (
                f"task {task} would replace {path}, which task {self._written[1]} has written; "
                f"give {self.files.option} a prefix without {self.files.extensions[0]}, so that "
                "each task writes its own file"
            )
            raise VolumeError(msg)
        self._written = (path, task.region)
        return path
