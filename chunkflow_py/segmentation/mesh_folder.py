"""Folders of meshes: write the manifests of objects; read and download meshes.

The manifest of object 7 is the file ``7:0``. It lists the fragments of the object:
``{"fragments": ["7:0:0-64_0-64_0-64", ...]}``. Format: Neuroglancer,
``datasource/precomputed/meshes.md``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.operator_base import HOOK, OperatorBase, SourceBase, hook, hook_value
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.core.task import Output, Task
from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.segmentation.labels.components import labels_of
from chunkflow_py.segmentation.labels.object_folder import (
    MULTIRES,
    ObjectFolder,
    as_json,
    folder_of,
    fragment_folder,
    named_after,
    objects_below,
    record_folder,
)
from chunkflow_py.segmentation.labels.object_shards import ObjectShards, ShardEntry, shard_plan
from chunkflow_py.segmentation.labels.prefix import fragments_of, prefix_of, prefix_plan
from chunkflow_py.segmentation.mesh_files import MULTIRES_INFO, Mesh, multires, welded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.geometry import BoundingBox, BoxGrid
    from chunkflow_py.tasks.task_plan import GridPlan

logger = logging.getLogger(__name__)

LEGACY = {"@type": "neuroglancer_legacy_mesh"}
_PARTS = 3  # id, level of detail, box


def legacy_folder(url: str, default: str | None = None) -> ObjectFolder:
    """Return the folder of mesh fragments at *url*; see `folder_of`.

    Args:
        url: address of a precomputed volume, whose info file names the folder, or of the folder.
        default: name of the folder if the info file of the volume names none.
    """
    return fragment_folder(url, "mesh", default)


def add_fragment(name: str, manifest: dict[str, Any] | None) -> dict[str, Any]:
    """Return a manifest with the fragment *name* added; fragment names are sorted and unique."""
    return {"fragments": sorted({*(manifest or {}).get("fragments", ()), name})}


def read_mesh(folder: ObjectFolder, label: int) -> Mesh:
    """Return the mesh of an object, joined from its fragments.

    Raises:
        VolumeNotFoundError: the object has no manifest.
        VolumeError: a file of the mesh is missing or damaged.
    """
    manifest = folder.read_json(f"{label}:0")
    if manifest is None:
        msg = f"{folder.url} has no mesh of object {label}; check the id, or run mesh-manifest"
        raise VolumeNotFoundError(msg)
    names = manifest.get("fragments", [])
    if not all(isinstance(name, str) for name in names):
        msg = f"{folder.url}/{label}:0 does not list names of fragments; run mesh-manifest again"
        raise VolumeError(msg)
    return welded(read_fragments(folder, names))


def read_fragments(folder: ObjectFolder, names: Sequence[str]) -> list[Mesh]:
    """Read mesh fragments, and return them in the order of their file names in *names*."""
    contents = zip(names, folder.get_all(names), strict=True)
    return [Mesh.decoded(data, f"{folder.url}/{name}") for name, data in contents]


@dataclass
class ManifestTasks(SourceBase):
    """Source that generates one task for each prefix of object ids, or for each shard.

    Attributes:
        work: operator that writes the manifests or the shard of a task.
        number: number of the only prefix or shard for which to generate a task (default: all).
    """

    work: ManifestWriter = field(metadata=HOOK)
    number: int | None = None

    @cached_property
    @hook
    def plan(self) -> GridPlan:
        """Plan with one task for each prefix or shard."""
        if self.work.shards is not None:
            return shard_plan(self.work.shards, self.number)
        return prefix_plan(self.work.digits, self.number)

    @property
    @hook
    def boxes(self) -> BoxGrid:
        """Boxes of the tasks, one for each prefix or shard."""
        return self.plan.boxes

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.plan)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks in the order of prefixes or shards."""
        return (Task(self.plan.region(number)) for number in self.plan)


