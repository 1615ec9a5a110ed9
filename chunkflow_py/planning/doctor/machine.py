"""The machine: memory, folders that are written to, shared memory, open files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.core.memory import available_host_bytes, describe_bytes
from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

LITTLE_MEMORY = 4_000_000_000  # a network of usual size with its patches, and Python
LITTLE_DISK = 10_000_000_000
NO_DISK = 1_000_000_000
LITTLE_SHARED = 1_000_000_000  # what containers get by themselves is 64 MB
SHARED = Path("/dev/shm")  # noqa: S108 a device, not a temporary file
# A worker holds its connections, the pipes of its processes and the files of a volume.
FEW_FILES, NO_FILES = 1024, 256


def check_memory() -> Iterator[Finding]:
    """Say how much memory this process can have."""
    free = available_host_bytes()
    if free is None:
        yield Finding("memory", "ok", "the system does not tell how much there is")
    elif free < LITTLE_MEMORY:
        text = f"{describe_bytes(free)} can be had, and a network with its patches takes gigabytes"
        remedy = "use small patches, --ahead 0, or a machine with more"
        yield Finding("memory", "note", text, remedy)
    else:
        yield Finding("memory", "ok", f"{describe_bytes(free)} can be had")


def check_disk() -> Iterator[Finding]:
    """Try the folders that every line may write to."""
    yield check_folder("the working folder", Path.cwd(), needed=False)
    temporary = os.environ.get("TMPDIR")
    # What Python chooses by itself is the next that works, where the named one does not.
    if temporary and not Path(temporary).is_dir():
        text = f"TMPDIR is {temporary}, which is no folder: {tempfile.gettempdir()} is taken"
        yield Finding("disk", "problem", text, "make it, or name another folder")
    else:
        folder = Path(temporary or tempfile.gettempdir())
        yield check_folder("the folder for temporary files", folder)
    for what, folder in _caches().items():
        yield check_folder(what, folder)


def check_folder(what: str, folder: Path, *, needed: bool = True) -> Finding:
    """Try whether a folder can be written to, and how much space it has.

    Args:
        what: it is, for the message.
        folder: need not exist, if one above it does.
        needed: whether nothing works without.
    """
    where = f"{what} {folder}"
    try:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 65536)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        level, why = "problem" if needed else "note", error.strerror or type(error).__name__
        remedy = "make space, give yourself the right to write there, or name another folder"
        return Finding("disk", level, f"{where} cannot be written to: {why}", remedy)  # type: ignore[arg-type]
    text = f"{where} has {describe_bytes(free)} free"
    if free < NO_DISK:
        return Finding("disk", "problem", text, "make space, or name another folder")
    if free < LITTLE_DISK:
        return Finding("disk", "note", text, "chunks that are spilled or saved there may need more")
    return Finding("disk", "ok", text)


def _caches() -> dict[str, Path]:
    """Return folders in which things are kept between two starts."""
    from chunkflow_py.inference.backends.conversion_cache import cache_folder as converted
    from chunkflow_py.run.run_directory import cache_folder as files

    return {"the cache of files of runs": files(), "the cache of converted networks": converted()}


def check_shared_memory(folder: Path = SHARED) -> Iterator[Finding]:
    """Say how large the memory is that processes share, for Dask, PyTorch and locks.

    Args:
        folder: as which the system shows it.
    """
    if not folder.is_dir():
        yield Finding("shared-memory", "ok", f"this system has no {folder}")
        return
    tried = check_folder("shared memory", folder)
    total = shutil.disk_usage(folder).total
    if "cannot be written" in tried.text:
        remedy = f"mount it: mount -t tmpfs tmpfs {folder}, or docker run --shm-size 2g"
        yield Finding("shared-memory", "problem", tried.text, remedy)
    elif total < LITTLE_SHARED:
        text = f"{folder} has {describe_bytes(total)}, which Dask and loaders of PyTorch may exceed"
        yield Finding("shared-memory", "note", text, "docker run --shm-size 2g, or --ipc host")
    else:
        yield Finding("shared-memory", "ok", f"{folder} has {describe_bytes(total)}")


def check_open_files() -> Iterator[Finding]:
    """Say how many files this process may have open."""
    try:
        import resource
    except ImportError:  # not a Unix
        yield Finding("open-files", "ok", "this system has no limit to ask for")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= FEW_FILES:
        yield Finding("open-files", "ok", f"{soft} at a time")
        return
    text = f"{soft} at a time, and a worker with its connections needs up to {FEW_FILES}"
    may = hard in (-1, resource.RLIM_INFINITY) or hard >= FEW_FILES
    remedy = f"ulimit -n {FEW_FILES}" if may else f"have the hard limit of {hard} raised"
    yield Finding("open-files", "problem" if soft < NO_FILES else "note", text, remedy)
