"""Which file a task reads or writes: one name for all tasks, or a prefix and the task's box."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sized

    from chunkflow_py.core.geometry import BoundingBox, Region


def local_path(text: str, option: str) -> str:
    """Return the path on this machine that *text* names, without ``file://``.

    Raises:
        OptionError: it names a place on another machine.
    """
    path = text.removeprefix("file://")
    if "://" in path:
        msg = f"{option} {text} is not on this machine's disk; give a path"
        raise OptionError(msg)
    return path


@dataclass(frozen=True)
class OnePath:
    """The value of an option that names the same file, folder or prefix for all tasks.

    Attributes:
        fixed_path: that path.
        option: for messages.
    """

    fixed_path: Path
    option: str = "--path"

    @property
    def place(self) -> str:
        """The absolute path."""
        return str(self.fixed_path.absolute())

    def path(self, region: Region | BoundingBox | None) -> Path:  # noqa: ARG002
        """Return the path."""
        return self.fixed_path


@dataclass(frozen=True)
class FileName:
    """The value of a ``--file-name`` option.

    ```
    out.h5                   the one file of that name
    out_                     out_0-64_0-512_0-512.h5 for the task 0-64_0-512_0-512
    ```

    Attributes:
        name: a name with an extension, or a prefix without one.
        extensions: those of the format, with their dots; the first is put after a prefix.
        option: for messages.
        reads: whether the file is read; then one that exists under this very name is no prefix.
        folders: whether that may also be a folder (of sections).
    """

    name: str
    extensions: tuple[str, ...]
    option: str = "--file-name"
    reads: bool = False
    folders: bool = False

    def __post_init__(self) -> None:
        """Refuse a URL of a store that is not this machine's.

        Raises:
            OptionError: *name* is such a URL.
        """
        object.__setattr__(self, "name", local_path(self.name, self.option))

    @property
    def is_prefix(self) -> bool:
        """Whether the box of a task is part of its file's name."""
        if self.name.lower().endswith(self.extensions):
            return False
        path = Path(self.name).expanduser()
        return not (self.reads and (path.is_file() or (self.folders and path.is_dir())))

    @property
    def fixed_path(self) -> Path | None:
        """The one file of all tasks, or ``None`` for a prefix."""
        return None if self.is_prefix else Path(self.name).expanduser()

    @property
    def place(self) -> str:
        """The file, or the files of all tasks with BOX for their boxes; an absolute path."""
        whole = f"{self.name}BOX{self.extensions[0]}" if self.is_prefix else self.name
        return str(Path(whole).expanduser().absolute())

    def path(self, region: Region | BoundingBox | None) -> Path:
        """Return the file of one task.

        Raises:
            VolumeNotFoundError: it is to be read, and there is nothing of this name.
            VolumeError: the name is a prefix, but there is no box to go behind it.
        """
        if not self.is_prefix:
            return Path(self.name).expanduser()
        if region is None and self.reads and not Path(self.name).expanduser().exists():
            msg = (
                f"{self.option} {self.name} does not exist; check the path, or give the prefix of "
                f"one {self.extensions[0]} file a task in a line that has tasks"
            )
            raise VolumeNotFoundError(msg)
        if region is None:
            msg = (
                f"{self.option} {self.name} has no extension {self.extensions[0]}, so it is a "
                "prefix for the box of a task, but this line has no tasks; write "
                f"{self.name}{self.extensions[0]}"
            )
            raise VolumeError(msg)
        return Path(f"{self.name}{region}{self.extensions[0]}").expanduser()

    def check_written_once(self, tasks: Sized | None) -> None:
        """Refuse one file name for several tasks that write.

        Args:
            tasks: the tasks (or their boxes), or ``None`` if they are not known in advance.

        Raises:
            OptionError: every task would replace the file of the one before.
        """
        if tasks is None or self.is_prefix or len(tasks) < 2:
            return
        path = Path(self.name)
        prefix = f"{path.with_suffix('')}_"
        msg = (
            f"{self.option} {self.name} is one file, which each of the {len(tasks)} tasks of this "
            f"line would replace; give a prefix instead: {self.option} {prefix} makes "
            f"{prefix}0-64_0-512_0-512{path.suffix} for the task 0-64_0-512_0-512"
        )
        raise OptionError(msg)

    def check_writable(self) -> None:
        """Refuse a place where no file can be written, before any work is done.

        Raises:
            VolumeError: a folder has this name, or a part of the path is a file.
        """
        path = self.fixed_path
        if path is not None and path.is_dir():
            msg = f"cannot write {path}: there is a folder of this name; choose another name"
            raise VolumeError(msg)
        folder = (Path(f"{self.name}0").expanduser() if path is None else path).parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            msg = f"cannot write {self.name}: {folder} is a file, not a folder; choose another name"
            raise VolumeError(msg)
