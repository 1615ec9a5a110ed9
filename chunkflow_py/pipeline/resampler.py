"""`Resampler`, the operator that changes the voxel size of a chunk.

Loaders read a margin around each chunk, so that the result does not depend on the tasks:

```
domain   |------------------------------------------|   bounds of the volume, in input voxels
chunk             |mmm|-----------|mmm|                  m: margin that the kernel reads
result                |-----------|                      needed by later operators, in new voxels
```

`chunkflow_py.core.resampling` computes the voxels.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.geometry import UNIT_SCALE, BoundingBox, Scale, Zyx
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.outline import coarser_nm
from chunkflow_py.errors import GeometryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.resampling import Method, Resampling
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)

Choice = Literal["auto", "linear", "cubic", "hat", "spline", "nearest", "mode"]


@dataclass
class Resampler(OperatorBase):
    """Resamples a chunk of every task to another voxel size.

    Exactly one of *voxel_size_nm* and *factor* must be given; the other must be ``None``.

    Attributes:
        voxel_size_nm: voxel size of the result, nanometres, zyx. Along an axis with ``None``, the
            voxel size does not change.
        factor: size of a voxel of the result, in voxels of the input, zyx.
        method: method of `chunkflow_py.core.resampling.Resampling`; ``auto`` selects ``mode`` for
            labels and ``linear`` for other chunks.
        input_name: name of the chunk to resample.
        output_name: name of the result.
    """

    voxel_size_nm: tuple[float | None, float | None, float | None] | None = None
    factor: Scale | None = None
    method: Choice | tuple[Method, Method, Method] = "auto"
    input_name: str = "chunk"
    output_name: str = "chunk"
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    is_local: bool = field(default=True, init=False, metadata=HOOK)
    _scale: Scale | None = field(default=None, init=False, repr=False)
    _input_nm: tuple[float, float, float] | None = field(default=None, init=False, repr=False)
    _voxels: Voxels | None = field(default=None, init=False, repr=False)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _has_warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: *voxel_size_nm* and *factor* are both given, or both missing.
        """
        if (self.voxel_size_nm is None) == (self.factor is None):
            count = "neither is" if self.factor is None else "both are"
            msg = (
                f"resample needs either --voxel-size or --factor, but {count} given; give either "
                "--voxel-size (the voxel size of the result, zyx) or --factor (the voxel size of "
                "the result divided by the voxel size of the chunk, zyx)"
            )
            raise OptionError(msg)
        self._scale = self.factor

    @hook
    def prepare(self, outline: Outline) -> None:
        """Determine the factor from the voxel size of the input.

        Raises:
            OptionError: tasks have boxes, but the voxel size of the input is not known before the
                first task.
            ChunkError: *method* interpolates, which is impossible for the dtype of the input.
        """
        self._input_nm, self._voxels = outline.voxel_size_nm, outline.voxels
        if self.voxel_size_nm is not None and self._input_nm is not None:
            self._scale = Scale.between(self._size_nm(self._input_nm), self._input_nm)
        if self._scale is None and outline.has_tasks:
            msg = (
                "the voxel size of the chunk is not known before the first task, so the boxes of "
                "tasks cannot be converted to --voxel-size; give --factor, the size of a voxel of "
                "the result in voxels of the chunk, zyx"
            )
            raise OptionError(msg)
        if self._voxels is not None and self._scale is not None:
            import numpy as np

            self._resampling(self._scale, self._voxels).check_dtype(np.dtype(self._voxels.dtype))

    @hook
    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size of the result; ``None`` if unknown before the first task."""
        return None if self._input_nm is None else self._size_nm(self._input_nm)

    def _size_nm(self, input_nm: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the voxel size of the result for an input with voxels of *input_nm*."""
        if self.voxel_size_nm is None:
            return coarser_nm(input_nm, self.factor or UNIT_SCALE)
        z, y, x = (a if b is None else b for a, b in zip(input_nm, self.voxel_size_nm, strict=True))
        return z, y, x

    @property
    @hook
    def shrinks_by(self) -> Scale | None:
        """Size of a voxel of the result, in voxels of the input, zyx; ``None`` if unknown."""
        return self._scale

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store *required*, which maps a task's box to the box that later operators need."""
        self._needed = required

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input box (voxels of the input) that the result in *box* depends on."""
        if self._scale is None:
            return domain
        return self._resampling(self._scale, self._voxels).required_input(box, domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory for resampling a chunk of extent *size* (voxels, zyx)."""
        from chunkflow_py.core.host_memory import OperatorMemory

        if size is None or self._scale is None:
            return None
        result = Zyx(*(int(n / f) + 2 for n, f in zip(size, self._scale, strict=True)))
        # Two steps of the interpolation are held at a time, in at most 8 bytes per voxel.
        return OperatorMemory(result, work=16 * size.high(result).product())

    def __call__(self, task: Task) -> Task:
        """Add the resampled chunk to the task.

        Raises:
            ChunkError: *method* interpolates, which is impossible for the dtype of the input.
            GeometryError: the volume is so small that the result would have no voxels.
        """
        from chunkflow_py.core.chunk import Chunk, Voxels

        chunk = self._input(task)
        size_nm = self._size_nm(chunk.voxel_size_nm)
        scale = self.factor or Scale.between(size_nm, chunk.voxel_size_nm)
        voxels = Voxels(chunk.dtype.name, chunk.channels, chunk.kind)
        resampling = self._resampling(scale, voxels)
        domain = self._bounds_of_result(resampling, chunk.domain)
        if domain.is_empty and not chunk.domain.is_empty:
            msg = (
                f"volume {chunk.domain} is too small for voxels that are {scale} times as large "
                "(zyx), because no centre of such a voxel is inside the volume; choose a voxel "
                f"size of at most {_largest_nm(chunk)} nm (zyx)"
            )
            raise GeometryError(msg)
        target = domain
        if chunk.bbox != chunk.domain:
            target = resampling.output_box(chunk.bbox).intersection(domain)
        if task.bbox is not None and self._needed is not None:
            asked = self._needed(task.bbox, domain).intersection(domain)
            target = target if asked.is_empty else asked
        self._warn_of_lacking(chunk, resampling.required_input(target, chunk.domain), target)
        array = resampling(chunk.array, chunk.bbox, target, chunk.domain)
        if chunk.kind in ("probability", "affinity") and array.dtype.kind == "f":
            array.clip(0, 1, out=array)  # cubic interpolation exceeds the range
        task[self.output_name] = Chunk(array, target.start, size_nm, chunk.kind, domain)
        return task

    def _input(self, task: Task) -> Chunk:
        return task.chunk(self.input_name)

    def _bounds_of_result(self, resampling: Resampling, domain: BoundingBox) -> BoundingBox:
        return resampling.output_box(domain)

    def _resampling(self, scale: Scale, voxels: Voxels | None) -> Resampling:
        from chunkflow_py.core.resampling import Resampling

        if self.method != "auto":
            return Resampling(scale, self.method)
        if voxels is None:
            return Resampling(scale)  # it reads at least as much as the mode

        import numpy as np

        from chunkflow_py.volume.downsample import is_labels

        labels = is_labels(np.dtype(voxels.dtype), voxels.kind)
        return Resampling(scale, "mode" if labels else "linear")

    def _warn_of_lacking(self, chunk: Chunk, part: BoundingBox, target: BoundingBox) -> None:
        if chunk.bbox.contains(part) or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "resample needs the input %s for the result %s, but the chunk covers only %s, so the "
            "result depends on how the volume is divided into tasks; load the chunk with "
            "--expand-margin-size auto",
            part, target, chunk.bbox,
        )  # fmt: skip


def _largest_nm(chunk: Chunk) -> str:
    rows = zip(chunk.domain.size, chunk.voxel_size_nm, strict=True)
    return " ".join(f"{count * nm:g}" for count, nm in rows)
