"""Plan the tasks of `generate-tasks`, and yield the tasks, send them or write them to a file.

1. A grid divides a region or a volume into boxes.
2. If boxes of interest are given, boxes that overlap none of them are omitted. If a mask is given,
   boxes in which the mask is zero everywhere are omitted.
3. The remaining boxes are the tasks; the user may select a range of tasks.
4. The selected tasks are yielded to the pipeline, sent to a queue, or written to a file.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx, hull_of
from chunkflow_py.core.operator_base import SourceBase, hook
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError
from chunkflow_py.tasks.checkerboard import CHECKERBOARD, checkerboard, obstacle
from chunkflow_py.tasks.task_grid import cells_touching, region_of, task_grid
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.params import TimePoints
    from chunkflow_py.tasks.task_order import Order
    from chunkflow_py.volume.protocol import Volume, VolumeOptions

    _Region = tuple[Zyx | None, Zyx | None, Zyx | None]

logger = logging.getLogger(__name__)


@dataclass
class Planner:
    """Settings that determine the tasks.

    Attributes:
        chunk_size: extent of a box of the grid, voxels, zyx. If it is ``None``, the boxes of
            *bbox_file* are the tasks.
        region: start, stop and size of the region that the grid covers, voxels, zyx; each may be
            ``None``.
        grid_size: number of boxes along each axis (default: as many as cover the region).
        respect_stop: crop the last boxes at the region's end.
        aligned_block_size: enlarge the region so that its start and stop are multiples of this
            size.
        volume_path: volume to divide into tasks. Where *region* has no start or stop, the start or
            stop of the volume is used.
        mip: resolution level of *volume_path*. All boxes are in voxels of this level.
        opening: credentials and options of the volumes.
        selected: pair (start, stop) of task numbers. The tasks from *start* up to, but not
            including, *stop* are made. If *stop* is ``None``, all tasks from *start* on are made.
            Tasks are numbered from 0 in *order*.
        order: order in which tasks are numbered and made.
        bbox_file: file of boxes of interest; boxes of the grid that overlap none of these boxes are
            omitted.
        mask: volume of a coarse mask; boxes in which the mask is zero everywhere are omitted.
        mask_mip: resolution level of the mask.
        voxel_size_nm: size of the voxels in which the boxes are given, nanometres, zyx. The size is
            needed only to convert the boxes to voxels of *mask*. The default is the voxel size of
            *volume_path* at level *mip*.
        times: first and last time index. At each time index from the first to the last, there is a
            task for each box. ``all`` selects all time points of *volume_path*. With ``None``,
            tasks have no time index.
    """

    chunk_size: Zyx | None = None
    region: _Region = (None, None, None)
    grid_size: Zyx | None = None
    respect_stop: bool = False
    aligned_block_size: Zyx | None = None
    volume_path: str | None = None
    mip: int = 0
    opening: VolumeOptions | None = None
    selected: tuple[int, int | None] = (0, None)
    order: Order = "raster"
    bbox_file: str | None = None
    mask: str | None = None
    mask_mip: int = 0
    voxel_size_nm: tuple[float, float, float] | None = None
    times: TimePoints | None = None

    @property
    def reads(self) -> bool:
        """Whether a volume or file has to be read to determine the tasks."""
        return any((self.volume_path, self.bbox_file, self.mask))

    def plan(self) -> GridPlan | ListPlan:
        """Return the tasks.

        Raises:
            OptionError: all boxes were omitted, or the selected tasks do not exist.
            VolumeError: the volume, the mask or the file of boxes cannot be read.
        """
        wanted = self._wanted()
        if self.chunk_size is None:
            if self.mask is not None:
                inside = self._in_mask([region.bbox for region in wanted])
                wanted = [region for region, keep in zip(wanted, inside, strict=True) if keep]
            return ListPlan(wanted, indexes=self._part(len(wanted)))
        boxes = [region.bbox for region in wanted]
        grid = self._grid(self.chunk_size, boxes)
        kept = self._touching(grid, boxes) if self.bbox_file else None
        if self.mask is not None:
            kept = self._in_mask(grid, kept)
        if kept is None:
            return GridPlan(
                grid, order=self.order, indexes=self._part(len(grid)), times=self._time_count
            )
        import numpy as np

        bits = np.packbits(kept.ravel(), bitorder="little").tobytes()
        part = self._part(int(np.count_nonzero(kept)))
        return GridPlan(grid, order=self.order, indexes=part, times=self._time_count, kept=bits)

    @cached_property
    def _time_range(self) -> range | None:
        """The time indices of the tasks; ``None`` if tasks have no time index.

        Raises:
            OptionError: the volume lacks some of the time points.
        """
        if self.times is None:
            return None
        existing = None if self._volume is None else self._volume.times
        if self.times == "all":
            if self._volume is None:
                msg = (
                    "--time-points all needs a volume to read the number of time points from; give "
                    "--volume-path, or give a range such as --time-points 0-9"
                )
                raise OptionError(msg)
            return None if existing is None else range(existing)
        first, last = self.times
        if self._volume is not None and last >= (existing or 1):
            has = "no time axis" if existing is None else f"the time points 0-{existing - 1}"
            msg = (
                f"{self.volume_path} has {has}, but time point {last} is to be processed; change "
                "--time-points"
            )
            raise OptionError(msg)
        return range(first, last + 1)

    @property
    def _time_count(self) -> int | None:
        """The number of time points in the plan, including those before the first selected one."""
        return None if self._time_range is None else self._time_range.stop

    @cached_property
    def _volume(self) -> Volume | None:
        if self.volume_path is None:
            return None
        from chunkflow_py.volume import open_volume

        return open_volume(self.volume_path, self.mip, opening=self.opening)

    def _wanted(self) -> list[Region]:
        # If the boxes of interest are the tasks themselves, they are enlarged to whole blocks.
        if self.bbox_file is None:
            return []
        from chunkflow_py.queue.box_file import read_regions

        regions = read_regions(self.bbox_file)
        if self.chunk_size is not None:
            if timed := next((r for r in regions if r.time is not None), None):
                msg = (
                    f"{self.bbox_file} has boxes with a time index, such as {timed}, but "
                    "--chunk-size can only divide boxes without a time index; leave out "
                    "--chunk-size, or remove the time indices from the file and give one time "
                    f"index by --bounding-box t{timed.time}_…"
                )
                raise OptionError(msg)
            return regions
        if (unit := self.aligned_block_size) is None:
            return regions
        return list(dict.fromkeys(r.with_box(r.bbox.aligned_outward(unit)) for r in regions))

    def _grid(self, chunk_size: Zyx, wanted: Sequence[BoundingBox]) -> BoxGrid:
        bounds = None
        if None in self.region[:2]:
            if self._volume is not None:
                bounds = self._volume.bounds
            elif not any(self.region) and (hull := hull_of(wanted)) is not None:
                bounds = hull.aligned_outward(self.aligned_block_size or chunk_size)
        start, stop = region_of(*self.region, bounds)
        return task_grid(
            chunk_size, start, stop, grid_size=self.grid_size,
            respect_stop=self.respect_stop, block_size=self.aligned_block_size,
        )  # fmt: skip

    def _touching(self, grid: BoxGrid, wanted: Sequence[BoundingBox]) -> NDArray[Any]:
        import numpy as np

        kept = np.zeros(grid.count, bool)
        outside = 0
        for box in wanted:
            cells = cells_touching(grid, box)
            kept[cells] = True
            outside += cells[0].start is None
        where = f"the grid {grid.bounds} (voxels of mip {self.mip})"
        if outside == len(wanted):
            msg = (
                f"no tasks are left: all {outside} boxes of {self.bbox_file} are outside "
                f"{where}; the first box is {wanted[0]}; change --mip, the region or the boxes"
            )
            raise OptionError(msg)
        if outside:
            logger.warning(
                "%d of the %d boxes of %s are outside %s and are omitted",
                *(outside, len(wanted), self.bbox_file, where),
            )
        count = int(np.count_nonzero(kept))
        logger.info(
            "%d of %d boxes of the grid overlap boxes of %s", count, len(grid), self.bbox_file
        )
        return kept

    def _in_mask(self, boxes: Boxes, wanted: NDArray[Any] | None = None) -> NDArray[Any]:
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.mask import boxes_in_mask

        size = self.voxel_size_nm
        if size is None and self._volume is not None:
            size = self._volume.voxel_size_nm
        if self.mask is None or size is None:
            msg = (
                f"mask {self.mask} cannot be compared with the boxes, because the voxel size of "
                "the boxes is unknown; give --voxel-size, or --volume-path of the volume to process"
            )
            raise OptionError(msg)
        volume = open_volume(self.mask, self.mask_mip, opening=self.opening)
        kept = boxes_in_mask(volume, boxes, size)
        total = len(boxes)
        if wanted is not None:
            kept, total = kept & wanted, int(wanted.sum())
        left = int(kept.sum())
        if not left:
            msg = (
                f"no tasks are left: mask {volume.url} at mip {self.mask_mip} is zero in all "
                f"{total} boxes; check --mask, --mask-mip and --voxel-size"
            )
            raise OptionError(msg)
        logger.info("%d of %d boxes are outside the mask and are omitted", total - left, total)
        return kept

    def _part(self, total: int) -> range:
        first, end = self.selected
        times = self._time_range or range(1)
        before = times.start * total  # numbers begin at time point 0
        total *= len(times)
        if first >= total:
            msg = (
                f"task {first} was requested, but the plan has {total} tasks, 0 to {total - 1}; "
                "lower --task-index-start, or DISBATCH_REPEAT_INDEX with --disbatch"
            )
            raise OptionError(msg)
        return range(before + first, before + (total if end is None else min(end, total)))


@dataclass
class TaskGenerator(SourceBase):
    """Tasks of a plan: yielded to the pipeline, sent to a queue, or written to a file.

    Attributes:
        planner: planner of the tasks.
        file_path: path of a .npy file to which the boxes of the tasks are written.
        queue_name: name of a queue to which the tasks are sent, each as the text of its box.
        create_queue: create the queue, and for SQS its dead-letter queue, if it does not exist.
        dry_run: send and write nothing.
        lease_s: visibility timeout of a new SQS queue, seconds. The timeout applies to workers that
            set no timeout themselves and do not renew leases, such as workers of chunkflow 1.x.
        order: order in which tasks are sent to the queue: ``checkerboard``, or the plan's order.
            The pipeline and the file always get the tasks in the order of the plan.
    """

    planner: Planner
    file_path: str | None = None
    queue_name: str | None = None
    create_queue: bool = True
    dry_run: bool = False
    lease_s: int = 3600
    order: str = "raster"

    @cached_property
    @hook
    def plan(self) -> GridPlan | ListPlan:
        """The plan of all tasks, including tasks that are sent to a queue or written to a file."""
        return self.planner.plan()

    @property
    @hook
    def boxes(self) -> Boxes:
        """The boxes of the whole grid or list, not only of the selected tasks.

        If several jobs each process a part of one grid, all jobs have the same boxes. Therefore,
        they choose the same bounds and the same block or shard size for a new volume.
        """
        return self.plan.boxes

    def __len__(self) -> int:
        """Return the number of tasks that are yielded; 0 if they are sent to a queue or written."""
        return 0 if self.queue_name or self.file_path else len(self.plan)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks; if they are sent to a queue or written to a file, yield none."""
        plan = self.plan
        if self.dry_run and (self.queue_name or self.file_path):
            logger.info("dry run: %d tasks are neither sent nor written", len(plan))
            return
        if self.file_path:
            from chunkflow_py.queue.box_file import write_boxes

            write_boxes(self.file_path, plan)
            logger.info("wrote %d tasks to %s", len(plan), self.file_path)
        if self.queue_name:
            from chunkflow_py.queue.queue_protocol import open_queue

            opened = open_queue(self.queue_name, create=self.create_queue, lease_s=self.lease_s)
            with closing(opened) as queue:
                sent = queue.send(map(plan.text, self._in_sending_order(plan)))
            logger.info("sent %d tasks to queue %s", sent, self.queue_name)
        if not (self.file_path or self.queue_name):
            if self.order == CHECKERBOARD:
                logger.info(
                    "--order checkerboard has no effect, because one process runs its tasks in "
                    "raster order; checkerboard order is for workers that run at the same time"
                )
            yield from (Task(plan.region(number)) for number in plan)

    def _in_sending_order(self, plan: GridPlan | ListPlan) -> Iterator[int]:
        if self.order != CHECKERBOARD:
            return iter(plan)
        if reason := obstacle(plan):
            logger.info("tasks are sent in raster order, not in checkerboard order: %s", reason)
        return checkerboard(plan)


