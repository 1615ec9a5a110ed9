"""The operator that writes the chunk of each task to a volume, with thumbnail and logs."""

from __future__ import annotations

import json
import logging
import platform
import sys
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.map_scale import check_threshold
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.task import Output
from chunkflow_py.errors import OptionError, VolumeNotFoundError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.engine.block_sizes import common_unit
from chunkflow_py.volume.labelling import Labelling, LabellingRecords
from chunkflow_py.volume.location import Location, volume_name
from chunkflow_py.volume.protocol import coarser
from chunkflow_py.volume.saver import VolumeSaver
from chunkflow_py.volume.task_box import BoxCheck, stored_inside
from chunkflow_py.volume.write_unit_check import check_alignment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, BoxGrid
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Leftover, Stored
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)


@dataclass
class VolumeOutput(OperatorBase):
    """Operator that writes the chunk of each task to one volume; may run in several threads.

    Attributes:
        saver: saver that writes the volume.
        input_name: name of the chunk in the task.
        intensity_threshold: a chunk is not written if all its voxels are below this value.
        upload_log: whether to write ``log/<box>.json`` in the folder of the volume, with the time
            that each operator took.
        create_thumbnail: whether to write a thumbnail to the precomputed volume ``thumbnail`` in
            the folder of the volume. The thumbnail is the last channel of the first time point,
            downsampled along y and x.
        name: name of the command, for the log.
    """

    saver: VolumeSaver
    input_name: str = "chunk"
    intensity_threshold: float | None = None
    upload_log: bool = False
    create_thumbnail: bool = False
    name: str = "save-volume"
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _labelling: Labelling | None = field(default=None, init=False, repr=False)
    _records: LabellingRecords | None = field(default=None, init=False, repr=False)
    _boxes: BoxGrid | Sequence[BoundingBox] | None = field(default=None, init=False, repr=False)
    _check_box: BoxCheck | None = field(default=None, init=False, repr=False)
    _thumbnails: tuple[VolumeSaver, int] | None = field(default=None, init=False, repr=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """Canonical names of the level and, if they are requested, of the thumbnail and the log."""
        address = volume_name(self.saver.place)
        more = {"thumbnail": self.create_thumbnail, "log": self.upload_log}
        beside = (f"{address}/{name}" for name, wanted in more.items() if wanted)
        return (self.saver.destination, *beside)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the outputs: the level and, if they are requested, the thumbnail and the log."""
        saver, place = self.saver, self.saver.place
        more = (
            Output("objects", f"{self._beside(name).store_url}/")
            for name, wanted in (("thumbnail", self.create_thumbnail), ("log", self.upload_log))
            if wanted
        )
        kind = place.format or saver.format
        return (Output("volume", place.store_url, saver.mip, kind, saver.time), *more)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that no two tasks write to one write unit of the volume or of the thumbnail.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.

        Raises:
            ChunkflowError: the errors of `VolumeSaver.prepare`, for the volume or its thumbnail.
        """
        self._boxes, self._check_box = outline.boxes, BoxCheck.of(outline)
        self._labelling = outline.labelling
        if outline.voxels is not None:
            self._check_intensity(outline.voxels.dtype, outline.voxels.kind)
        for wanted, option in (
            (self.upload_log, "--upload-log"), (self.create_thumbnail, "--create-thumbnail"),
        ):  # fmt: skip
            if wanted and self.saver.place.format == "h5":
                msg = (
                    f"{self.saver.url} is one file, which does not support {option}; leave out "
                    f"{option}"
                )
                raise OptionError(msg)
        self.saver.prepare(
            outline.boxes,
            outline.domain,
            outline.voxels,
            outline.times,
            outline.voxel_size_nm,
            has_tasks=outline.has_tasks or outline.boxes is not None,
        )
        if self.create_thumbnail:
            from chunkflow_py.volume.thumbnail import check_kind

            if outline.voxels is not None:
                check_kind(outline.voxels.kind, self.saver.url)
            if self._boxes and (bounds := self.saver.known_bounds()):
                self._thumbnails = self._thumbnail_saver(bounds, common_unit(self._boxes, bounds))

    @property
    @hook
    def single_writer(self) -> bool:
        """Whether only one process at a time may write to the volume."""
        volume = self.saver.volume
        return self.saver.place.format == "h5" if volume is None else volume.single_writer

    @property
    @hook
    def missing_output(self) -> str | None:
        """Address of the volume if it does not exist, else ``None``."""
        return self.saver.url if self.saver.volume is None else None

    @hook
    def create_output(self) -> str | None:
        """Create the volume and its thumbnail before the first chunk, if they are missing.

        Returns:
            The address of the volume if this call has created the volume, else ``None``.

        Raises:
            OptionError: a property of the volume depends on the first chunk.
        """
        made = self.saver.create_output()
        if self.create_thumbnail and self.saver.volume is not None:
            self._thumbnail(self.saver.volume)[0].create_output()
        return made

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory for encoding blocks of a chunk of extent *size*, voxels, zyx."""
        from chunkflow_py.core.host_memory import OperatorMemory

        needed = None if size is None else self.saver.write_bytes(size)
        return None if needed is None else OperatorMemory(work=needed)

    @hook
    def leftovers(self, tasks: Any) -> Iterator[Leftover]:
        """Yield the stored blocks and their labelling records that *tasks* will write again."""
        if self.saver.volume is not None:
            yield from stored_inside(self.saver.volume, tasks, time=self.saver.time)
            records = LabellingRecords(self.saver.volume, self.saver.opening.access)
            yield from records.inside(tasks, self.saver.time)
        if self._thumbnails is not None and self._thumbnails[0].volume is not None:
            saver, factor = self._thumbnails
            shrink = Zyx(1, factor, factor)
            yield from stored_inside(saver.volume, tasks, shrink)

    def __call__(self, task: Task) -> Task:
        """Write the chunk, its labelling record, its part of the thumbnail, and its log."""
        chunk = task.chunk(self.input_name)
        time = None if task.region is None else task.region.time
        start = perf_counter()
        if self._check_box is not None:
            bounds = self.saver.known_bounds() or self.saver.volume_for(chunk, time).bounds
            self._check_box(task, chunk, bounds, self.saver.url)
        self._check_intensity(chunk.dtype, chunk.kind)
        if self.intensity_threshold is not None and (chunk.array < self.intensity_threshold).all():
            logger.info(
                "%s: the chunk is not saved, because all voxels are below %g",
                task, self.intensity_threshold,
            )  # fmt: skip
            task.written += self.saver.left_out(chunk, time)
            return task
        task.written += self._save_labelling(chunk, time)
        task.written += self.saver(chunk, time)
        at_first = not (time if self.saver.time is None else self.saver.time)
        if self.create_thumbnail and at_first and self.saver.volume is not None:
            task.written += self._save_thumbnail(chunk, self.saver.volume)
        if self.upload_log:
            self._save_log(task, chunk, perf_counter() - start)
        return task

    @hook
    def stored_type(self) -> str | None:
        """Return the dtype of the stored voxels; ``None`` if it is not known yet."""
        return self.saver.stored_type()

    def _save_labelling(self, chunk: Chunk, time: int | None) -> tuple[Stored, ...]:
        if self._labelling is None:
            return ()
        volume = self.saver.volume_for(chunk, time)
        if chunk.bbox.intersection(volume.bounds).is_empty:
            return ()  # the saver raises the error
        with self._lock:
            self._records = self._records or LabellingRecords(volume, self.saver.opening.access)
        time = time if self.saver.time is None else self.saver.time
        return self._records.put(self._labelling, chunk.bbox, time)

    def _check_intensity(self, dtype: Any, kind: str | None) -> None:
        if self.intensity_threshold is not None:
            check_threshold(self.intensity_threshold, dtype, kind, "--intensity-threshold")

    def _save_thumbnail(self, chunk: Chunk, volume: Volume) -> tuple[Stored, ...]:
        from chunkflow_py.volume.thumbnail import thumbnail

        saver, factor = self._thumbnail(volume)
        inside = chunk.cut(chunk.bbox.intersection(volume.bounds))
        return saver(thumbnail(inside, factor))

    def _thumbnail(self, volume: Volume) -> tuple[VolumeSaver, int]:
        with self._lock:
            if self._thumbnails is None:
                # if the tasks are not known, they may be as small as a write unit
                known = self._boxes and common_unit(self._boxes, volume.bounds)
                unit = known or volume.write_unit
                self._thumbnails = self._thumbnail_saver(volume.bounds, unit)
            saver, factor = self._thumbnails
            z, y, x = volume.voxel_size_nm
            saver.voxel_size_nm = (z, y * factor, x * factor)
            return saver, factor

    def _thumbnail_saver(self, bounds: BoundingBox, unit: Zyx) -> tuple[VolumeSaver, int]:
        """Return the saver of the thumbnail, and the downsampling factor along y and x.

        The blocks of a new thumbnail are chosen so that no two tasks share a block. If the
        thumbnail exists, and two tasks share a block of the thumbnail, an error is raised.
        """
        from chunkflow_py.core.chunk import Voxels
        from chunkflow_py.volume.thumbnail import check_stored, halvings

        url = f"precomputed://{self._beside('thumbnail').store_url}"
        times = self._thumbnail_level(url)
        if times is None:
            times = halvings(unit, bounds, self.saver.mip)
        shrink = Zyx(1, 2**times, 2**times)
        step = Zyx(*(u or e for u, e in zip(unit, bounds.size, strict=True))).low(bounds.size)
        saver = VolumeSaver(
            url,
            times,
            bounds=coarser(bounds, shrink),
            block_size=-(-step // shrink),
            factor=Zyx(1, 2, 2),
            opening=self.saver.opening,
            exactly=False,
            announced=self.saver.announced,
        )
        saver.prepare(None, None, Voxels("uint8", 1, "image"))
        if saver.volume is not None:
            check_stored(saver.volume)
            if self._boxes:
                stored = saver.volume.write_unit * shrink
                check_alignment(self._boxes, stored, bounds, saver.url)
        return saver, 2**times

    def _thumbnail_level(self, url: str) -> int | None:
        announced = self.saver.announced.get(volume_name(Location.parse(url)))
        if announced is not None and (spec := announced()) is not None:
            return spec.max_mip
        try:
            return open_volume(url, opening=self.saver.opening).mips[-1]
        except VolumeNotFoundError:
            return None

    def _beside(self, name: str) -> Location:
        return self.saver.place / name

    def _save_log(self, task: Task, chunk: Chunk, seconds: float) -> None:
        from chunkflow_py.store import open_store

        box = str(task.region or chunk.bbox)
        log = {
            "timer": {**task.seconds, self.name: seconds},
            "bbox": box,
            "compute_device": compute_device(),
        }
        content = json.dumps(log, indent=2).encode() + b"\n"
        store = open_store(self._beside("log").store_url, self.saver.opening.access)
        store.put(f"{box}.json", content, content_type="application/json")


def compute_device() -> str:
    """Return the name of the GPU that PyTorch uses; without a GPU, the name of the processor."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return platform.processor() or platform.machine()
