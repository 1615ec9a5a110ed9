"""Set chunks to zero where a mask volume is zero.

Example: chunkflow load-h5 -f raw.h5 mask --volume-path zarr://mask.zarr --mip 0 save-h5 -f out.h5

The mask may be coarser: its voxel size must be a multiple of the chunk's, and its voxel k covers
the voxels k·ratio to (k+1)·ratio. Where there is no mask it counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.params import paired_names, several_names_options
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.task import Task
    from chunkflow_py.volume.protocol import Volume


def mask(chunk: Chunk, keep: NDArray[Any]) -> Chunk:
    """Return *chunk* with zeros where *keep*, (z, y, x) bool of its extent, is false."""
    import numpy as np

    # A product would keep NaN.
    return chunk.with_array(np.where(keep, chunk.array, chunk.dtype.type(0)))


@dataclass
class Masker:
    """Masks several chunks of a task by one volume, which is opened once."""

    volume_path: str
    mip: int = 5
    inverse: bool = False
    fill_missing: bool = True
    input_names: tuple[str, ...] = ("chunk",)
    output_names: tuple[str, ...] = ("chunk",)
    _volume: Volume | None = field(default=None, repr=False)

    @property
    def keeps_voxels(self) -> bool:
        """Whether what is made holds what the first input holds: there may be several."""
        return len(self.input_names) == 1

    def __enter__(self) -> Masker:
        """Open the mask."""
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.protocol import Opening

        opening = Opening(fill_missing=self.fill_missing)
        self._volume = open_volume(self.volume_path, self.mip, opening=opening)
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the mask."""
        self._volume = None

    def __call__(self, task: Task) -> Task:
        """Mask the chunks; those of one box and voxel size share one reading of the mask."""
        if self._volume is None:
            with self:
                return self(task)
        from chunkflow_py.volume.mask import mask_of

        masks: dict[object, NDArray[Any]] = {}
        for source, target in zip(self.input_names, self.output_names, strict=True):
            chunk = task.chunk(source)
            key = chunk.bbox, chunk.voxel_size_nm
            if key not in masks:
                found = mask_of(chunk, self._volume, fill_missing=self.fill_missing)
                masks[key] = ~found if self.inverse else found
            task[target] = mask(chunk, masks[key])
        return task


@operator("compute")
@several_names_options
@click.option("--volume-path", "-v", required=True, help="URL of the mask.")
@click.option("--mip", "-m", type=click.IntRange(min=0), default=5, show_default=True,
              help="Level of the mask.")  # fmt: skip
@click.option("--inverse/--no-inverse", default=False, show_default=True,
              help="Keep where the mask is zero instead.")  # fmt: skip
@click.option("--fill-missing/--no-fill-missing", default=True, show_default=True,
              help="Count what the mask does not have as zero, or as an error.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> Masker:
    """Check that every input has an output."""
    options["input_names"], options["output_names"] = paired_names(ctx)
    return Masker(**options)
