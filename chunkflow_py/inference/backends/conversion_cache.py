"""Cache of networks that were converted for another library.

```
$CHUNKFLOW_CACHE_DIR or ~/.cache/chunkflow_py
└── converted/
    ├── 3f1c…/             key: network, weights, shape, versions of the libraries
    │   ├── network.xml    files that the library writes; no pickles
    │   ├── network.bin
    │   └── contents.json  SHA-256 of each file: a damaged entry is made again
    └── .tmp-5d0a…/        being written; renamed when complete
```
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.local_files import TEMPORARY_PREFIX, make_folder, os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

logger = logging.getLogger(__name__)

FORMAT = 1
"""Part of every key; increase it when the content or format of the entries changes."""

LARGEST_BYTES = 10 * 1000**3
"""Limit of the size of the cache; beyond it, the least recently used entries are removed."""

_CONTENTS = "contents.json"
_ABANDONED_S = 24 * 3600.0


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    if given := os.environ.get("CHUNKFLOW_CACHE_DIR"):
        return Path(given).expanduser() / "converted"
    # The XDG base directory specification requires relative paths to be ignored.
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.cache").expanduser()
    return base / "chunkflow_py" / "converted"


def cache_key(digest: str | None, **parts: object) -> str | None:
    """Return the name of a cache entry.

    Args:
        digest: hash of the model and its weights, or ``None`` not to cache.
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

    Processes that start at the same time and find no entry each make their own files; the files of
    one process become the entry. If the cache cannot be written, the files are made at each start,
    with one warning.

    Args:
        key: name of the entry (`cache_key`); ``None`` not to cache.
        make: writes the files to an empty folder.

    Yields:
        The folder, which may be deleted after the ``with`` block. Files opened in it stay readable.

    Raises:
        VolumeError: the files do not fit in the cache or in the temporary folder.
    """
    entry = None if key is None else cache_folder() / key
    if entry is not None and _is_intact(entry):
        with suppress(OSError):
            os.utime(entry)
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
            contents = {each.name: _sha256(each) for each in scratch.iterdir()}
            (scratch / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")
        # Read before it is renamed: no other process knows this name.
        yield scratch
        _publish(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    drop_oldest(entry.parent, LARGEST_BYTES)


def drop_oldest(folder: Path, largest_bytes: int) -> None:
    """Remove entries, least recently used first, until *folder* has at most *largest_bytes*."""
    entries: list[tuple[float, int, Path]] = []
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                used = entry.stat().st_mtime
                if not entry.name.startswith(TEMPORARY_PREFIX):
                    entries.append((used, sum(f.stat().st_size for f in entry.iterdir()), entry))
                elif time.time() - used > _ABANDONED_S:  # of a process that was killed
                    shutil.rmtree(entry, ignore_errors=True)
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= largest_bytes:
            break
        logger.debug("dropping converted network %s of %d bytes", entry, size)
        shutil.rmtree(entry, ignore_errors=True)
        total -= size


def _scratch_beside(entry: Path) -> Path | None:
    scratch = entry.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    try:
        make_folder(entry.parent)
        with os_errors("write", entry.parent):
            scratch.mkdir()
    except VolumeError as error:
        _warn_unwritable(str(entry.parent), str(error))
        return None
    return scratch


@functools.cache  # once for each folder and reason
def _warn_unwritable(folder: str, reason: str) -> None:
    logger.warning(
        "converted networks cannot be cached in %s (%s), so each start converts them again; "
        "set CHUNKFLOW_CACHE_DIR to a writable folder",
        folder,
        reason,
    )


def _publish(scratch: Path, entry: Path) -> None:
    for _ in range(2):
        try:
            scratch.rename(entry)
        except OSError:
            # Another process was first, or the existing entry is damaged and is replaced.
            if _is_intact(entry):
                return
            aside = entry.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            with suppress(OSError):
                entry.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            return


def _is_intact(entry: Path) -> bool:
    try:
        contents: Mapping[str, str] = json.loads((entry / _CONTENTS).read_text(encoding="utf-8"))
        return bool(contents) and all(
            _sha256(entry / name) == expected for name, expected in contents.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
