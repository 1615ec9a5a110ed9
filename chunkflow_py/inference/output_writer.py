"""Divide weighted sums of patches by the weights, and write the means to an array."""

from __future__ import annotations

import logging
import mmap
import weakref
from math import prod
from queue import SimpleQueue
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chunkflow_py.errors import NonFiniteError
from chunkflow_py.inference.network_output import activated

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.inference.blend import BlendedRegion
    from chunkflow_py.inference.device_streams import Device, Mark
    from chunkflow_py.inference.engine_settings import EngineSettings

logger = logging.getLogger(__name__)

_TOO_LARGE = "output in {} exceeds 65504, the largest float16; use --output-dtype float32"
_BUFFERS = 2  # one being filled by the device, one being emptied by the host


class OutputWriter:
    """Writes the regions that a blender completes into an array on the host.

    ```
    sums / weights -> activation, mask, dtype    on the GPU
        -> pinned buffer                         copied while the GPU computes the next region
        -> array                                 copied in another thread
    ```

    Without a GPU, values are written directly to the array.

    Attributes:
        clamped: number of output values outside [0, 1] that conversion to uint8 has clamped.
    """

    def __init__(
        self, settings: EngineSettings, device: Device, *, staged: bool | None = None
    ) -> None:
        """Open the copy stream, and start the thread that copies to the array.

        Args:
            settings: engine settings, which decide activation, mask and dtype of the output.
            device: device of the regions.
            staged: copy through host buffers, in a separate thread (default: only for a GPU). If
                false, there is no thread.
        """
        self.clamped = 0
        self._settings, self._device = settings, device
        self._dtype: torch.dtype = getattr(torch, settings.stored_dtype)
        self._plain = settings.output_dtype == "float32" and not (
            settings.mask_myelin_threshold is not None
            or (settings.activation != "none" and settings.activate == "after")
        )
        staged = device.asynchronous if staged is None else staged
        self._stream = device.side_stream()
        self._thread = device.thread("writer") if staged else None
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()
        for _ in range(_BUFFERS if staged else 0):
            self._free.put(torch.empty(0, dtype=torch.uint8))

    def put(self, region: BlendedRegion, target: torch.Tensor) -> Future[None] | None:
        """Divide the sums of a region by the weights, and write the converted means to *target*.

        Args:
            region: region with complete sums, which are overwritten.
            target: array (c, z, y, x) in host memory, with the output dtype and the size of the
                region.

        Returns:
            A future that is done when *target* has been written, or ``None`` if *target* has
            already been written.

        Raises:
            NonFiniteError: values are NaN, infinite, or too large for float16. If a future is
                returned, the future raises this error.
        """
        if self._thread is None:
            self._check_finite(region)
            if self._plain:
                torch.div(region.sums, region.weights, out=target)
            else:
                total = 0
                # Plane by plane, so that the values stay in the cache between steps.
                for plane in range(len(region.weights)):
                    part = slice(plane, plane + 1)
                    share = None if region.share is None else region.share[part]
                    means = region.sums[:, part].div_(region.weights[part])
                    values, clamped = converted(self._settings, means, share)
                    if not bool(self._in_range(values)):
                        raise NonFiniteError(_TOO_LARGE.format(region.box))
                    target[:, part] = values
                    total += int(clamped)
                self._count(total)
            return None
        finite = torch.isfinite(region.sums).all()
        # New memory: the next row overwrites the sums while the copy stream still reads the values.
        means = region.sums / region.weights
        values, clamped = converted(self._settings, means, region.share)
        state = finite.to(torch.int64) * 2 + self._in_range(values)  # 3: no error
        facts = torch.stack((state, clamped))
        values = values.contiguous()
        done, copied = self._device.mark(), self._device.mark()
        done.record()
        buffer = self._buffer(facts.nbytes + values.nbytes)
        with self._stream.entered():
            done.hold()
            for source, staged in zip((facts, values), _parts(buffer, facts, values), strict=True):
                staged.copy_(source, non_blocking=True)
                self._stream.uses(source)
            copied.record()
        return self._thread.submit(self._empty, buffer, copied, region.box, target)

    def close(self) -> None:
        """Wait until all regions are written, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _buffer(self, size: int) -> torch.Tensor:
        # Waits until one of the buffers is no longer read.
        buffer = self._free.get()
        if buffer.numel() < size:
            return self._device.host_buffer((size,), torch.uint8)
        return buffer

    @torch.inference_mode()
    def _empty(
        self, buffer: torch.Tensor, copied: Mark, box: BoundingBox, target: torch.Tensor
    ) -> None:
        try:
            copied.wait()
            facts, values = _parts(buffer, torch.empty(2, dtype=torch.int64), target)
            state, clamped = facts.tolist()
            if state < 3:
                msg = (
                    _TOO_LARGE.format(box)
                    if state == 2
                    else non_finite("values", box, self._settings)
                )
                raise NonFiniteError(msg)
            target.copy_(values)
            self._count(clamped)
        finally:
            self._free.put(buffer)

    def _check_finite(self, region: BlendedRegion) -> None:
        # A sum is not finite if one of its terms is not, and is far cheaper than a mask; it may
        # also overflow by itself, so only then check every value.
        sums = region.sums
        if not bool(torch.isfinite(sums.sum())) and not bool(torch.isfinite(sums).all()):
            bad = int((~torch.isfinite(sums)).any(0).sum())
            raise NonFiniteError(non_finite(f"{bad} voxels", region.box, self._settings))

    def _in_range(self, values: torch.Tensor) -> torch.Tensor:
        # Only float16 has a range that values may exceed.
        if self._dtype is not torch.float16:
            return values.new_ones((), dtype=torch.bool)
        return torch.isfinite(values).all()

    def _count(self, clamped: int) -> None:
        if clamped and not self.clamped:
            logger.warning("%d output values outside [0, 1] were clamped to that range", clamped)
        self.clamped += clamped


def converted(
    settings: EngineSettings, values: torch.Tensor, share: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means in the output dtype, (c, z, y, x), and the number of clamped values.

    Args:
        settings: engine settings, which decide activation, mask and dtype of the output.
        values: means, (c, z, y, x) float32. They are overwritten. If no conversion is needed, this
            array is returned.
        share: (z, y, x), from `BlendedRegion.share`: for each voxel, the sum of the blending
            weights of patches on which the network was run, divided by the sum of all weights. The
            activated values are multiplied by *share*, because a patch on which the network was not
            run has an output of zero.
    """
    clamped = values.new_zeros((), dtype=torch.int64)
    if settings.activate == "after":
        channels = tuple(part.channels for part in settings.outputs)
        values = activated(values, settings.activation, channels, in_place=True)
    if share is not None:  # a patch that was not run counts as an output of zero
        values = values.mul_(share)
    if settings.mask_myelin_threshold is not None:
        keep = values[-1:] < settings.mask_myelin_threshold
        values = values[:-1].mul_(keep)
    if settings.output_dtype == "argmax" and settings.region_labels:
        labels = torch.zeros_like(values[:1])
        for region, label in zip(values, settings.region_labels, strict=True):
            labels[0].masked_fill_(region > 0.5, label)
        values = labels
    elif settings.output_dtype == "argmax":
        values = values.argmax(0, keepdim=True)
    elif settings.output_dtype == "uint8":
        clamped = ((values < 0) | (values > 1)).sum()
        # round() of torch rounds half to even.
        values = values.clamp_(0, 1).mul_(255).round_()
    dtype: torch.dtype = getattr(torch, settings.stored_dtype)
    return values.to(dtype), clamped


