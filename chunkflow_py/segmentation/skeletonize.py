"""Create skeletons of the objects in a chunk, and join the skeletons of several chunks.

```
task             |a        b|          voxels a to b
skeletonized     |a        b|c         voxels a to b, and c, the first voxel of the next task
```

Two neighbouring tasks both read the plane of voxels c. If an object crosses this plane, each of the
two tasks ends its skeleton at a point of the plane. The point depends only on the voxels of the
plane, so the two skeletons end at the same point.

The library kimimaro creates and joins skeletons (TEASAR algorithm). It is an optional dependency
under the GPL.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.core.skeleton import Skeleton, merged
from chunkflow_py.errors import needs_extra
from chunkflow_py.segmentation.labels.components import labels_of
from chunkflow_py.segmentation.labels.object_folder import (
    ObjectFolder,
    fragment_folder,
    objects_below,
    record_folder,
    scales_of,
)
from chunkflow_py.segmentation.labels.object_shards import ObjectShards, ShardEntry
from chunkflow_py.segmentation.labels.prefix import fragments_of, prefix_of, xyz
from chunkflow_py.segmentation.mesh_creation import task_box
from chunkflow_py.segmentation.skeleton_files import INFO, SHARDED_INFO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Output, Task

logger = logging.getLogger(__name__)

_PARTS = 2  # of the name of a fragment: id, box


def create_skeletons(
    chunk: Chunk,
    box: BoundingBox | None = None,
    *,
    ids: Sequence[int] | None = None,
    dust_threshold: int = 1000,
    fill_holes: bool = False,
    fix_branching: bool = True,
    voxel_size_nm: tuple[float, float, float] | None = None,
    **teasar: float | None,
) -> dict[int, Skeleton]:
    """Return the skeletons (centre lines) of the objects in a chunk, by object id.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x); 0 is background. The chunk should extend one voxel
            beyond the end of *box* along each axis, except at the end of the volume.
        box: box of the task (default: the chunk's box).
        ids: ids of the objects to skeletonize (default: all).
        dust_threshold: objects with at most this number of voxels get no skeleton.
        fill_holes: whether to fill holes in objects first. Objects inside the holes then get no
            skeletons.
        fix_branching: whether to place branch points more accurately, which takes longer.
        voxel_size_nm: voxel size, zyx, in nm (default: that of the chunk).
        teasar: parameters of kimimaro, such as ``scale``, ``const`` and ``pdrf_scale``, with
            lengths in nm. ``None`` selects the defaults of kimimaro.

    Raises:
        ChunkError: the voxels are not labels.
        MissingExtraError: kimimaro is not installed.
    """
    with needs_extra("skeleton", "skeletonize"):
        import kimimaro
        from kimimaro.intake import DEFAULT_TEASAR_PARAMS
    inside = task_box(chunk, box)
    have = inside.grow((0, 0, 0), (1, 1, 1)).intersection(chunk.bbox)
    labels = labels_of(chunk)[have.slices(chunk.voxel_offset)]
    unit = np.array((voxel_size_nm or chunk.voxel_size_nm)[::-1], np.float64)
    skeletons = kimimaro.skeletonize(
        labels.T,  # x, y, z; kimimaro copies it
        teasar_params={
            **DEFAULT_TEASAR_PARAMS,
            **{name: value for name, value in teasar.items() if value is not None},
        },
        anisotropy=tuple(unit),
        object_ids=None if ids is None else [*ids],
        dust_threshold=dust_threshold,
        progress=False,
        fix_branching=fix_branching,
        fix_borders=sum(extent > 1 for extent in labels.shape) > 1,  # fails on a line of voxels
        fill_holes=fill_holes,
        parallel=1,
    )
    shift = np.array(have.start[::-1], np.float64) + 0.5  # voxel centres
    result = {}
    for label in sorted(skeletons):
        one = skeletons[label]
        # Whole voxels of the volume give the same bits in all tasks.
        voxels = np.rint(one.vertices / unit) + shift
        skeleton = Skeleton.of((voxels * unit)[:, ::-1], one.edges, one.radii, one.vertex_types)
        result[int(label)] = skeleton.consolidated()
    return result


def join_skeletons(
    fragments: Sequence[Skeleton], dust_threshold: float = 1000, tick_threshold: float = 3500
) -> Skeleton:
    """Return the skeleton of an object, joined from its fragments.

    Short components are removed, loops are opened, components that are close to each other are
    connected, and short branches are removed.

    Args:
        fragments: skeletons of one object in several tasks. The result depends on the order of the
            fragments.
        dust_threshold: remove components shorter than this, in nm.
        tick_threshold: remove branches shorter than this, in nm.

    Raises:
        MissingExtraError: kimimaro is not installed.
    """
    with needs_extra("skeleton", "aggregate-skeleton-fragments"):
        import kimimaro
        from kimimaro.post import Skeleton as TheirSkeleton
    whole = merged(fragments)
    raw = TheirSkeleton(
        whole.vertices_nm[:, ::-1].copy(),
        whole.edges.copy(),
        radii=whole.radii_nm.copy(),
        vertex_types=whole.types.copy(),
        space="physical",
    )
    done = kimimaro.postprocess(raw, dust_threshold=dust_threshold, tick_threshold=tick_threshold)
    if done.empty():
        return Skeleton.of([], [])
    return Skeleton.of(
        done.vertices[:, ::-1], done.edges, done.radii, done.vertex_types
    ).consolidated()


@dataclass
class Skeletonizer(OperatorBase):
    """Operator that creates the skeletons of the objects in a chunk, and adds them to the task.

    Attributes:
        input_name: name of the chunk of labels.
        output_name: name under which the skeletons are added to the task, as a dictionary from
            object id to skeleton.
        settings: further arguments of `create_skeletons`.
    """

    input_name: str = "chunk"
    output_name: str = "skels"
    settings: dict[str, Any] = field(default_factory=dict)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box*, extended by one voxel at its end along each axis.

        Skeletons of neighbouring tasks meet in this layer of voxels.
        """
        return box.grow((0, 0, 0), (1, 1, 1))

    def __call__(self, task: Task) -> Task:
        """Add the skeletons to the task."""
        chunk = task.chunk(self.input_name)
        task[self.output_name] = create_skeletons(chunk, task.bbox, **self.settings)
        return task


@dataclass
class SkeletonFragments(Skeletonizer):
    """Operator that creates the skeletons of a chunk, and writes one file for each object.

    Attributes:
        url: address of a folder for the files, or of a precomputed volume. The info file of a
            volume names the folder of skeletons.
    """

    url: str = "."
    _known_nm: tuple[float, ...] | None = field(default=None, init=False, repr=False)
    _folder: ObjectFolder | None = field(default=None, init=False, repr=False)
    separates_times: ClassVar[bool] = hook_value(False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: the files below `url`."""
        return (objects_below(self.url),)

    @property
    @hook
    def destination(self) -> str:
        """Address of the folder of skeletons."""
        return f"{self.url.rstrip('/')}/skeletons"

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the voxel size of the settings, or of the pipeline if the settings have none."""
        self._known_nm = self.settings.get("voxel_size_nm") or outline.voxel_size_nm

    @hook
    def create_output(self) -> str | None:
        """Create the folder of skeletons, and write the folder name to the info file of the volume.

        Returns:
            The address of the folder if this call has created the folder, else ``None``.
        """
        folder, is_new = self._open(self._known_nm)
        return folder.url if is_new else None

    def _open(self, size_nm: tuple[float, ...] | None) -> tuple[ObjectFolder, bool]:
        same = [
            k
            for k, scale in enumerate(scales_of(self.url))
            if size_nm is not None and np.allclose(scale, size_nm)
        ]
        folder = fragment_folder(self.url, "skeletons", f"skeletons_mip_{same[0] if same else 0}")
        return folder, folder.describe(INFO)

    def __call__(self, task: Task) -> Task:
        """Make and write the skeletons of a task, and record the files in the task."""
        task = super().__call__(task)
        chunk = task.chunk(self.input_name)
        if self._folder is None:
            size_nm = self.settings.get("voxel_size_nm") or chunk.voxel_size_nm
            self._folder = self._open(size_nm)[0]
        box = xyz(task_box(chunk, task.bbox))
        skeletons: dict[int, Skeleton] = task[self.output_name]
        task.written += self._folder.put(
            (f"{label}:{box}", each.to_precomputed()) for label, each in skeletons.items()
        )
        return task


@dataclass
class SkeletonAggregator(OperatorBase):
    """Operator that joins the skeleton fragments of each object, and writes the skeletons.

    Attributes:
        fragments: address of the folder of fragments, or of a volume whose info file names the
            folder.
        output: address of the folder for the skeletons, or of a volume whose info file names the
            folder (default: *fragments*).
        prefix: process only objects whose ids begin with these digits (default: the prefix of the
            task). A task without a prefix processes all objects.
        input_name: name under which a task contains its prefix.
        digits: number of decimal digits of the prefix that the box of a task encodes; see
            `chunkflow_py.segmentation.labels.prefix` (default: boxes encode no prefix).
        dust_threshold: remove components shorter than this, in nm.
        tick_threshold: remove branches shorter than this, in nm.
        shards: number of shards to write. Each task then writes the shard that its box encodes. A
            task without a box writes all shards (default: write a file for each object).
    """

    fragments: str
    output: str | None = None
    prefix: str | None = None
    input_name: str = "prefix"
    digits: int | None = None
    dust_threshold: float = 1000
    tick_threshold: float = 3500
    shards: int | None = None
    separates_times: ClassVar[bool] = hook_value(False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: the files below `output`, or below `fragments` without `output`."""
        return (objects_below(self.output or self.fragments),)

    @property
    @hook
    def destination(self) -> str:
        """Address of the joined skeletons."""
        return f"{(self.output or self.fragments).rstrip('/')}/skeletons-whole"

    def _prefix(self, task: Task) -> str | None:
        if self.prefix is not None:
            return self.prefix
        if self.input_name in task.items:
            return str(task[self.input_name])
        if self.digits is not None and task.bbox is not None:
            return prefix_of(task.bbox, self.digits)
        return ""

    def __call__(self, task: Task) -> Task:
        """Join the fragments of objects, write the skeletons, and record the files in the task."""
        source = fragment_folder(self.fragments, "skeletons")
        target = (
            source
            if self.output is None
            else fragment_folder(self.output, "skeletons", "skeletons")
        )
        if self.shards is not None:
            return self._write_shards(task, source, target)
        objects = fragments_of(source, self._prefix(task), _PARTS, "skeletonize")
        target.describe(INFO)
        task.written += target.put(
            (str(label), whole.to_precomputed())
            for label, names in objects.items()
            if len(whole := self._joined(source, names))
        )
        logger.info("joined the skeletons of %d objects", len(objects))
        return task

    def _write_shards(self, task: Task, source: ObjectFolder, target: ObjectFolder) -> Task:
        shards = ObjectShards(
            source,
            _PARTS,
            "skeletonize",
            SHARDED_INFO,
            self.shards or 1,
            gzip_data=True,
            beside=target,
        )
        record_folder(self.output or self.fragments, "skeletons", shards.target)
        for shard in range(shards.count) if task.bbox is None else [shards.number_of(task.bbox)]:
            objects = shards.fragments(shard)
            task.written += shards.write(
                shard,
                (
                    ShardEntry(label, whole.to_precomputed(as_floats=True))
                    for label, names in objects.items()
                    if len(whole := self._joined(source, names))
                ),
            )
            logger.info("joined the skeletons of %d objects of shard %d", len(objects), shard)
        return task

    def _joined(self, source: ObjectFolder, names: list[str]) -> Skeleton:
        contents = zip(names, source.get_all(names), strict=True)
        return join_skeletons(
            [Skeleton.from_precomputed(data, f"{source.url}/{name}") for name, data in contents],
            self.dust_threshold,
            self.tick_threshold,
        )
