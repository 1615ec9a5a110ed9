r"""Set chunks to zero where a mask volume is zero.

Example: chunkflow load-h5 --file-name raw.h5 mask --volume-path zarr://mask.zarr --mip 0 \
  save-h5 --file-name out.h5

The mask may be coarser than the chunk, by any factor: each voxel of the chunk uses the mask voxel
that contains the centre of the chunk voxel. The result therefore does not depend on how a volume is
divided into tasks. Outside of the bounds of the mask, the mask counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.ops.options.volume_options import fill_missing_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import paired_names, several_names_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.mask import BoxMask
    from chunkflow_py.volume.protocol import Volume

_CACHE_BYTES = 1 << 26  # of decoded blocks of the mask, which neighbouring tasks share


def mask(chunk: Chunk, keep: NDArray[Any] | BoxMask) -> Chunk:
    """Return *chunk* with all voxels, including NaN, set to zero where *keep* is false.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype.
        keep: bool array (z, y, x) of the same extent as the chunk; or the result of
            `chunkflow_py.volume.mask.box_mask`, which takes less time and memory.

    Returns:
        A chunk of the same shape and dtype. If all voxels are kept, the result and *chunk* share
        one array.
    """
    import numpy as np

    from chunkflow_py.volume.mask import BoxMask

    if not isinstance(keep, BoxMask):
        z, y, x = map(np.arange, chunk.size)
        keep = BoxMask(np.asarray(keep, bool), (z, y, x))
    return chunk.with_array(keep.apply(chunk.array))


@dataclass
class Masker(OperatorBase):
    """Masks chunks of every task with a mask volume, which is opened once.

    Attributes:
        volume_path: URL of the mask.
        mip: resolution level of the mask.
        inverse: keep the voxels at which the mask is zero, and set all other voxels to zero.
        fill_missing: count missing blocks of the mask as zero, instead of stopping with an error.
        input_names: names of the chunks to mask.
        output_names: names of the masked chunks, in the same order.
    """

    volume_path: str
    mip: int = 5
    inverse: bool = False
    fill_missing: bool = True
    input_names: tuple[str, ...] = ("chunk",)
    output_names: tuple[str, ...] = ("chunk",)
    _volume: Volume | None = field(default=None, repr=False)
    any_voxel_size: ClassVar[bool] = hook_value(True)
    is_local: ClassVar[bool] = hook_value(True)

    @property
    @hook
    def keeps_voxels(self) -> bool:
        """Whether all outputs have the dtype, the kind and the channels of the first input."""
        return len(self.input_names) == 1

    @property
    @hook
    def origin(self) -> str:
        """Address and level of the mask volume, which no other operator may overwrite."""
        from chunkflow_py.volume.location import Location, level_name

        return level_name(Location.parse(self.volume_path), self.mip)

    def __enter__(self) -> Masker:
        """Open the mask."""
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.protocol import VolumeOptions

        opening = VolumeOptions(fill_missing=self.fill_missing, cache_bytes=_CACHE_BYTES)
        self._volume = open_volume(self.volume_path, self.mip, opening=opening)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the mask."""
        self._volume = None

    def __call__(self, task: Task) -> Task:
        """Mask the chunks; the mask is read once for all chunks with equal box and voxel size."""
        if self._volume is None:
            with self:
                return self(task)
        from chunkflow_py.volume.mask import box_mask

        masks: dict[object, BoxMask] = {}
        for source, target in zip(self.input_names, self.output_names, strict=True):
            chunk = task.chunk(source)
            key = chunk.bbox, chunk.voxel_size_nm
            if key not in masks:
                keep = box_mask(self._volume, *key, fill_missing=self.fill_missing)
                masks[key] = keep.inverted() if self.inverse else keep
            task[target] = mask(chunk, masks[key])
        return task


@operator("compute")
@several_names_options
@click.option("--volume-path", "-v", required=True, help="URL of the mask.")
@click.option("--mip", "-m", type=click.IntRange(min=0), default=5, show_default=True,
              help="Resolution level of the mask.")  # fmt: skip
@click.option("--inverse/--no-inverse", default=False, show_default=True,
              help="Invert the mask: keep the voxels where the mask is zero.")  # fmt: skip
@fill_missing_option("Count missing blocks of the mask as zero, or stop with an error.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> Masker:
    """Check that every input has an output name, and return the operator."""
    options["input_names"], options["output_names"] = paired_names(ctx)
    return Masker(**options)
