"""Cache of networks that were converted for another library.

An entry of the cache contains the files that the library writes, such as ``network.xml`` and
``network.bin``, and never a pickle. `chunkflow_py.store.local_cache` describes the folders.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import local_cache
from chunkflow_py.store.local_cache import LARGEST_BYTES, drop_oldest
from chunkflow_py.store.local_files import os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

FORMAT = 1
"""Part of every key; increase it when the content or format of the entries changes."""


def cache_folder() -> Path:
    """Return the path of the cache's folder; the folder may not exist yet."""
    return local_cache.cache_folder("converted")


def cache_key(digest: str | None, **parts: object) -> str | None:
    """Return the name of a cache entry.

    Args:
        digest: hash of the model and its weights, or ``None`` to disable the cache.
        parts: other values that decide the converted network, such as shape and versions.

    Returns:
        64 hexadecimal digits, or ``None`` if *digest* is ``None``.
    """
    if digest is None:
        return None
    listed = {"format": FORMAT, "digest": digest, **parts}
    text = json.dumps(listed, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def converted(key: str | None, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder with the files of a converted network, from the cache if possible.

    If several processes convert the same network at the same time, the files of one process become
    the entry of the cache. If the cache cannot be written, every process converts the network
    again, and one warning is logged.

    Args:
        key: name of the entry (`cache_key`), or ``None`` to disable the cache.
        make: function that converts the network and writes the files to an empty folder.

    Yields:
        The folder. It may be deleted at the end of the ``with`` block. A file that was opened in
        the block stays readable.

    Raises:
        VolumeError: the files cannot be written, for example because the disk is full.
    """
    entry = None if key is None else cache_folder() / key
    if entry is not None and local_cache.intact_files(entry):
        local_cache.set_used(entry)
        logger.debug("converted network found in %s", entry)
        yield entry
        return
    scratch = None if entry is None else _scratch_beside(entry)
    if entry is None or scratch is None:
        with os_errors("write", tempfile.gettempdir()), tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            yield Path(folder)
        return
    try:
        with os_errors("write", scratch):
            make(scratch)
            local_cache.seal(scratch)
        # Read before it is renamed: no other process knows this name.
        yield scratch
        local_cache.publish(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    drop_oldest(entry.parent, LARGEST_BYTES)


def _scratch_beside(entry: Path) -> Path | None:
    try:
        return local_cache.scratch_folder(entry)
    except VolumeError as error:
        _warn_unwritable(str(entry.parent), str(error))
        return None


@functools.cache  # once for each folder and reason
def _warn_unwritable(folder: str, reason: str) -> None:
    logger.warning(
        "converted networks cannot be cached in %s (%s), so every process converts its network "
        "again; set CHUNKFLOW_CACHE_DIR to a writable folder",
        folder,
        reason,
    )
