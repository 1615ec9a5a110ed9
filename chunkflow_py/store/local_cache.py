"""Caches of files on the disk of this machine, shared by all processes.

```
$CHUNKFLOW_CACHE_DIR or ~/.cache/chunkflow_py
├── converted/             networks converted for another library
└── models/                files of networks that were fetched from an address
    ├── 3f1c…/             an entry: a folder with files but no subfolders
    │   ├── net.pt
    │   └── contents.json  SHA-256 of each other file, to recognise a damaged entry
    └── .tmp-5d0a…/        an entry that is being written; the folder is renamed when complete
```

If several processes need an entry that does not exist, each process writes its own temporary
folder. The folder that is renamed first becomes the entry.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.store.local_files import TEMPORARY_PREFIX, make_folder, os_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

LARGEST_BYTES = 10 * 1000**3
"""Limit of the size of a cache, in bytes; the least recently used entries are removed first."""

CONTENTS = "contents.json"
_ABANDONED_S = 24 * 3600.0


def cache_folder(name: str) -> Path:
    """Return the path of the cache called *name*; the folder may not exist yet."""
    if given := os.environ.get("CHUNKFLOW_CACHE_DIR"):
        return Path(given).expanduser() / name
    # The XDG base directory specification requires relative paths to be ignored.
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.cache").expanduser()
    return base / "chunkflow_py" / name


def scratch_folder(entry: Path) -> Path:
    """Create and return an empty folder beside *entry*, in which to write the files of the entry.

    Raises:
        VolumeError: the folder cannot be created.
    """
    scratch = entry.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    make_folder(entry.parent)
    with os_errors("write", entry.parent):
        scratch.mkdir()
    return scratch


def seal(scratch: Path) -> None:
    """Write ``contents.json``, the last file of an entry, with the SHA-256 of all other files.

    Args:
        scratch: temporary folder of the entry.

    Raises:
        OSError: a file cannot be read or written.
    """
    contents = {each.name: sha256_of_file(each) for each in scratch.iterdir()}
    (scratch / CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


def publish(scratch: Path, entry: Path) -> None:
    """Rename the complete folder *scratch* to *entry*, unless an intact *entry* exists.

    A damaged *entry* is replaced. If the file system refuses to rename, *scratch* keeps its name;
    no error is raised.
    """
    for _ in range(2):
        try:
            scratch.rename(entry)
        except OSError:
            # Another process was first, or the existing entry is damaged and is replaced.
            if intact_files(entry):
                return
            aside = entry.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            with suppress(OSError):
                entry.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            return


def intact_files(entry: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of an entry, or ``{}`` if the entry is absent or damaged."""
    try:
        contents: Mapping[str, str] = json.loads((entry / CONTENTS).read_text(encoding="utf-8"))
        intact = all(sha256_of_file(entry / name) == digest for name, digest in contents.items())
        return dict(contents) if intact else {}
    except (OSError, ValueError, AttributeError):
        return {}


def set_used(entry: Path) -> None:
    """Record that an entry is used now, so that `drop_oldest` keeps it longer."""
    with suppress(OSError):
        os.utime(entry)


def drop_oldest(folder: Path, largest_bytes: int = LARGEST_BYTES) -> None:
    """Remove the least recently used entries until *folder* has at most *largest_bytes* bytes."""
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
        logger.debug("dropping %s of %d bytes from the cache", entry, size)
        shutil.rmtree(entry, ignore_errors=True)
        total -= size


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
