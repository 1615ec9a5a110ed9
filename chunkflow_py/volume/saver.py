"""Write the chunks of a line into one volume, which is created when it does not exist.

What a new volume is told:

| of the volume          | taken from                                                             |
|------------------------|------------------------------------------------------------------------|
| bounds                 | an option, else the domain of the line's input, else the hull of its   |
|                        | tasks, else the first chunk's domain; tasks that lie on no grid of     |
|                        | blocks in the domain get a volume of their own part of it              |
| block size             | an option, else the largest up to 64 on whose grid all tasks lie       |
| dtype, channels, kind, | the first chunk                                                        |
| voxel size             |                                                                        |
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import (
    AlignmentError,
    ChunkError,
    GeometryError,
    OptionError,
    VolumeNotFoundError,
)
from chunkflow_py.geometry import AXES, BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeSpec, check_alignment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from chunkflow_py.chunk import Chunk, Kind, Voxels
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

USUAL_BLOCK = 64  # voxels along each axis
_SMALL_BLOCK = 16
_LARGE_BLOCK = 256
_USELESS_BLOCK = 4  # below this along an axis, a volume of any size is millions of files


@dataclass
class VolumeSaver:
    """The body that savers of volumes share.

    Attributes:
        url: of the volume.
        mip: resolution level to write.
        format: ``precomputed`` or ``zarr``, where the address does not say it.
        create: whether to create a missing volume.
        bounds: of a new volume.
        voxel_size_nm: of a new volume, where it is not the chunk's.
        dtype: what to convert the voxels to first.
        block_size: of a new volume.
        shard_size: of a new volume: several blocks that are written as one.
        encoding: of a new volume.
        opening: settings of `open_volume`.
        creating: settings of `create_volume`.
    """

    url: str
    mip: int = 0
    format: str | None = None
    create: bool = True
    bounds: BoundingBox | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    dtype: np.dtype[Any] | None = None
    block_size: Zyx | None = None
    shard_size: Zyx | None = None
    encoding: str | None = None
    opening: Mapping[str, Any] = field(default_factory=dict)
    creating: Mapping[str, Any] = field(default_factory=dict)
    volume: Volume | None = field(default=None, init=False)
    _told_of_cut: bool = field(default=False, init=False, repr=False)
    _planned: tuple[BoundingBox, Zyx] | None = field(default=None, init=False, repr=False)

    @property
    def destination(self) -> str:
        """The level of the volume."""
        return f"{Location.parse(self.url).address} at mip {self.mip}"

    def prepare(
        self,
        boxes: BoxGrid | Sequence[BoundingBox] | None,
        domain: BoundingBox | None,
        voxels: Voxels | None = None,
    ) -> None:
        """Check the boxes of all tasks against the write unit, before the first task.

        Args:
            boxes: of all tasks, as they reach the saver, if known.
            domain: bounds of the volume that the line reads, if known.
            voxels: what will be written, if known.

        Raises:
            ChunkError: the volume holds other voxels.
            VolumeNotFoundError: there is no volume, and none is to be created.
            AlignmentError: two tasks would write to one block; names the sizes that work.
            GeometryError: no task touches the volume.
        """
        self.volume = self._open()
        if self.volume is not None:
            bounds, unit = self.volume.bounds, self.volume.write_unit
            if voxels is not None:
                _check_voxels(voxels, self.dtype, self.volume)
        else:
            known = self.bounds or domain or hull_of(boxes)
            if known is None:
                return
            bounds, block = self._plan(boxes, known)
            self._planned = bounds, block
            unit = self.shard_size or block
        if boxes:
            _check_touch(hull_of(boxes), bounds, self.url)
            check_alignment(boxes, unit, bounds, self.url)

    def __call__(self, chunk: Chunk, time: int | None = None) -> Volume:
        """Write *chunk*, cut to the bounds of the volume, and return the volume.

        Voxels of another type are converted where nothing is lost but rounding: a map to uint8
        (255·p, rounded half to even) and an integer to a wider one.

        Raises:
            ChunkflowError: as `Volume.write` says, and what creating may raise.
        """
        from chunkflow_py.volume.conversion import converted

        if self.volume is None:
            self.volume = self._open() or self._create(chunk)
        volume = self.volume
        _check_touch(chunk.bbox, volume.bounds, self.url)
        inside = chunk.bbox.intersection(volume.bounds)
        if inside != chunk.bbox:
            if not self._told_of_cut:
                logger.warning(
                    "chunk %s reaches beyond %s, whose bounds are %s: what lies outside is not "
                    "written, of this task and of others", chunk.bbox, self.url, volume.bounds,
                )  # fmt: skip
                self._told_of_cut = True
            chunk = chunk.cut(inside)
        volume.write(fitted(converted(chunk, self.dtype), volume), time=time)
        return volume

    def _plan(
        self, boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox
    ) -> tuple[BoundingBox, Zyx]:
        """Return bounds and block size of a new volume."""
        if self.block_size is not None:
            return bounds, self.block_size
        block = fitting_block(boxes, bounds)
        region = hull_of(boxes)
        if self.bounds is None and region is not None:
            try:
                check_alignment(boxes or (), block, bounds, self.url)
            except AlignmentError:
                region = region.intersection(bounds)
                logger.warning(
                    "%s will hold %s, the part that the tasks cover: they lie on no grid of blocks "
                    "that begins at %s (zyx, voxels), where the input does",
                    self.url, region, bounds.start,
                )  # fmt: skip
                return region, fitting_block(boxes, region)
        return bounds, block

    def _open(self) -> Volume | None:
        try:
            return open_volume(self.url, self.mip, "r+", format=self.format, **self.opening)
        except VolumeNotFoundError as error:
            if self.create:
                return None
            msg = f"{error}, or leave out --no-create"
            raise VolumeNotFoundError(msg) from error

    def _create(self, chunk: Chunk) -> Volume:
        from chunkflow_py.volume.conversion import converted

        bounds, block = self._planned or (self.bounds or chunk.domain, self.block_size)
        spec = VolumeSpec(
            bounds=bounds,
            voxel_size_nm=self.voxel_size_nm or chunk.voxel_size_nm,
            dtype=chunk.dtype if self.dtype is None else self.dtype,
            channels=None if chunk.ndim == 3 else chunk.channels,
            kind=chunk.kind,
            block_size=block or fitting_block([chunk.bbox], bounds),
            encoding=self.encoding,
        )
        # whatever cannot be written is found before there is a volume
        inside = chunk.bbox.intersection(bounds)
        _check_touch(chunk.bbox, bounds, self.url)
        check_alignment([inside], self.shard_size or spec.block_size, bounds, self.url)
        converted(chunk.cut(inside), spec.dtype)
        logger.info(
            "creating %s: %s, %s, blocks of %s", self.url, bounds, spec.dtype, spec.block_size
        )
        settings = dict(self.creating)
        if self.shard_size is not None:
            settings["shard_size"] = self.shard_size
        return create_volume(spec, self.url, self.mip, format=self.format, **settings)


def common_unit(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return the largest step on whose grid, from the start of *bounds*, all faces lie.

    Faces on or beyond those of *bounds* do not count; 0 along an axis without any other.
    """
    steps = []
    for axis, spans in enumerate(_spans(boxes)):
        first, last = bounds.start[axis], bounds.stop[axis]
        steps.append(math.gcd(*(f - first for span in spans for f in span if first < f < last)))
    return Zyx(*steps)


