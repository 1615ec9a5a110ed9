"""Utilisation of the GPUs of this process, polled with nvidia-smi."""

from __future__ import annotations

import os
import shutil
import threading
from typing import NamedTuple

from chunkflow_py.core.plain_text import is_digits

PERIOD_S = 3.0
_ANSWER_S = 20


class GpuUse(NamedTuple):
    """Utilisation of one GPU.

    Attributes:
        number: of nvidia-smi.
        busy: share of the time in which a kernel ran; ``None`` if the system does not tell.
        used_bytes: of its memory, by all processes.
        total_bytes: of its memory.
    """

    number: str
    busy: float | None
    used_bytes: int
    total_bytes: int


class GpuWatch:
    """Asks in a thread of its own, where there is an nvidia-smi.

    Attributes:
        now: what was found last; empty where there is no GPU.
    """

    def __init__(self) -> None:
        """Prepare; polling starts on entering."""
        self.now: list[GpuUse] = []
        self._ended = threading.Event()

    def __enter__(self) -> GpuWatch:
        """Start polling."""
        if shutil.which("nvidia-smi") and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            threading.Thread(target=self._run, name="gpu-use", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop polling; a running query ends by itself."""
        self._ended.set()

    def text(self) -> str:
        """Return the utilisation of the GPUs as text; empty without a GPU."""
        busy = [f"{use.busy:.0%}" for use in self.now if use.busy is not None]
        if not busy:
            return ""
        used = sum(use.used_bytes for use in self.now) / 1e9
        total = sum(use.total_bytes for use in self.now) / 1e9
        return f"GPU {', '.join(busy)} busy, {used:.1f} of {total:.0f} GB"

    def _run(self) -> None:
        while not self._ended.is_set():
            found = gpu_use()
            if not found:
                return
            self.now = found
            self._ended.wait(PERIOD_S)


def gpu_use() -> list[GpuUse]:
    """Return what the GPUs do that this process may use; nothing if there is none."""
    import subprocess  # lines without a GPU need none of it

    asked = "index,uuid,utilization.gpu,memory.used,memory.total"
    try:
        listed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [each.strip() for each in visible.split(",")]
    found = []
    for line in listed.splitlines():
        number, name, busy, used, total = [each.strip() for each in line.split(",")]
        if wanted is not None and number not in wanted and not _is_named(name, wanted):
            continue
        numbers = [int(each) if is_digits(each) else None for each in (busy, used, total)]
        share = None if numbers[0] is None else numbers[0] / 100
        found.append(GpuUse(number, share, *((each or 0) * 2**20 for each in numbers[1:])))
    return found


def _is_named(name: str, wanted: list[str]) -> bool:
    return any(each and name.startswith(each) for each in wanted)