def tasks_from(options: Mapping[str, Any], *, dry_run: bool = False) -> TaskGenerator:
    """Return the tasks that the options of `generate-tasks` describe.

    If a volume or a file must be read to plan the tasks, `TaskGenerator.plan` plans them when it is
    first used. Otherwise, the tasks are planned immediately.

    Raises:
        OptionError: options contradict each other, or an option is missing.
    """
    region, chunk_size = _region_and_size(options)
    file_path = options["file_path"]
    order: Any = options["order"] or "raster"
    numbering: Order = "raster" if order == CHECKERBOARD else order
    if file_path and not file_path.endswith(".npy"):
        msg = f"--file-path {file_path} does not end in .npy; use {file_path}.npy"
        raise OptionError(msg)
    planner = Planner(
        chunk_size, region, options["grid_size"], not options["respect_chunk_size"],
        options["aligned_block_size"], options["volume_path"], options["mip"],
        options["opening"], _selected(options), numbering, options["bbox_file"],
        options["mask"], options["mask_mip"], options["voxel_size"], _time_points(options),
    )  # fmt: skip
    tasks = TaskGenerator(
        planner, file_path, options["queue_name"], options["create_queue"], dry_run, order=order
    )
    if not planner.reads:
        _ = tasks.plan
    return tasks