def fitting_block(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return a block size for a new volume, so that no task cuts a block.

    That is 64 voxels, or the largest divisor of what the tasks have in common up to that; if it
    is below 16, what the tasks have in common itself, up to 256. Tasks that have less than 4
    voxels in common, but are larger, get blocks as large as they are, which they cut.
    """
    block = []
    common = common_unit(boxes, bounds)
    for step, spans, extent in zip(common, _spans(boxes), bounds.size, strict=True):
        best = max(d for d in range(1, USUAL_BLOCK + 1) if step % d == 0)
        if 0 < step <= _LARGE_BLOCK and best < _SMALL_BLOCK:
            best = step
        if best < _USELESS_BLOCK:
            largest = max(high - low for low, high in spans)
            best = largest if step < _USELESS_BLOCK else step
        block.append(max(1, min(best, extent)))
    return Zyx(*block)


def _spans(boxes: BoxGrid | Sequence[BoundingBox] | None) -> list[list[tuple[int, int]]]:
    """Return (start, stop) of the boxes along z, y and x."""
    if isinstance(boxes, BoxGrid):
        return [boxes.intervals(axis) for axis in range(3)]
    return [[(box.start[axis], box.stop[axis]) for box in boxes or ()] for axis in range(3)]


def fitted(chunk: Chunk, volume: Volume) -> Chunk:
    """Return *chunk* with the dtype of *volume*.

    Raises:
        ChunkError: that would lose more than rounding.
    """
    from chunkflow_py.volume.conversion import converted

    if not _fits(chunk.dtype, chunk.kind, volume):
        msg = (
            f"chunk {chunk.bbox} is {chunk.dtype}, but {volume.url} holds {volume.dtype}; write to "
            "another volume, or convert the chunk"
        )
        raise ChunkError(msg)
    return converted(chunk, volume.dtype)


def _fits(here: np.dtype[Any], kind: Kind | None, volume: Volume) -> bool:
    """Tell whether voxels can become those of *volume* with no loss but rounding."""
    import numpy as np

    there = volume.dtype
    widened = here.kind in "bui" and there.kind in "ui" and np.can_cast(here, there, "safe")
    quantised = here.kind == "f" and there == np.uint8 and kind in ("probability", "affinity", None)
    narrowed = here.kind == "f" and there.kind == "f"
    return here == there or widened or quantised or narrowed


def _check_voxels(voxels: Voxels, dtype: np.dtype[Any] | None, volume: Volume) -> None:
    """Refuse a volume that cannot take what the line will make, before any of it is made."""
    import numpy as np

    here = np.dtype(voxels.dtype) if dtype is None else dtype
    if voxels.channels != (volume.channels or 1) or not _fits(here, voxels.kind, volume):
        msg = (
            f"the line makes {voxels.channels} channels of {here}, but {volume.url} holds "
            f"{volume.channels or 1} of {volume.dtype}; write to another volume, or change the "
            "line"
        )
        raise ChunkError(msg)


def shape_bounds(shape: Zyx) -> BoundingBox:
    """Return the bounds of a volume of extent *shape* that begins at the origin."""
    return BoundingBox(Zyx(0, 0, 0), shape)


def checked_dtype(name: str | None, option: str) -> np.dtype[Any] | None:
    """Return the dtype called *name*.

    Raises:
        OptionError: there is none of that name, or its voxels are not real numbers.
    """
    if name is None:
        return None
    import numpy as np

    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "buif":
        msg = f"{option} {name} is not a type of voxels; choose uint8, uint32, float32 or another"
        raise OptionError(msg)
    return found


def _check_touch(box: BoundingBox | None, bounds: BoundingBox, url: str) -> None:
    if box is not None and box.intersection(bounds).is_empty and not box.is_empty:
        axes = "".join(AXES)
        msg = f"{box} lies outside of {url}, whose bounds are {bounds} ({axes}, voxels)"
        raise GeometryError(msg)
