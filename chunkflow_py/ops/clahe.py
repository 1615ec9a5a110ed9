r"""Equalize contrast locally (CLAHE), in 2D or 3D.

Example: chunkflow load-h5 --file-name raw.h5 clahe --clip-limit 0.02 \
  save-h5 --file-name equalised.h5

CLAHE is contrast-limited adaptive histogram equalisation; scikit-image computes it. The first tile
starts at the corner of the chunk. Intensities are scaled by the darkest and the brightest voxel of
each section or, with --whole, of the chunk. The result therefore depends on the task grid. To
soften the seams between tasks, read a margin of one tile with --expand-margin-size auto, and cut
the margin off with crop-margin. normalize-contrast --levels and stretch-intensity make no seams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import ChunkError, check_extra, needs_extra
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk

KERNEL_SIZE = Zyx(16, 128, 128)


def clahe(
    chunk: Chunk,
    kernel_size: tuple[int, int, int] = KERNEL_SIZE,
    clip_limit: float = 0.01,
    *,
    per_section: bool = True,
) -> Chunk:
    """Return *chunk* with its contrast equalised in tiles that are blended with each other.

    Args:
        chunk: (z, y, x) or (c, z, y, x), unsigned integers or floating point; channels are
            independent.
        kernel_size: extent of a tile, voxels, zyx; z is used only if *per_section* is false.
        clip_limit: contrast limit in (0, 1]; a higher limit gives more contrast.
        per_section: equalise each section (z) separately, instead of in 3D.

    Returns:
        A chunk of the same shape and dtype. Integers use the whole range of their type, and
        floating-point values are in [0, 1]. A section of constant intensity does not change.

    Raises:
        ChunkError: the voxels are signed integers, or some are NaN or infinite.
        MissingExtraError: scikit-image is not installed.
    """
    import numpy as np

    if chunk.dtype.kind not in "uf" or not np.isfinite(chunk.array).all():
        problem = (
            "holds NaN or infinity" if chunk.dtype.kind == "f" else f"holds {chunk.dtype} voxels"
        )
        msg = (
            "clahe needs unsigned integers or finite floating-point values, but chunk "
            f"{chunk.bbox} {problem}; put rescale-intensity --dtype uint8 before clahe"
        )
        raise ChunkError(msg)
    result = np.empty(chunk.shape, chunk.dtype)
    size = chunk.size[1:] if per_section else chunk.size
    sources = chunk.array.reshape(-1, *size)
    for source, target in zip(sources, result.reshape(sources.shape), strict=True):
        _equalise(source, target, kernel_size, clip_limit)
    return chunk.with_array(result)


def _equalise(
    source: NDArray[Any], target: NDArray[Any], kernel: tuple[int, ...], clip_limit: float
) -> None:
    import numpy as np

    with needs_extra("segmentation", "clahe"):
        from skimage.exposure import equalize_adapthist
    if not source.size or source.min() == source.max():
        target[...] = source
        return
    sizes = [min(k, n) for k, n in zip(kernel[-source.ndim :], source.shape, strict=True)]
    # scikit-image does not rescale floating-point images, so they are scaled to [0, 1] here.
    number: Any = np.float32 if source.dtype.itemsize < 4 else np.float64
    low, high = number(source.min()), number(source.max())
    values = (source.astype(number) - low) / (high - low)
    equalised = equalize_adapthist(values, kernel_size=sizes, clip_limit=clip_limit)
    if source.dtype.kind == "u":
        top = float(np.iinfo(source.dtype).max)  # rounded up to 2**64 for uint64
        equalised = np.minimum(
            np.rint(equalised * top), np.nextafter(top, 0) if top > 2**53 else top
        )
    np.copyto(target, equalised, casting="unsafe")


@dataclass
class Equaliser(OperatorBase):
    """Equalises every task's chunk.

    Attributes:
        kernel_size: extent of a tile, voxels, zyx.
        clip_limit: contrast limit in (0, 1].
        per_section: equalise each section (z) separately, instead of in 3D.
    """

    kernel_size: Zyx = KERNEL_SIZE
    clip_limit: float = 0.01
    per_section: bool = True
    keeps_voxels: ClassVar[bool] = hook_value(True)
    cut_remedy: ClassVar[str] = hook_value(
        "use normalize-contrast --levels or stretch-intensity instead of clahe"
    )

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* grown by one tile on each side, and clipped to *domain*."""
        tile = self.kernel_size
        return box.grow((0 if self.per_section else tile.z, tile.y, tile.x)).intersection(domain)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the equalised chunk."""
        return clahe(chunk, self.kernel_size, self.clip_limit, per_section=self.per_section)


@transform
@zyx_option("--kernel-size", "-k", minimum=1, default=KERNEL_SIZE, show_default=True,
            help="Extent of a tile, voxels, zyx; z is used only with --whole.")  # fmt: skip
@click.option("--clip-limit", "-l", type=click.FloatRange(0, 1, min_open=True), default=0.01,
              show_default=True,
              help="Contrast limit; a higher limit gives more contrast.")  # fmt: skip
@click.option("--per-section/--whole", default=True, show_default=True,
              help="Equalise each section (z) separately, or the chunk in 3D.")  # fmt: skip
def command(**options: Any) -> Equaliser:
    """Check that scikit-image is installed, and return the operator."""
    check_extra("segmentation", "clahe", "skimage")
    return Equaliser(**options)
