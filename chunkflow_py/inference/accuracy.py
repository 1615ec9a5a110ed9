"""How far a faster way of running a network is from float32 by PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.inference.backends.protocol import Backend


@dataclass(frozen=True)
class Accuracy:
    """Absolute differences between two outputs, in the units of the output.

    Each is NaN where an output holds one, so that no limit is kept then.

    Attributes:
        largest: of all values.
        percentile_999: 99.9 % of the values differ by no more.
        mean: of all values.
    """

    largest: float
    percentile_999: float
    mean: float

    def __str__(self) -> str:
        """Return the three in one line."""
        return (
            f"largest {self.largest:.1e}, 99.9 % below {self.percentile_999:.1e}, "
            f"mean {self.mean:.1e}"
        )


def error_against(reference: torch.Tensor, measured: torch.Tensor) -> Accuracy:
    """Return how far *measured* is from *reference*.

    Args:
        reference: any shape, floating.
        measured: of the same shape, any floating dtype, on any device.

    Raises:
        ChunkError: the shapes differ, or there is no value in them.
    """
    if reference.shape != measured.shape or not reference.numel():
        msg = (
            f"outputs of shape {tuple(reference.shape)} and {tuple(measured.shape)} cannot be "
            "compared; they must be equal and hold a value"
        )
        raise ChunkError(msg)
    difference = (measured.to(reference.device, torch.float32) - reference.float()).abs()
    return _summary([difference.flatten().cpu()])


def compare(backend: Backend, reference: Backend, batches: Iterable[torch.Tensor]) -> Accuracy:
    """Return how far the results of *backend* are from those of *reference*.

    Args:
        backend: what is measured.
        reference: the same network in float32, by PyTorch, not compiled.
        batches: (n, c, z, y, x) float32 each, of the shape both were made for; not empty, because
            all ways agree on patches of zeros.

    Raises:
        ChunkError: there is no batch, or results differ in shape.
    """
    differences: list[torch.Tensor] = []
    for batch in batches:
        # A result is valid until the next call, also of another backend that shares the network.
        expected = reference(batch.to(reference.device)).to("cpu", torch.float32, copy=True)
        found = backend(batch.to(backend.device)).to("cpu", torch.float32)
        if found.shape != expected.shape:
            return error_against(expected, found)  # which says so
        differences.append((found - expected).abs().flatten())
    if not differences:
        msg = "there is no patch to compare two backends on; give one that is not empty"
        raise ChunkError(msg)
    return _summary(differences)


def non_empty_batches(
    patches: torch.Tensor, batch_size: int, *, most: int = 4
) -> list[torch.Tensor]:
    """Return batches of the patches that vary most, to compare two backends on.

    Args:
        patches: (k, c, z, y, x) float32, as the network gets them.
        batch_size: patches in a batch; the last one is filled up with zeros.
        most: number of patches to use.

    Returns:
        (batch_size, c, z, y, x) each; none if all patches are constant.
    """
    spread = patches.flatten(1).std(1)
    order = [int(k) for k in spread.argsort(descending=True)[:most] if float(spread[k]) > 0]
    batches = []
    for first in range(0, len(order), batch_size):
        batch = patches.new_zeros((batch_size, *patches.shape[1:]))
        chosen = order[first : first + batch_size]
        batch[: len(chosen)] = patches[chosen]
        batches.append(batch)
    return batches


def _summary(differences: list[torch.Tensor]) -> Accuracy:
    together = torch.cat(differences)
    # NaN sorts last, and would be missed by the percentile.
    if bool(torch.isnan(together).any()):
        return Accuracy(math.nan, math.nan, math.nan)
    rank = math.ceil(0.999 * together.numel())
    return Accuracy(
        float(together.max()),
        float(together.kthvalue(rank).values),
        float(together.mean(dtype=torch.float64)),
    )
