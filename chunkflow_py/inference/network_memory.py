"""Measure the memory that a network needs for its feature maps, without allocating this memory."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chunkflow_py.inference.torch_logs import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_SMALL = 16  # voxels along an axis: with fewer, maps would be mostly padding


@dataclass(frozen=True)
class Activations:
    """Memory that the feature maps of a network need during a forward pass.

    Attributes:
        peak_bytes: largest number of bytes that feature maps occupy at the same time. The network's
            output is included; the weights and the batch are not.
        voxels: number of voxels of the batch, n·z·y·x.
        exact: whether *peak_bytes* was measured with a batch of this size. If false, *peak_bytes*
            was scaled from a measurement with another batch size.
    """

    peak_bytes: int
    voxels: int
    exact: bool = True

    def scaled(self, voxels: int) -> Activations:
        """Estimate the memory for a batch of *voxels* voxels, by scaling *peak_bytes* linearly."""
        if voxels == self.voxels:
            return self
        return Activations(self.peak_bytes * voxels // max(1, self.voxels), voxels, exact=False)


def peak_activations(
    network: Callable[[torch.Tensor], Any],
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    divisor: Sequence[int] | None = None,
) -> Activations | None:
    """Return the peak memory of the feature maps in a forward pass of *network*.

    The network is run on tensors that have shapes but no values. This takes milliseconds and needs
    no memory for feature maps. Some networks, such as TorchScript programs, cannot run without
    values. These networks are run once on a small patch, and the measured memory is scaled to
    *shape*.

    Memory that convolutions allocate internally is not counted. On the CPU, this memory is
    negligible.

    Args:
        network: network in float32, on its device, in evaluation mode; not changed.
        shape: shape of the batch, (n, c, z, y, x) or (n, c, y, x).
        dtype: dtype to autocast to; float32 for no autocast.
        device: device that the network runs on (default: the CPU).
        divisor: number of voxels for each of z, y and x. Patch sizes must be multiples of these
            numbers. ``None`` if unknown.

    Returns:
        The activations, or ``None`` if the network fails even on a small patch.
    """
    device = torch.device("cpu") if device is None else device
    shape = tuple(shape)
    voxels = prod(shape) // shape[1]
    try:
        with quiet_torch(), FakeTensorMode(allow_non_fake_inputs=True):
            return Activations(_peak(network, shape, dtype, device), voxels)
    except Exception as error:  # noqa: BLE001  (a user's forward may raise anything)
        logger.debug("the network cannot run without data: %s: %s", type(error).__name__, error)
    for small in _small_shapes(shape, divisor):
        try:
            peak = _peak(network, small, dtype, device)
        except Exception as error:  # noqa: BLE001
            logger.debug("the network failed on %s: %s: %s", small, type(error).__name__, error)
            continue
        return Activations(peak, prod(small) // small[1], exact=False).scaled(voxels)
    return None


class NetworkMemory(NamedTuple):
    """Memory of a network.

    Attributes:
        activations: memory of the feature maps, or ``None`` if it cannot be measured.
        weight_bytes: memory of the weights and the other stored tensors, in bytes.
    """

    activations: Activations | None
    weight_bytes: int


def network_memory(
    network: Any,
    shape: Sequence[int],
    dtype: str,
    device: torch.device,
    divisor: Any = None,
) -> NetworkMemory:
    """Return the memory of a loaded network, measured with `peak_activations`.

    Args:
        network: network on its device, in evaluation mode; not changed.
        shape: shape of the batch, (n, c, z, y, x) or (n, c, y, x).
        dtype: name of the dtype to autocast to; ``float32`` for no autocast.
        device: device that the network runs on.
        divisor: patch sizes must be multiples of this number of voxels. Either one integer for all
            axes, or one integer for each axis; ``None`` if unknown.
    """
    steps = (divisor,) * 3 if isinstance(divisor, int) else divisor
    found = peak_activations(
        network, shape, dtype=getattr(torch, dtype), device=device, divisor=steps
    )
    return NetworkMemory(found, sum(tensor.nbytes for tensor in _tensors(network)))


def _small_shapes(shape: tuple[int, ...], divisor: Sequence[int] | None) -> list[tuple[int, ...]]:
    # Batches of one small patch, from the smallest.
    sizes = shape[2:]
    steps = tuple(divisor)[-len(sizes) :] if divisor else (1,) * len(sizes)
    shapes = []
    for factor in (1, 2, 4):
        small = (
            min(size, -(-_SMALL * factor // step) * step)
            for size, step in zip(sizes, steps, strict=True)
        )
        candidate = (1, shape[1], *small)
        if candidate not in shapes:
            shapes.append(candidate)
    return shapes


def _peak(
    network: Callable[[torch.Tensor], Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    batch = torch.zeros(shape, device=device)
    low = dtype is not torch.float32
    live = LiveStorages(batch, *_tensors(network))
    with torch.no_grad(), torch.autocast(device.type, dtype if low else None, enabled=low), live:
        network(batch)
    return live.peak_bytes


def _tensors(network: object) -> list[torch.Tensor]:
    if not isinstance(network, torch.nn.Module):
        return []
    return [*network.parameters(), *network.buffers()]


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are allocated inside the ``with`` block.

    Attributes:
        live_bytes: bytes of the counted tensors that have not been freed yet.
        peak_bytes: largest value that *live_bytes* has had.
    """

    def __init__(self, *known: torch.Tensor) -> None:
        """Set the counts to zero; the memory of the tensors in *known* is not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = self.peak_bytes = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call *func* and count the memory that it allocated."""
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._note(value.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size
