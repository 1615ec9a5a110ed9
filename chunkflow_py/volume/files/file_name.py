"""Names of the files that tasks read or write: one file for all tasks, or one file per task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import BoundingBox, Region


def local_path(text: str, option: str) -> str:
    """Return *text* as a local path, without ``file://``.

    Raises:
        OptionError: *text* is a URL that does not begin with ``file://``.
    """
    path = text.removeprefix("file://")
    if "://" in path:
        msg = f"{option} {text} is not on this machine; give a local path"
        raise OptionError(msg)
    return path


@dataclass(frozen=True)
class OnePath:
    """The value of an option that names one file, folder or prefix for all tasks.

    Attributes:
        fixed_path: path of the file or folder, or a prefix of file names.
        option: name of the option, for messages.
    """

    fixed_path: Path
    option: str = "--path"

    @property
    def place(self) -> str:
        """Absolute path of the file, folder or prefix."""
        return str(self.fixed_path.absolute())

    def path(self, region: Region | BoundingBox | None) -> Path:  # noqa: ARG002
        """Return the path that all tasks share."""
        return self.fixed_path


@dataclass(frozen=True)
class FileName:
    """The value of a ``--file-name`` option.

    ```
    out.h5                   out.h5 for all tasks
    out_                     out_0-64_0-512_0-512.h5 for the task 0-64_0-512_0-512
    ```

    Attributes:
        name: a name with an extension, or a prefix without an extension.
        extensions: file name extensions of the format, with dots. The files of a prefix get the
            first of these extensions.
        option: name of the option, for messages.
        reads: whether tasks read files. If they do, and a file called *name* exists, *name* is not
            a prefix, even without an extension.
        folders: whether tasks that read files may also read a folder of sections. If they may, and
            a folder called *name* exists, *name* is not a prefix.
    """

    name: str
    extensions: tuple[str, ...]
    option: str = "--file-name"
    reads: bool = False
    folders: bool = False

    def __post_init__(self) -> None:
        """Remove ``file://`` from the name.

        Raises:
            OptionError: *name* is a URL that does not begin with ``file://``.
        """
        object.__setattr__(self, "name", local_path(self.name, self.option))

    @property
    def is_prefix(self) -> bool:
        """Whether each task has its own file, with the box of the task in the file name."""
        if self.name.lower().endswith(self.extensions):
            return False
        path = Path(self.name).expanduser()
        return not (self.reads and (path.is_file() or (self.folders and path.is_dir())))

    @property
    def fixed_path(self) -> Path | None:
        """The file that all tasks share, or ``None`` for a prefix."""
        return None if self.is_prefix else Path(self.name).expanduser()

    @property
    def place(self) -> str:
        """Absolute path; ``BOX`` after a prefix stands for the box of a task."""
        name = f"{self.name}BOX{self.extensions[0]}" if self.is_prefix else self.name
        return str(Path(name).expanduser().absolute())

    def path(self, region: Region | BoundingBox | None) -> Path:
        """Return the path of the file of one task; *region* is the box of this task.

        Raises:
            VolumeNotFoundError: *region* is ``None``, and the file to read does not exist.
            VolumeError: *region* is ``None``, but the name is a prefix, which needs a box.
        """
        if not self.is_prefix:
            return Path(self.name).expanduser()
        if region is None and self.reads and not Path(self.name).expanduser().exists():
            msg = (
                f"{self.option} {self.name} does not exist; check the path, or begin the pipeline "
                f"with generate-tasks if {self.name} is the prefix of one {self.extensions[0]} "
                "file per task"
            )
            raise VolumeNotFoundError(msg)
        if region is None:
            msg = (
                f"{self.option} {self.name} has no extension {self.extensions[0]} and therefore "
                "names one file per task, but this pipeline has no tasks; use "
                f"{self.name}{self.extensions[0]}"
            )
            raise VolumeError(msg)
        return Path(f"{self.name}{region}{self.extensions[0]}").expanduser()

    def check_written_once(self, tasks: int) -> None:
        """Refuse the name of a single file that several tasks would write.

        Args:
            tasks: number of tasks, or 0 if this number is not known in advance.

        Raises:
            OptionError: each task would replace the file of the previous task.
        """
        if self.is_prefix or tasks < 2:
            return
        path = Path(self.name)
        prefix = f"{path.with_suffix('')}_"
        msg = (
            f"{self.option} {self.name} is one file, but each of the {tasks} tasks of this "
            f"pipeline would replace it; give a prefix instead: with {self.option} {prefix}, the "
            f"task 0-64_0-512_0-512 writes {prefix}0-64_0-512_0-512{path.suffix}"
        )
        raise OptionError(msg)

    def check_writable(self) -> None:
        """Check before the first task that the file can be created.

        Raises:
            VolumeError: a folder has this name, or a parent in the path is a file.
        """
        path = self.fixed_path
        if path is not None and path.is_dir():
            msg = f"cannot write {path}: a folder of this name exists; choose another name"
            raise VolumeError(msg)
        folder = (Path(f"{self.name}0").expanduser() if path is None else path).parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            msg = f"cannot write {self.name}: {folder} is a file, not a folder; choose another name"
            raise VolumeError(msg)
