"""Find the task size that computes the fewest patches per voxel within a memory limit.

```
patches   |------|                      a task whose boundaries lie on the stride is touched by
               |------|                 size / stride + 1 patches along an axis, so large tasks
                    |------|            waste less; the memory of a task grows with its voxels
task           |---------|
```
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

# A pipeline reads one task ahead, and writes one while the next is computed; what is written is
# encoded in memory, where it may be as large again.
_INPUTS, _OUTPUTS = 2, 3
_LARGEST = 2**14  # voxels along an axis: beyond, tasks are too few


@dataclass(frozen=True)
class TaskSize:
    """A size of tasks, and its consequences.

    Attributes:
        size: of a task's output, voxels, zyx.
        margin: to read around it on each side, voxels, zyx.
        memory_bytes: that chunks and sums of patches take in a pipeline that works one task ahead.
        amplification: voxels that the network computes for each one of the output.
        patches: along each axis, for a task.
    """

    size: Zyx
    margin: Zyx
    memory_bytes: int
    amplification: float
    patches: Zyx


@dataclass(frozen=True)
class TaskSizes:
    """The sizes that tasks may have.

    Attributes:
        geometry: of patches.
        channels: of the output.
        item_bytes: of one value of the output.
        unit: sizes are multiples of this, voxels, zyx, or reach to the end of the volume.
        extent: of the volume, voxels, zyx.
        crop: voxels that are cut off of a chunk's output, zyx: patches are counted from the corner
            of each chunk then, and not over the whole volume.
        input_bytes: of a voxel that is read, all channels together.
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
        """Return the size with the fewest computed voxels that fits; of equals, the smallest.

        It is the same along y and x, unless the volume ends before.

        Args:
            memory_bytes: for chunks and sums of patches.
            is_usable: returns whether a size that fits may be used.

        Raises:
            OptionError: the smallest does not fit.
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
                f"no task size that patches of {self.geometry.output_patch_size} at a stride of "
                f"{self.geometry.stride} give with a crop of {self.crop} is a multiple of "
                f"{self.unit} (zyx, voxels); leave --crop-chunk-margin out, or lower --max-mip and "
                "--thumbnail-mip"
            )
            raise OptionError(msg)
        if found is None:
            msg = (
                f"the smallest task, {least.size} (zyx, voxels), takes "
                f"{describe_bytes(least.memory_bytes)}, more than the "
                f"{describe_bytes(memory_bytes)} for chunks; raise --max-ram-size, or lower "
                "--max-mip and --thumbnail-mip"
            )
            raise OptionError(msg)
        return found

    def of(self, size: Zyx) -> TaskSize:
        """Return the consequences of tasks of *size*."""
        patch, stride = self.geometry.output_patch_size, self.geometry.stride
        overlap, margin = self.geometry.output_patch_overlap, self.geometry.margin
        around, patches, shares = [], [], []
        for axis in range(3):
            if self.crop is not None:
                around.append(self.crop[axis] + margin[axis])
                number = (size[axis] + 2 * self.crop[axis] - overlap[axis]) / stride[axis]
            elif size[axis] % stride[axis]:  # task boundaries lie anywhere on patches
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
        """Yield the lengths along an axis, up to the first that holds the whole volume."""
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
