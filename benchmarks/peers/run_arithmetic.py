"""Measure how fast the machine multiplies matrices, and count what the networks multiply.

No network that is computed as written can be faster than its multiplications.
"""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

import torch
from measure import job, report
from torch.utils.flop_counter import FlopCounterMode

SIZE = 4096


def multiplication_rate(dtype: torch.dtype) -> float:
    """Return the operations a second of the fastest of several products of large matrices."""
    a, b = torch.rand(SIZE, SIZE).to(dtype), torch.rand(SIZE, SIZE).to(dtype)
    out = torch.empty(SIZE, SIZE, dtype=dtype)
    seconds = []
    for _ in range(6):
        start = perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(perf_counter() - start)
    return 2 * SIZE**3 / min(seconds)


def operations(model: str, patch: list[int]) -> float:
    """Return the multiplications and additions of one forward, in tensors without memory."""
    network = import_module(model).InstantiatedModel.to("meta")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros(1, 1, *patch, device="meta"))
    return float(counter.get_total_flops())


def main() -> None:
    """Report rates by dtype and operations by model (``models``, ``patch`` of the job)."""
    asked = job()
    rates: dict[str, Any] = {
        "float32": multiplication_rate(torch.float32),
        "bfloat16": multiplication_rate(torch.bfloat16),
    }
    counts = {model: operations(model, asked["patch"]) for model in asked["models"]}
    report({"operations_per_s": rates, "operations": counts})


if __name__ == "__main__":
    main()
