"""Temporary folders that are deleted when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

_folders: list[Path] = []
_parent: Path | None = None


def temporary_folder(prefix: str) -> Path:
    """Create a folder for temporary files, and return its path.

    The folder is deleted when the process exits normally or by `end_process`, but not when the
    process is killed.

    Args:
        prefix: start of the name of the folder.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_parent))
    _folders.append(folder)
    return folder


def put_temporary_folders_into(parent: Path) -> None:
    """Create further temporary folders in *parent*, which another process deletes.

    Then they are deleted even if this process is killed.
    """
    global _parent  # noqa: PLW0603  one place for the whole process
    _parent = parent


def end_process(code: int) -> NoReturn:
    """Delete the temporary folders, then end the process at once, without waiting for threads.

    Args:
        code: exit code of the process.
    """
    _delete()
    os._exit(code)


@atexit.register
def _delete() -> None:
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
