"""What save-precomputed does with the chunk of a task: the volume, its thumbnail and its log."""

from __future__ import annotations

import logging
import platform
import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from chunkflow_py.geometry import Zyx
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.saver import VolumeSaver, common_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.geometry import BoundingBox, BoxGrid
    from chunkflow_py.task import Task
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)


@dataclass
class PrecomputedSaver:
    """Writes a chunk of every task into one precomputed volume.

    Attributes:
        saver: of the volume.
        input_name: name of the chunk in the task.
        intensity_threshold: leave out a task whose voxels all lie below this.
        upload_log: write ``log/<box>.json``.
        create_thumbnail: write the last channel, shrunk along y and x, to ``thumbnail``.
    """

    saver: VolumeSaver
    input_name: str = "chunk"
    intensity_threshold: float | None = None
    upload_log: bool = False
    create_thumbnail: bool = False
    _boxes: BoxGrid | Sequence[BoundingBox] | None = field(default=None, init=False, repr=False)
    _thumbnails: tuple[VolumeSaver, int] | None = field(default=None, init=False, repr=False)

    @property
    def destination(self) -> str:
        """The level of the volume."""
        return self.saver.destination

    def prepare(self, outline: Any) -> None:
        """Check the boxes of all tasks against the write unit (of an `Outline`)."""
        self._boxes = outline.boxes
        self.saver.prepare(outline.boxes, outline.domain, outline.voxels)

    def __call__(self, task: Task) -> Task:
        """Write the chunk, and what goes with it."""
        chunk = task.chunk(self.input_name)
        start = perf_counter()
        if self.intensity_threshold is not None and (chunk.array < self.intensity_threshold).all():
            logger.info("%s: all voxels below %g, not saved", task, self.intensity_threshold)
            return task
        time = None if task.region is None else task.region.time
        volume = self.saver(chunk, time)
        if self.create_thumbnail:
            self._save_thumbnail(chunk, volume)
        if self.upload_log:
            self._save_log(task, chunk, perf_counter() - start)
        return task

    def _save_thumbnail(self, chunk: Chunk, volume: Volume) -> None:
        from chunkflow_py.volume.thumbnail import halvings, thumbnail

        if self._thumbnails is None:
            # without known tasks, each may be as small as a block
            unit = common_unit(self._boxes, volume.bounds) if self._boxes else volume.write_unit
            times = halvings(unit, volume.bounds, self.saver.mip)
            shrink = Zyx(1, 2**times, 2**times)
            extent = volume.bounds.size
            step = Zyx(*(u or e for u, e in zip(unit, extent, strict=True))).low(extent)
            place = Location.parse(self.saver.url) / "thumbnail"
            saver = VolumeSaver(
                place.url,
                times,
                "precomputed",
                block_size=-(-step // shrink),
                creating={"factor": (1, 2, 2)},
            )
            self._thumbnails = saver, 2**times
        saver, factor = self._thumbnails
        inside = chunk.cut(chunk.bbox.intersection(volume.bounds))
        saver(thumbnail(inside, factor))

    def _save_log(self, task: Task, chunk: Chunk, seconds: float) -> None:
        from chunkflow_py.volume.precomputed import write_json

        name = str(task.region or chunk.bbox)
        log = {
            "timer": {**task.seconds, "save-precomputed": seconds},
            "bbox": name,
            "compute_device": compute_device(),
        }
        write_json(Location.parse(self.saver.url) / "log", f"{name}.json", log)


def compute_device() -> str:
    """Return the name of the GPU if this process may have used one, else of the processor."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return platform.processor() or platform.machine()
