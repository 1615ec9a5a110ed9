"""Find the task size that computes the fewest patches per voxel within a memory limit.

```
patches   |------|
               |------|
                    |------|
task           |---------|
```

Along an axis, size / stride + 1 patches touch a task whose boundaries are multiples of the stride
(if patches overlap by at most the stride). Large tasks compute fewer voxels in vain, but need more
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.memory_estimate import engine_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.inference.patch_grid import PatchGeometry

# A pipeline reads one task ahead, and writes one while the next is computed. The encoded output is
# also in memory, and may be as large as the output itself.
_INPUTS, _OUTPUTS = 2, 3
_LARGEST = 2**14  # voxels along an axis: larger tasks would be too few


@dataclass(frozen=True)
class TaskSize:
    """A task size, with its margin, memory and amplification.

    Attributes:
        size: size of a task's output, voxels, zyx.
        margin: margin to read around the output on each side, voxels, zyx.
        memory_bytes: memory that chunks and sums of patches need in a pipeline that reads one task
            ahead.
        amplification: number of voxels that the network computes per voxel of output.
        patches: number of patches of a task along each axis, zyx.
    """

    size: Zyx
    margin: Zyx
    memory_bytes: int
    amplification: float
    patches: Zyx


@dataclass(frozen=True)
class TaskSizes:
    """Candidate task sizes for a volume and the patches of a network.

    Attributes:
        geometry: sizes of the patches.
        channels: number of channels of the output.
        item_bytes: bytes of one value of the output.
        unit: size of which all task sizes are multiples, voxels, zyx.
        extent: size of the volume, voxels, zyx.
        crop: voxels to crop from each side of a chunk's output, zyx. If given, patches are counted
            from the corner of each chunk, not from the corner of the volume.
        input_bytes: bytes of one input voxel, all channels together.
    """

    geometry: PatchGeometry
    channels: int
    item_bytes: int
    unit: Zyx
    extent: Zyx
    crop: Zyx | None = None
    input_bytes: int = 1

    def best(
        self, memory_bytes: int, is_usable: Callable[[Zyx], bool] = lambda _: True
    ) -> TaskSize:
        """Return the task size with the least amplification that fits into the memory.

        Of several such sizes, the smallest is returned. The size along y and x is the same, so it
        may exceed the shorter axis of the volume.

        Args:
            memory_bytes: memory available for chunks and sums of patches.
            is_usable: called with a task size that fits; returns whether it may be used.

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
                is_better = found is None or size.amplification < found.amplification * (1 - 1e-9)
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
        margins = Zyx.of(around)
        whole = size + margins * 2
        memory = (
            _INPUTS * whole.product() * self.input_bytes
            + _OUTPUTS * size.product() * self.channels * self.item_bytes
            + engine_workspace(self.geometry, self.channels, whole.high(patch))
        )
        z, y, x = shares
        return TaskSize(size, margins, memory, z * y * x, Zyx.of(patches))

    @property
    def _least_z(self) -> int:
        return next(self._lengths(0), 0)

    def _lengths(self, axis: int) -> Iterator[int]:
        """Yield possible task lengths along an axis, up to the first that spans the volume."""
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