def _parts(
    buffer: torch.Tensor, facts: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # Views of a byte buffer, with the dtypes and shapes of *facts* and *values*.
    size = facts.numel() * facts.element_size()
    end = size + values.numel() * values.element_size()
    return (
        buffer[:size].view(facts.dtype),
        buffer[size:end].view(values.dtype).view(values.shape),
    )


def non_finite(what: str, where: object, settings: EngineSettings) -> str:
    """Return the error message for values that are not finite.

    Args:
        what: the values, such as ``12 voxels``.
        where: box or batch that contains the values.
        settings: engine settings.
    """
    if settings.patch_precision == "float16":
        return (
            f"in {where}, the network returned {what} that are NaN, infinite, or too large for "
            "--patch-precision float16, whose largest number is 65504; use --patch-precision "
            "float32, or check the weights, --normalize and --dtype"
        )
    return (
        f"in {where}, the network returned {what} that are NaN or infinite; check the weights, "
        "--normalize and --dtype"
    )


_SMALL = 4 << 20  # bytes; smaller arrays are not worth reusing
_KEPT = 2  # idle blocks to keep: one being written while the next is computed


class ResultMemory:
    """Allocates arrays; when the last view of an array is deleted, its memory is reused.

    The first access to new memory takes 0.7 s per GB (measured with 2 threads), longer than the
    arithmetic of blending. Reused memory does not have this cost.
    """

    def __init__(self) -> None:
        self._idle: list[mmap.mmap] = []
        self._lock = RLock()  # garbage collection may return memory while the lock is held
        self._open = True

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return an uninitialised array, in memory of a deleted array if possible."""
        kind = np.dtype(dtype)
        count = prod(shape)
        if count * kind.itemsize < _SMALL:
            return np.empty(shape, kind)
        block = self._block(count * kind.itemsize)
        array = np.frombuffer(block, kind, count)
        # Views keep a reference to this array, so it is deleted last.
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def close(self) -> None:
        """Free the memory that waits for reuse; from now on, deleted arrays free theirs at once."""
        with self._lock:
            self._open = False
            self._idle.clear()

    def _block(self, size: int) -> mmap.mmap:
        with self._lock:
            for place, block in enumerate(self._idle):
                if len(block) == size:
                    return self._idle.pop(place)
            self._idle.clear()  # of another size, unlikely to be needed again
        return mmap.mmap(-1, size)

    def _give_back(self, block: mmap.mmap) -> None:
        with self._lock:
            if self._open and len(self._idle) < _KEPT:
                self._idle.append(block)