def _region_and_size(options: Mapping[str, Any]) -> tuple[_Region, Zyx | None]:
    region: _Region = options["roi_start"], options["roi_stop"], options["roi_size"]
    asked: Region | None = options["bounding_box"]
    box = None if asked is None else asked.bbox
    chunk_size: Zyx | None = options["chunk_size"]
    if box is not None:
        if any(region):
            msg = f"--bounding-box {box} already gives the region; leave out the --roi options"
            raise OptionError(msg)
        region = box.start, box.stop, None
    if options["bbox_file"] and chunk_size is None:
        given = {"--bounding-box": box, "--grid-size": options["grid_size"]}
        given |= zip(("--roi-start", "--roi-stop", "--roi-size"), region, strict=True)
        if wrong := next((name for name, value in given.items() if value is not None), None):
            msg = (
                f"without --chunk-size, the boxes of {options['bbox_file']} are the tasks; "
                f"give --chunk-size, or leave out {wrong}"
            )
            raise OptionError(msg)
        return region, None
    if chunk_size is None and box is None:
        msg = "the size of the tasks is not given; give --chunk-size, --bounding-box or --bbox-file"
        raise OptionError(msg)
    return region, box.size if chunk_size is None and box is not None else chunk_size


def _time_points(options: Mapping[str, Any]) -> TimePoints | None:
    times: TimePoints | None = options["time_points"]
    asked: Region | None = options["bounding_box"]
    if asked is not None and asked.time is not None:
        if times is not None:
            msg = f"--bounding-box {asked} already gives the time point; leave out --time-points"
            raise OptionError(msg)
        return asked.time, asked.time
    if times is not None and options["bbox_file"] and options["chunk_size"] is None:
        msg = (
            f"without --chunk-size, the tasks have the boxes and the time points of the file "
            f"{options['bbox_file']}, so --time-points has no effect; give --chunk-size, or leave "
            "out --time-points"
        )
        raise OptionError(msg)
    return times


def _selected(options: Mapping[str, Any]) -> tuple[int, int | None]:
    first, end = options["task_index_start"], options["task_index_stop"]
    if options["disbatch"]:
        if (first, end) != (0, None):
            msg = "--disbatch chooses the task; leave out --task-index-start and --task-index-stop"
            raise OptionError(msg)
        text = os.environ.get("DISBATCH_REPEAT_INDEX", "")
        if not is_digits(text):
            found = f"is {text!r}" if text else "is not set"
            msg = (
                "--disbatch takes the task's number from the environment variable "
                f"DISBATCH_REPEAT_INDEX, which {found}; start the command with disBatch"
            )
            raise OptionError(msg)
        return int(text), int(text) + 1
    if end is not None and end <= first:
        msg = (
            f"--task-index-stop {end} must be greater than --task-index-start {first}; "
            f"{first + 1} selects one task"
        )
        raise OptionError(msg)
    return first, end
