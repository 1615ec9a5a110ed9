"""What can be told of a place before the first task: leave to write, and room on the disk."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from pathlib import Path

    from chunkflow_py.volume.location import Location

logger = logging.getLogger(__name__)


def check_leave_to_write(place: Location) -> None:
    """Refuse a place in which nothing can be made; a bucket tells only when it is written.

    Raises:
        VolumeError: it is on a web server, or names the folder that would have to allow it.
    """
    if place.protocol in ("http", "https"):
        msg = (
            f"cannot write {place}: web servers are only read; write to a folder, or to a bucket "
            "such as s3://bucket/em or gs://bucket/em"
        )
        raise VolumeError(msg)
    if not place.is_local:
        return
    folder = _existing(place.folder)
    if not folder.is_dir():
        if folder == place.folder:
            folder = folder.parent  # a file is replaced by one that is made beside it
        else:
            msg = f"cannot write {place}: {folder} is a file, not a folder; choose another name"
            raise VolumeError(msg)
    if not os.access(
        folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        msg = (
            f"cannot write {place}: folder {folder} is read-only for this user; change its "
            "permissions or write to another folder"
        )
        raise VolumeError(msg)


def check_room(place: Location, block_bytes: int, total_bytes: int) -> None:
    """Refuse a disk without room for a block, and warn of one that may be too small.

    Args:
        place: the volume.
        block_bytes: of one block before compression.
        total_bytes: of everything that will be written, before compression.

    Raises:
        VolumeError: there is no room for one block.
    """
    if not place.is_local:
        return
    free = shutil.disk_usage(_existing(place.folder)).free
    if free < block_bytes:
        msg = (
            f"cannot write {place}: the disk has {free} bytes left and one block takes "
            f"{block_bytes}; free some space or write to another disk"
        )
        raise VolumeError(msg)
    if free < total_bytes:
        logger.warning(
            "%s may not fit: the tasks make %s before compression, and the disk has %s left",
            place, describe_bytes(total_bytes), describe_bytes(free),
        )  # fmt: skip


def _existing(path: Path) -> Path:
    """Return *path*, or the nearest folder above it that can be seen."""
    for each in (path, *path.parents):
        with suppress(PermissionError):  # below a folder that this user may not enter
            if each.exists():
                return each
    return path