@dataclass
class ManifestWriter(OperatorBase):
    """Writes the manifests of the objects whose ids share a prefix, or the meshes of a shard.

    Attributes:
        url: address of the volume, or of the folder of its fragments.
        digits: number of decimal digits of the prefix.
        multires: whether to write multi-resolution meshes instead of manifests. The meshes are
            written to a new folder.
        shards: number of shards. Each task then writes one shard of multi-resolution meshes
            (default: write no shards).
    """

    url: str
    digits: int = 1
    multires: bool = False
    shards: int | None = None
    separates_times: ClassVar[bool] = hook_value(False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: the files below `url`."""
        return (objects_below(self.url),)

    @property
    @hook
    def destination(self) -> str:
        """Address at `url`, with the suffix ``/mesh-manifest``."""
        return f"{self.url.rstrip('/')}/mesh-manifest"

    @cached_property
    def _folder(self) -> ObjectFolder:
        return legacy_folder(self.url)

    @cached_property
    def _target(self) -> ObjectFolder:
        target = ObjectFolder(self._folder.url + MULTIRES)
        target.describe(MULTIRES_INFO)
        record_folder(self.url, "mesh", target)
        return target

    @cached_property
    def _shards(self) -> ObjectShards:
        # The data of a cell lie in the shard, and viewers read ranges of them: no gzip.
        shards = ObjectShards(
            self._folder, _PARTS, "mesh", MULTIRES_INFO, self.shards or 1, gzip_data=False
        )
        record_folder(self.url, "mesh", shards.target)
        return shards

    def __call__(self, task: Task) -> Task:
        """Write the manifests or multi-resolution meshes of all objects of the task.

        Raises:
            OptionError: the task has no box, and therefore no prefix and no shard.
            VolumeError: the volume does not name a folder of meshes, the folder has no fragment,
                or a file cannot be read or written.
        """
        if task.bbox is None:
            msg = "the task has no prefix of object ids; start the pipeline with mesh-manifest"
            raise OptionError(msg)
        if self.shards is not None:
            return self._write_shard(task, task.bbox)
        prefix = prefix_of(task.bbox, self.digits)
        objects = fragments_of(self._folder, prefix, _PARTS, "mesh")
        if self.multires:
            target = self._target
            for label, fragments in objects.items():
                task.written += self._write_multires(target, label, fragments)
        else:
            task.written += self._folder.put(
                ((f"{k}:0", as_json({"fragments": each})) for k, each in objects.items()),
                compress=False,
                content_type="application/json",
            )
        logger.info("wrote the manifests of %d objects of prefix %s", len(objects), prefix or 0)
        return task

    def _write_shard(self, task: Task, box: BoundingBox) -> Task:
        shard = self._shards.number_of(box)
        objects = self._shards.fragments(shard)
        task.written += self._shards.write(
            shard,
            (
                ShardEntry(label, manifest, data)
                for label, names in objects.items()
                for manifest, data in self._multires(names)
            ),
        )
        logger.info("wrote the meshes of %d objects to shard %d", len(objects), shard)
        return task

    def _write_multires(self, target: ObjectFolder, label: int, names: list[str]) -> list[Any]:
        written: list[Any] = []
        for manifest, data in self._multires(names):
            # Viewers read ranges of the data, so it must not be gzipped.
            written += target.put(
                [(f"{label}", data), (f"{label}.index", manifest)], compress=False
            )
        return written

    def _multires(self, names: list[str]) -> Iterator[tuple[bytes, bytes]]:
        mesh = welded(read_fragments(self._folder, names))
        if not mesh.is_empty:
            yield multires(mesh)


@dataclass
class MeshDownload(OperatorBase):
    """Operator that reads the mesh of each chosen object, and writes it to a separate file.

    Attributes:
        url: address of the precomputed volume, or of the folder of its meshes.
        wanted: ids of the objects as text, the path of a file of ids, or the name of a chunk whose
            labels are the ids.
        ranks: slice of the list of ids, to choose only a part. The ids of a chunk are sorted by the
            size of their objects, the largest first.
        prefix: start of the path or URL of each file; the object id follows.
        format: file format.
    """

    url: str
    wanted: str
    ranks: slice = field(default_factory=lambda: slice(0, None))
    prefix: str = "./"
    format: Literal["ply", "obj"] = "ply"
    separates_times: ClassVar[bool] = hook_value(False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: the files whose names start with `prefix`."""
        folder, start = named_after(self.prefix)
        return (Output("objects", f"{folder.url.rstrip('/')}/{start}"),)

    @property
    @hook
    def destination(self) -> str:
        """Address of the mesh files, with the letters ID in place of the object id."""
        folder, start = named_after(self.prefix)
        return f"{folder.url.rstrip('/')}/{start}ID.{self.format}"

    @cached_property
    def reader(self) -> MeshReader:
        """Reader of the meshes at `url`, created once for all tasks."""
        return MeshReader(self.url)

    def __call__(self, task: Task) -> Task:
        """Write the meshes of the chosen objects, and record the files in the task.

        Raises:
            OptionError: `wanted` is neither a list of ids, nor the path of a file of ids, nor the
                name of a chunk.
            VolumeNotFoundError: an object has no mesh.
        """
        item = task.items.get(self.wanted)
        ids = ids_by_size(item) if isinstance(item, Chunk) else ids_in(self.wanted)
        folder, start = named_after(self.prefix)
        files = (
            (f"{start}{label}.{self.format}", self.reader.read(label).encoded(self.format))
            for label in ids[self.ranks]
        )
        written = folder.put(files, compress=False)
        task.written += written
        logger.info("wrote the meshes of %d objects to %s", len(written), folder.url)
        return task


class MeshReader:
    """Reads meshes of a volume: legacy fragments directly, all other formats with cloud-volume.

    Args:
        url: address of the precomputed volume, or of the folder of its meshes. The address is not
            accessed before the first mesh is read.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _has_fragments(self) -> bool:
        info = folder_of(self.url, "mesh").read_json("info") or {}
        return bool(info.get("@type", LEGACY["@type"]) == LEGACY["@type"])

    def read(self, label: int) -> Mesh:
        """Return the mesh of an object.

        Raises:
            VolumeNotFoundError: the object has no mesh.
            VolumeError: the mesh cannot be read.
        """
        try:
            return read_mesh(legacy_folder(self.url), label)
        except VolumeNotFoundError:
            if self._has_fragments:
                raise
        return self._by_cloud_volume(label)

    @cached_property
    def _source(self) -> Any:
        with needs_extra("precomputed", "download-mesh of multi-resolution meshes"):
            from cloudvolume import CloudVolume
        return CloudVolume(self.url, progress=False).mesh

    def _by_cloud_volume(self, label: int) -> Mesh:
        try:
            result = self._source.get(label)
        except (OSError, ValueError, LookupError) as error:
            msg = f"cannot read the mesh of object {label} of {self.url}: {error}; check the id"
            raise VolumeError(msg) from error
        mesh = result.get(label) if isinstance(result, dict) else result
        if mesh is None:
            msg = f"{self.url} has no mesh of object {label}; check the id"
            raise VolumeNotFoundError(msg)
        return welded([Mesh(np.asarray(mesh.vertices, np.float32), np.asarray(mesh.faces))])


def ids_by_size(chunk: Chunk) -> list[int]:
    """Return the labels of a chunk except 0, sorted by decreasing size, then by label."""
    labels, counts = np.unique(labels_of(chunk), return_counts=True)
    order = np.lexsort((labels, -counts))
    return [int(label) for label in labels[order] if label]


def ids_in(text: str) -> list[int]:
    """Parse ids, separated by commas or spaces, from *text* or from the file that *text* names.

    Raises:
        OptionError: *text* is neither a list of ids nor the path of a file of ids.
    """
    path = Path(text).expanduser()
    numbers = (path.read_text("utf-8") if path.is_file() else text).replace(",", " ").split()
    if not numbers or not all(is_digits(number) for number in numbers):
        msg = (
            f"--input {text!r} is neither a list of ids, nor a file of ids, nor the name of a "
            "chunk that an earlier operator has made; write ids as 34,25,38"
        )
        raise OptionError(msg)
    return [int(number) for number in numbers]
