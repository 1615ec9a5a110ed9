"""Set up a run of a network: choose sizes, create volumes, make tasks, print the command.

1. The size of a task follows from the patch size and the memory of a worker.
2. The block size follows from the task size, because no two tasks may write to one block.
3. The output volume and its thumbnail are created.
4. The tasks are passed to the operators of the pipeline, or sent to a queue.

The module also prints the command line that workers need for these tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.core.operator_base import SourceBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.task_source import Planner, TaskGenerator
from chunkflow_py.tasks.task_grid import region_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.core.task import Task
    from chunkflow_py.inference.task_size import TaskSize
    from chunkflow_py.tasks.task_plan import GridPlan, ListPlan
    from chunkflow_py.volume.new_volume import VolumeCreator
    from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

    Announced = dict[str, Callable[[], VolumeSpec | None]]

FACTOR = Zyx(1, 2, 2)  # factor from each level to the next
# Part of --max-ram-size for chunks and sums of patches; the rest is for the network, libraries and
# the system.
_FOR_CHUNKS = 0.5


@dataclass
class Environment(SourceBase):
    """A source of tasks that first creates their output volumes.

    Attributes:
        volume_path: address of the output.
        region: start, stop and size of the output, voxels of mip 0, zyx. Each is ``None`` if not
            given.
        output_patch_size: size of an output patch of the network, voxels, zyx.
        input_patch_size: size of an input patch (default: the size of an output patch).
        output_patch_overlap: overlap of neighbouring output patches (default: half a patch).
        crop_chunk_margin: voxels to crop on each side of a chunk's output, zyx. With a margin, the
            patch grid starts at the corner of each chunk; with ``None``, it starts at the corner of
            the volume.
        max_ram_size: memory of a worker, GB.
        channel_num: number of output channels.
        dtype: dtype of the output; with ``float16``, the network computes in float16 and the output
            is stored as float32.
        mip: level of the output.
        max_mip: level of the coarsest mask that will be used. Along y and x, the task size is a
            multiple of the size of a voxel of this level.
        thumbnail_mip: coarsest level of the thumbnail; ``None`` creates no thumbnail.
        encoding: encoding of the blocks.
        voxel_size: voxel size at mip 0, nanometres, zyx.
        overwrite_info: replace an existing info file that differs from the new info file.
        queue_name: name of a queue for the tasks, or ``None``.
        visibility_timeout: visibility timeout of that queue, seconds.
        opening: credentials and options of the store.
        announced: dict to which the volumes that will be created are added, so that later commands
            of the pipeline know these volumes before they exist.
        dry_run: print the sizes and the command line of workers, but create no volume and send no
            tasks.
        tell: function that prints a line of the report.
    """

    volume_path: str
    region: tuple[Zyx | None, Zyx | None, Zyx | None]
    output_patch_size: Zyx
    input_patch_size: Zyx | None = None
    output_patch_overlap: Zyx | None = None
    crop_chunk_margin: Zyx | None = None
    max_ram_size: float = 15.0
    channel_num: int = 1
    dtype: str = "float32"
    mip: int = 0
    max_mip: int = 8
    thumbnail_mip: int | None = 6
    encoding: str = "raw"
    voxel_size: tuple[float, float, float] = (40.0, 4.0, 4.0)
    overwrite_info: bool = False
    queue_name: str | None = None
    visibility_timeout: int = 3600
    opening: VolumeOptions | None = None
    announced: Announced = field(default_factory=dict)
    dry_run: bool = False
    tell: Callable[[str], None] = print

    def __post_init__(self) -> None:
        """Choose the sizes, and add the volumes that will be created to *announced*.

        Raises:
            OptionError: options contradict each other, or no size fits into memory.
        """
        if self.thumbnail_mip is not None and self.thumbnail_mip < self.mip:
            msg = (
                f"--thumbnail-mip {self.thumbnail_mip} is finer than the output at --mip "
                f"{self.mip}; give {self.mip} or more, or --no-thumbnail"
            )
            raise OptionError(msg)
        _ = self.creators

    # --- sizes ---------------------------------------------------------------------------------

    @cached_property
    def finest(self) -> BoundingBox:
        """The bounds of the output at mip 0."""
        names = ("--volume-start", "--volume-stop", "--volume-size")
        start, stop = region_of(*self.region, names=names)
        if stop is None:
            msg = "the size of the volume is not given; give --volume-size or --volume-stop"
            raise OptionError(msg)
        return BoundingBox(start, stop)

    @cached_property
    def bounds(self) -> BoundingBox:
        """The bounds of the output, in voxels of its level."""
        return self.finest.coarser(Zyx(1, 2**self.mip, 2**self.mip))

    @cached_property
    def chosen(self) -> TaskSize:
        """The best task size that fits into memory; `TaskSizes.best` defines which size is best.

        Workers of a queue do not exchange patches. Therefore, if the tasks are sent to a queue, the
        size is chosen for tasks that do not exchange patches.
        """
        from chunkflow_py.inference.patch_grid import PatchGeometry
        from chunkflow_py.inference.task_size import TaskSizes

        patch = self.output_patch_size
        overlap = patch // 2 if self.output_patch_overlap is None else self.output_patch_overlap
        coarsest = max(self.max_mip, self.thumbnail_mip or 0)
        unit = 2 ** max(0, coarsest - self.mip)
        depth = 1 if self.crop_chunk_margin is not None else patch.z - overlap.z
        sizes = TaskSizes(
            PatchGeometry(self.input_patch_size or patch, patch, overlap),
            self.channel_num,
            1 if self.dtype == "uint8" else 4,
            Zyx(max(1, depth), unit, unit),
            self.bounds.size,
            self.crop_chunk_margin,
            exchange=self.queue_name is None,
        )
        return sizes.best(int(self.max_ram_size * 1e9 * _FOR_CHUNKS))

    @cached_property
    def generator(self) -> TaskGenerator:
        """The tasks that cover the output's bounds; the last tasks are cropped to these bounds."""
        region = (self.bounds.start, self.bounds.stop, None)
        planner = Planner(self.chosen.size, region, respect_stop=True)
        return TaskGenerator(
            planner,
            queue_name=self.queue_name,
            dry_run=self.dry_run,
            lease_s=self.visibility_timeout,
        )

    @cached_property
    def creators(self) -> tuple[VolumeCreator, ...]:
        """Objects that create the output volume and, if there is one, its thumbnail."""
        from chunkflow_py.volume.engine.block_sizes import common_unit, fitting_block
        from chunkflow_py.volume.location import Location
        from chunkflow_py.volume.new_volume import VolumeCreator
        from chunkflow_py.volume.protocol import VolumeOptions
        from chunkflow_py.volume.thumbnail import halvings

        opening = self.opening or VolumeOptions()
        shared: dict[str, Any] = {
            "opening": opening,
            "announced": self.announced,
            "factor": FACTOR,
            "overwrite": self.overwrite_info,
            "creating": {"layer_type": "image"},
            "command": "setup-env",
        }
        place = Location.parse(self.volume_path)
        if place.format not in (None, "precomputed"):
            msg = (
                f"setup-env makes precomputed volumes, but {place} is of another format; begin the "
                "address with precomputed://"
            )
            raise OptionError(msg)
        made = [
            VolumeCreator(
                self.volume_path,
                "precomputed",
                volume_size=self.finest.size,
                voxel_offset=self.finest.start,
                voxel_size=self.voxel_size,
                data_type="uint8" if self.dtype == "uint8" else "float32",
                channel_num=self.channel_num,
                block_size=fitting_block(self._grid, self.bounds),
                encoding=self.encoding,
                max_mip=self.mip,
                **shared,
            )
        ]
        if self.thumbnail_mip is not None:
            z, y, x = self.voxel_size
            unit = common_unit(self._grid, self.bounds)
            times = halvings(unit, self.bounds, self.mip, self.thumbnail_mip)
            task = self.chosen.size.low(self.bounds.size)
            made.append(
                VolumeCreator(
                    f"precomputed://{(place / 'thumbnail').store_url}",
                    volume_size=self.bounds.size,
                    voxel_offset=self.bounds.start,
                    voxel_size=(z, y * 2**self.mip, x * 2**self.mip),
                    data_type="uint8",
                    channel_num=1,
                    block_size=-(-task // Zyx(1, 2**times, 2**times)),
                    max_mip=times,
                    **shared,
                )
            )
        return tuple(made)

    @property
    def _grid(self) -> BoxGrid:
        return BoxGrid.covering(self.bounds, self.chosen.size, respect_stop=True)

    # --- a source ------------------------------------------------------------------------------

    @property
    @hook
    def plan(self) -> GridPlan | ListPlan:
        """The plan of the tasks."""
        return self.generator.plan

    @property
    @hook
    def boxes(self) -> Boxes:
        """The boxes of the tasks."""
        return self.generator.boxes

    def __len__(self) -> int:
        """Return the number of tasks that are yielded; 0 if the tasks are sent to a queue."""
        return len(self.generator)

    def __enter__(self) -> Environment:
        """Print the chosen sizes, and create the volumes."""
        for line in self.report():
            self.tell(line)
        if not self.dry_run:
            self.create_output()
        return self

    @hook
    def create_output(self) -> str | None:
        """Create the output and its thumbnail unless they exist.

        Returns:
            The address of the output, or ``None`` if the output existed.
        """
        made = []
        for creator in self.creators:
            creator.prepare(None)
            made.append(creator.create_output())
        return made[0]

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks; if a queue is given, send the tasks to the queue and yield none."""
        return iter(self.generator)

    # --- texts ---------------------------------------------------------------------------------

    def report(self) -> Iterator[str]:
        """Yield the lines of a report: the chosen sizes, then the command line for workers."""
        chosen, volume, *thumbnails = self.chosen, *self.creators
        yield f"volume      {self.bounds} (zyx, voxels of mip {self.mip}) in {volume.url}"
        yield f"tasks       {len(self.plan)} of {chosen.size.as_option}"
        computed = f"{chosen.amplification:.2f} voxels computed per output voxel"
        if 0 < chosen.kept < 1:
            computed += f", {chosen.alone:.2f} if tasks do not exchange patches"
        yield f"patches     {chosen.patches.as_option} for a task: {computed}"
        taken = describe_bytes(chosen.memory_bytes)
        yield f"memory      {taken} for chunks and sums of patches, of {self.max_ram_size:g} GB"
        block = (volume.block_size or chosen.size).as_option
        yield f"blocks      {block}, {volume.data_type}, {self.encoding}"
        for thumbnail in thumbnails:
            block = (thumbnail.block_size or chosen.size).as_option
            level = self.mip + thumbnail.max_mip
            why = ""
            if level != self.thumbnail_mip:
                why = (
                    f": at mip {self.thumbnail_mip}, tasks would share voxels, because the tasks "
                    f"begin at {self.bounds.start}"
                )
            yield f"thumbnail   mip {level}, blocks {block}{why}"
        yield ""
        yield "the command of workers; replace INPUT, MODEL and WEIGHTS:"
        yield " \\\n    ".join(self.line())

    def line(self) -> Iterator[str]:
        """Yield each command of the command line for workers, with its options."""
        chosen, patch = self.chosen, self.output_patch_size
        overlap = patch // 2 if self.output_patch_overlap is None else self.output_patch_overlap
        legacy = self.crop_chunk_margin is not None
        if self.queue_name:
            yield (
                f"chunkflow fetch-task-from-sqs --queue-name {self.queue_name} "
                f"--visibility-timeout {self.visibility_timeout}"
            )
        else:
            yield (
                f"chunkflow generate-tasks --roi-start {self.bounds.start.as_option} "
                f"--roi-stop {self.bounds.stop.as_option} --chunk-size {chosen.size.as_option} "
                "--respect-stop"
            )
        margin = chosen.margin.as_option if legacy else "auto"
        yield f"load-precomputed --volume-path INPUT --mip {self.mip} --expand-margin-size {margin}"
        network = (
            "inference --convnet-model MODEL --convnet-weight-path WEIGHTS "
            f"--input-patch-size {(self.input_patch_size or patch).as_option} "
            f"--output-patch-size {patch.as_option} --output-patch-overlap {overlap.as_option} "
            f"--num-output-channels {self.channel_num}"
        )
        if self.dtype != "float32":
            network += f" --{'output-' if self.dtype == 'uint8' else ''}dtype {self.dtype}"
        if self.crop_chunk_margin is not None:
            network += f" --grid chunk --output-crop-margin {self.crop_chunk_margin.as_option}"
        yield network
        thumbnail = "" if self.thumbnail_mip is None else " --create-thumbnail"
        yield f"save-precomputed --volume-path {self.volume_path} --mip {self.mip}{thumbnail}"
