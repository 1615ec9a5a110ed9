"""How much memory there is, of the host and of a GPU, as the process may use it."""

from __future__ import annotations

import torch

from chunkflow_py.core.memory import available_host_bytes, resident_bytes

__all__ = ["available_device_bytes", "available_host_bytes", "resident_bytes"]


def available_device_bytes(device: torch.device) -> int | None:
    """Return the memory of a GPU that this process can have in all; ``None`` for the CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
