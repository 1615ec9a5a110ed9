"""Networks converted for another library, kept for the next start.

```
$CHUNKFLOW_CACHE_DIR or ~/.cache/chunkflow_py
└── converted/
    ├── 3f1c…/             key: network, weights, shape, versions of the libraries
    │   ├── network.xml    whatever the library writes; no pickles
    │   ├── network.bin
    │   └── contents.json  SHA-256 of each file: an entry that was damaged is made anew
    └── .tmp-5d0a…/        being written; renamed when it is whole
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
"""Part of every key; to be raised when what is written, or how, changes."""

LARGEST_BYTES = 10 * 1000**3
"""Of all entries together; the ones that were not used for the longest time are dropped."""

_CONTENTS = "contents.json"
_ABANDONED_S = 24 * 3600.0


def cache_folder() -> Path:
    """Return where converted networks are kept; it need not exist."""
    if given := os.environ.get("CHUNKFLOW_CACHE_DIR"):
        return Path(given).expanduser() / "converted"
    # The base directory specification of XDG has relative paths ignored.
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.cache").expanduser()
    return base / "chunkflow_py" / "converted"


def cache_key(digest: str | None, **parts: object) -> str | None:
    """Return the name of an entry.

    Args:
        digest: of the model and its weights; ``None`` if there is none.
        parts: what else decides the converted network, such as shape and versions.

    Returns:
        64 hexadecimal digits, or ``None`` without a digest: then nothing is kept.
    """
    if digest is None:
        return None
    listed = {"format": FORMAT, "digest": digest, **parts}
    text = json.dumps(listed, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def converted(key: str | None, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder with the files of a converted network, from the cache if possible.

    Processes that start at once and find nothing each make their own files, and one entry stays.
    Where the cache cannot be written, which is warned of once, the files are made each time.

    Args:
        key: of the entry (`cache_key`); ``None`` not to keep it.
        make: writes the files to an empty folder.

    Yields:
        The folder, to be read inside the block only. Files that were opened in it stay readable.

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
        # Read where it was made: nobody else knows this name.
        yield scratch
        _publish(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    drop_oldest(entry.parent, LARGEST_BYTES)


def drop_oldest(folder: Path, largest_bytes: int) -> None:
    """Remove entries, least recently used first, until *folder* holds at most *largest_bytes*."""
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
        "converted networks cannot be kept in %s (%s): each start converts anew; "
        "set CHUNKFLOW_CACHE_DIR to a folder that can be written",
        folder,
        reason,
    )


def _publish(scratch: Path, entry: Path) -> None:
    for _ in range(2):
        try:
            scratch.rename(entry)
        except OSError:
            # Another process was first, or what is there is damaged and gives way.
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
