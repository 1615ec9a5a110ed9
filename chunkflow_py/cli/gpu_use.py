"""Poll the utilisation of the GPUs that this process may use, with nvidia-smi."""

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
        number: index of the GPU as nvidia-smi reports it.
        busy: share of the time in which a kernel ran on the GPU, in [0, 1]; ``None`` if unknown.
        used_bytes: bytes of GPU memory that all processes together use.
        total_bytes: size of the GPU memory in bytes.
    """

    number: str
    busy: float | None
    used_bytes: int
    total_bytes: int


class GpuWatch:
    """Background thread that polls nvidia-smi, if it is installed.

    Attributes:
        now: utilisation of each GPU at the most recent poll. If there is no GPU, the list is empty.
    """

    def __init__(self) -> None:
        self.now: list[GpuUse] = []
        self._ended = threading.Event()

    def __enter__(self) -> GpuWatch:
        if shutil.which("nvidia-smi") and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            threading.Thread(target=self._run, name="gpu-use", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the polling thread to stop, without interrupting a running query."""
        self._ended.set()

    def text(self) -> str:
        """Return the utilisation and memory of all GPUs as text; empty if unknown."""
        busy = [f"{use.busy:.0%}" for use in self.now if use.busy is not None]
        if not busy:
            return ""
        used = sum(use.used_bytes for use in self.now) / 1e9
        total = sum(use.total_bytes for use in self.now) / 1e9
        return f"GPU {', '.join(busy)} busy, {used:.1f} of {total:.0f} GB"

    def _run(self) -> None:
        while not self._ended.is_set():
            use = gpu_use()
            if not use:
                return
            self.now = use
            self._ended.wait(PERIOD_S)


def gpu_use() -> list[GpuUse]:
    """Return the utilisation of each GPU that this process may use, as a list."""
    import subprocess  # not needed without a GPU

    fields = "index,uuid,utilization.gpu,memory.used,memory.total"
    try:
        output = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    usable = None if visible is None else [each.strip() for each in visible.split(",")]
    uses = []
    for line in output.splitlines():
        number, uuid, busy, used, total = [each.strip() for each in line.split(",")]
        if usable is not None and number not in usable and not _is_named(uuid, usable):
            continue
        numbers = [int(each) if is_digits(each) else None for each in (busy, used, total)]
        share = None if numbers[0] is None else numbers[0] / 100
        uses.append(GpuUse(number, share, *((each or 0) * 2**20 for each in numbers[1:])))
    return uses


def _is_named(uuid: str, usable: list[str]) -> bool:
    # CUDA_VISIBLE_DEVICES, from which *usable* comes, may contain the beginnings of UUIDs.
    return any(each and uuid.startswith(each) for each in usable)
