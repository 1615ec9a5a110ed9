"""Find the task size that suits a network, within a memory limit.

```
patches   |------|
               |------|
                    |------|
task           |---------|
```

If the boundaries of a task are multiples of the stride, and patches overlap by at most the stride,
then size / stride + 1 patches touch the task along an axis. The larger the tasks are, the fewer
voxels are computed by two tasks, but the more memory a task needs.

If tasks exchange the patches that they share, no voxel is computed by two tasks, so the task size
does not change the amplification. A task then computes output for its own box, and output for other
tasks, which it stores. The smallest size is chosen for which at least half of the computed output
is for the task's own box. With smaller tasks, the exchange would take too much of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile
from math import prod
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.memory_estimate import engine_workspace
from chunkflow_py.inference.shared_patches import MOST_WAITING_BYTES, part_memory, part_voxel_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.inference.patch_grid import PatchGeometry

# A pipeline reads one task ahead, and writes one while the next is computed. The encoded output is
# also in memory, and may be as large as the output itself.
_INPUTS, _OUTPUTS = 2, 3
_LARGEST = 2**14  # voxels along an axis: larger tasks would be too few
_KEPT = 0.5  # share of the output of a task that should lie in its own box


@dataclass(frozen=True)
class TaskSize:
    """A task size, with its margin, memory and amplification.

    Attributes:
        size: size of a task's output, voxels, zyx.
        margin: margin around the output that is read on each side, voxels, zyx.
        memory_bytes: memory that chunks, sums of patches and exchanged parts of patches need in a
            pipeline that reads one task in advance.
        amplification: number of voxels that the network computes per voxel of output.
        patches: number of patches of a task along each axis, zyx.
        alone: the amplification if tasks do not exchange patches.
        kept: share (average over tasks) of the computed output voxels that lie in the task's own
            box; 1 for a single task. Set to 0 if tasks do not exchange patches.
    """

    size: Zyx
    margin: Zyx
    memory_bytes: int
    amplification: float
    patches: Zyx
    alone: float
    kept: float = 0.0


@dataclass(frozen=True)
class TaskSizes:
    """Candidate task sizes for a volume and the patches of a network.

    Attributes:
        geometry: sizes of the patches.
        channels: number of channels of the output.
        item_bytes: bytes of one value of the output.
        unit: three numbers of voxels, zyx. Task sizes are multiples of these numbers.
        extent: size of the volume, voxels, zyx.
        crop: voxels to crop from each side of a chunk's output, zyx. If given, the first
            patch starts at the corner of the chunk, not at the corner of the volume.
        input_bytes: bytes of one input voxel, with all channels.
        exchange: whether tasks exchange the patches that they share. Tasks that are smaller than a
            patch never exchange patches.
    """

    geometry: PatchGeometry
    channels: int
    item_bytes: int
    unit: Zyx
    extent: Zyx
    crop: Zyx | None = None
    input_bytes: int = 1
    exchange: bool = False

    def best(
        self, memory_bytes: int, is_usable: Callable[[Zyx], bool] = lambda _: True
    ) -> TaskSize:
        """Return the best task size that fits into the memory.

        If tasks do not exchange patches, the best size is the one with the least amplification.

        If tasks exchange patches, at least half of the output that a task computes must lie in its
        own box (`TaskSize.kept`). If no size with this property fits into the memory, the size with
        the largest share is returned.

        Of several equally good sizes, the one that needs the least memory is returned. A task has
        the same size along y and x. This size may exceed the size of the volume along one of the
        two axes.

        Args:
            memory_bytes: memory available for chunks and sums of patches, in bytes.
            is_usable: function that receives a task size that fits into the memory, and returns
                whether the size may be used.

        Raises:
            OptionError: the patches and the crop allow no task size, or the smallest task does not
                fit into the memory.
        """
        found, least = None, None
        for plane in self._lengths(1):
            size = None
            for depth in self._lengths(0):
                size = self.of(Zyx(depth, plane, plane))
                least = least or size
                if size.memory_bytes > memory_bytes:
                    break
                is_better = found is None or _badness(size) < _badness(found)
                if is_better and is_usable(size.size):
                    found = size
            if size is None or (size.memory_bytes > memory_bytes and size.size.z <= self._least_z):
                break
        if least is None:
            msg = (
                f"output patches of {self.geometry.output_patch_size} with stride "
                f"{self.geometry.stride} and crop {self.crop} allow no task size that is a "
                f"multiple of {self.unit} (zyx, voxels); leave --crop-chunk-margin out, or lower "
                "--max-mip and --thumbnail-mip"
            )
            raise OptionError(msg)
        if found is None:
            msg = (
                f"the smallest task, {least.size} (zyx, voxels), needs "
                f"{describe_bytes(least.memory_bytes)}, more than the "
                f"{describe_bytes(memory_bytes)} available for chunks; raise --max-ram-size, or "
                "lower --max-mip and --thumbnail-mip"
            )
            raise OptionError(msg)
        return found

    def of(self, size: Zyx) -> TaskSize:
        """Return the margin, memory and amplification of tasks of *size* (voxels, zyx)."""
        patch, stride = self.geometry.output_patch_size, self.geometry.stride
        overlap, margin = self.geometry.output_patch_overlap, self.geometry.margin
        around, patches, shares = [], [], []
        kept, is_smaller = 1.0, False
        for axis in range(3):
            if self.crop is not None:
                around.append(self.crop[axis] + margin[axis])
                number = (size[axis] + 2 * self.crop[axis] - overlap[axis]) / stride[axis]
            elif size[axis] % stride[axis]:  # task boundaries cut patches anywhere
                around.append(patch[axis] - 1 + margin[axis])
                number = (size[axis] + patch[axis] - 1) / stride[axis]
            else:
                more = -(-overlap[axis] // stride[axis])
                around.append(max(more * stride[axis], overlap[axis]) + margin[axis])
                number = size[axis] / stride[axis] + more
            patches.append(-int(-number // 1))
            shares.append(number * patch[axis] / size[axis])
            if size[axis] < self.extent[axis]:  # otherwise no patch crosses a boundary
                is_smaller |= size[axis] < patch[axis]
                # on average, half of a patch is on each side of the boundary that it crosses
                kept *= max(0.0, 1.5 - 0.5 * number * stride[axis] / size[axis])
        margins = Zyx.of(around)
        whole = size + margins * 2
        alone = prod(shares)
        amplification, parts = alone, 0
        if not self.exchange or is_smaller or self.crop is not None:
            kept = 0.0
        else:
            amplification = patch.product() / stride.product()
            shared = round(size.product() * max(0.0, alone - amplification))
            if (tasks := (-(-self.extent // size)).product()) > 1:
                task_bytes = shared * part_voxel_bytes(self.channels)
                parts = part_memory(task_bytes, tasks, MOST_WAITING_BYTES)
        memory = (
            _INPUTS * whole.product() * self.input_bytes
            + _OUTPUTS * size.product() * self.channels * self.item_bytes
            + engine_workspace(self.geometry, self.channels, whole.high(patch))
            + parts
        )
        return TaskSize(size, margins, memory, amplification, Zyx.of(patches), alone, kept)

    @property
    def _least_z(self) -> int:
        return next(self._lengths(0), 0)

    def _lengths(self, axis: int) -> Iterator[int]:
        # Possible sizes along one axis, up to the first that is at least that of the volume.
        unit = self.unit[axis]
        extent = self.extent.z if axis == 0 else max(self.extent.y, self.extent.x)
        most = min(_LARGEST, -(-extent // unit) * unit)
        if self.crop is None:
            yield from range(unit, most + 1, unit)
            return
        first = self.geometry.output_patch_overlap[axis] - 2 * self.crop[axis]
        lengths = (first + n * self.geometry.stride[axis] for n in count(1))
        fitting = (
            n for n in takewhile(lambda n: n <= _LARGEST, lengths) if n > 0 and n % unit == 0
        )
        for length in fitting:
            yield length
            if length >= most:
                return


def _badness(size: TaskSize) -> tuple[float, float, int]:
    # A sort key, best first. Rounding errors must not decide the order.
    return -min(size.kept, _KEPT), round(size.amplification, 9), size.memory_bytes
