"""Read what each task needs out of one volume."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.volume import open_volume
from chunkflow_py.volume.cutout import Cutout
from chunkflow_py.volume.protocol import check_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.geometry import BoundingBox
    from chunkflow_py.task import Task
    from chunkflow_py.volume.protocol import Volume


@dataclass
class VolumeLoader:
    """Puts a volume, or the part of it that a task needs, into every task.

    Attributes:
        url: of the volume.
        mip: resolution level.
        format: ``precomputed`` or ``zarr``, where the address does not say it.
        cutout: which part.
        output_name: name of the chunk in the task.
        channels: which, in this order (default: all).
        voxel_size_nm: instead of the volume's.
        opening: settings of `open_volume`.
        checks: called with the chunk and the volume; each returns the chunk to go on with.
    """

    url: str
    mip: int = 0
    format: str | None = None
    cutout: Cutout = field(default_factory=Cutout)
    output_name: str = "chunk"
    channels: tuple[int, ...] | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    opening: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Callable[[Chunk, Volume], Chunk], ...] = ()
    _volume: Volume | None = field(default=None, init=False, repr=False)
    _has_tasks: bool = field(default=False, init=False, repr=False)

    @property
    def volume(self) -> Volume:
        """The volume, opened on first use.

        Raises:
            VolumeNotFoundError: there is none, or it has no such level.
            VolumeError: it cannot be read.
            ChunkError: it has not these channels.
        """
        if self._volume is None:
            found = open_volume(self.url, self.mip, format=self.format, **self.opening)
            check_channels(self.channels, found.channels, found.url)
            self._volume = found
        return self._volume

    def prepare(self, outline: Any) -> None:
        """Take from the line (an `Outline`) whether its tasks have boxes."""
        self._has_tasks = outline.has_tasks

    def bounds(self) -> BoundingBox:
        """Return the domain of the chunks.

        Raises:
            GeometryError: an explicit cut reaches outside of the volume.
        """
        bounds = self.volume.bounds
        domain = self.cutout.box(bounds, None, self.url)[1]
        return bounds if self._has_tasks else domain

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box."""
        self.cutout.negotiate(required)

    def __call__(self, task: Task) -> Task:
        """Read the part of the volume that the task needs."""
        from chunkflow_py.chunk import Chunk

        box, domain = self.cutout.box(self.volume.bounds, task.bbox, self.url)
        time = None if task.region is None else task.region.time
        chunk = self.volume.read(box, self.channels, time=time)
        for check in self.checks:
            chunk = check(chunk, self.volume)
        size_nm = self.voxel_size_nm or chunk.voxel_size_nm
        task[self.output_name] = Chunk(chunk.array, box.start, size_nm, chunk.kind, domain)
        return task
