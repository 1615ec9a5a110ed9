"""Memory available on the host, and the memory that one operator takes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.geometry import Zyx

# Libraries create kernels, threads and tables at their first use (measured: 12 to 18 MB).
FIRST_USE = 15_000_000

_ALWAYS_FITS = 1 << 30  # bytes; smaller arrays are not checked
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class OperatorMemory:
    """Peak host memory of one operator of a pipeline.

    Attributes:
        size: extent of the largest chunk that the operator makes for a task, voxels, zyx; ``None``
            if this chunk is as large as the first input.
        work: bytes that the operator needs in addition to chunks while it works on one task.
        held: bytes that stay allocated between tasks, by purpose (for example, a cache of blocks).
        complete: whether the estimate covers all memory of the operator.
    """

    size: Zyx | None = None
    work: int = 0
    held: dict[str, int] = field(default_factory=dict)
    complete: bool = True


def describe_bytes(size: int) -> str:
    """Format a number of bytes in MB, GB, TB or PB (powers of 1000)."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12)):
        if size >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def resident_bytes(proc: Path = _PROC) -> int:
    """Return the resident memory of this process, bytes; 0 if the system does not report it."""
    with suppress(OSError):
        pages = int((proc / "self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def available_host_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """Return how many bytes this process may use in total: its present memory plus free memory.

    The free memory is the kernel's MemAvailable. A container or a job (a control group, version 1
    or 2) may have a memory limit. The free memory is then at most this limit minus the memory that
    the group uses. Cached file pages count as free.

    Args:
        proc: mount point of procfs.
        cgroup: mount point of the control groups.

    Returns:
        Bytes; ``None`` if the system does not report them (not Linux).
    """
    free = [
        value * 1024
        for key, value in _numbers(proc / "meminfo")
        if key.rstrip(":") == "MemAvailable"
    ]
    for folder in _cgroups(proc, cgroup):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with suppress(OSError, ValueError):  # "max" means no limit
                unused = _number(folder / limit) - _number(folder / usage)
                cached = dict(_numbers(folder / "memory.stat"))
                free.append(unused + cached.get("inactive_file", 0))
    return max(0, min(free)) + resident_bytes(proc) if free else None


def check_fits(size: int, what: str) -> None:
    """Check, before an array is allocated, that the array fits in memory.

    A damaged file may state a size that is much too large.

    Args:
        size: bytes of the array.
        what: name of the array, for the message.

    Raises:
        VolumeError: *size* exceeds the available memory.
    """
    if size <= _ALWAYS_FITS:
        return
    available = available_host_bytes()
    if available is not None and size > available:
        msg = (
            f"{what} takes {describe_bytes(size)}, but this process may use only "
            f"{describe_bytes(available)}; read a smaller part"
        )
        raise VolumeError(msg)


def _cgroups(proc: Path, root: Path) -> Iterator[Path]:
    """Yield the control groups of this process, and their parents."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text(encoding="ascii").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            base = root / "memory" if kinds else root
            inner = base / path.lstrip("/")
            # In a container the path may be that of the host, of which only the root is mounted.
            yield from {inner, *(up for up in inner.parents if up.is_relative_to(base)), base}


def _numbers(path: Path) -> list[tuple[str, int]]:
    with suppress(OSError):
        rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return [(row[0], int(row[1])) for row in rows if len(row) > 1 and is_digits(row[1])]
    return []


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
