"""Lists of the fragments of each object, which Neuroglancer reads to find its mesh.

Format: Neuroglancer, ``datasource/precomputed/meshes.md``: file ``7:0`` of object 7 is
``{"fragments": ["7:0:0-64_0-64_0-64", ...]}``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import HOOK, OperatorBase, SourceBase, hook
from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.labels.object_folder import (
    ObjectFolder,
    as_json,
    folder_of,
    objects_below,
)
from chunkflow_py.segmentation.labels.prefix import fragments_of, prefix_of, prefix_plan
from chunkflow_py.segmentation.mesh.mesh_format import Mesh, welded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.geometry import BoxGrid
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.tasks.task_plan import GridPlan

logger = logging.getLogger(__name__)

LEGACY = {"@type": "neuroglancer_legacy_mesh"}
MULTIRES = "_multires"  # what the folder of multi-resolution meshes has after its name
_PARTS = 3  # id, level of detail, box


def legacy_folder(url: str, default: str | None = None) -> ObjectFolder:
    """Return the folder of the fragments of a volume, or the folder *url* itself.

    Args:
        url: of a store.
        default: see `folder_of`.
    """
    folder = folder_of(url, "mesh", default)
    return ObjectFolder(folder.url.removesuffix(MULTIRES))


def add_fragment(name: str, manifest: dict[str, Any] | None) -> dict[str, Any]:
    """Return the manifest with one fragment more, in order, each once."""
    return {"fragments": sorted({*(manifest or {}).get("fragments", ()), name})}


def read_mesh(folder: ObjectFolder, label: int) -> Mesh:
    """Return the mesh of an object: its fragments, with the vertices where they meet made one.

    Raises:
        VolumeNotFoundError: there is no manifest of it.
        VolumeError: a file is missing or damaged.
    """
    manifest = folder.read_json(f"{label}:0")
    if manifest is None:
        msg = f"{folder.url} has no mesh of object {label}; check the id, or run mesh-manifest"
        raise VolumeNotFoundError(msg)
    names = manifest.get("fragments", [])
    if not all(isinstance(name, str) for name in names):
        msg = f"{folder.url}/{label}:0 lists no names of fragments; run mesh-manifest again"
        raise VolumeError(msg)
    return welded(read_fragments(folder, names))


def read_fragments(folder: ObjectFolder, names: Sequence[str]) -> list[Mesh]:
    """Return the meshes in some fragments."""
    contents = zip(names, folder.get_all(names), strict=True)
    return [Mesh.decoded(data, f"{folder.url}/{name}") for name, data in contents]


@dataclass
class ManifestTasks(SourceBase):
    """The tasks of a volume's manifests; each is done by `work`.

    Attributes:
        work: what is done with a task.
        number: of the only prefix to work on (default: all).
    """

    work: ManifestWriter = field(metadata=HOOK)
    number: int | None = None

    @cached_property
    @hook
    def plan(self) -> GridPlan:
        """A task for each prefix of ids."""
        return prefix_plan(self.work.digits, self.number)

    @property
    @hook
    def boxes(self) -> BoxGrid:
        """One box a prefix."""
        return self.plan.boxes

    def __len__(self) -> int:
        """Return the number of prefixes."""
        return len(self.plan)

    def __iter__(self) -> Iterator[Task]:
        """Yield a task for each prefix."""
        return (Task(self.plan.region(number)) for number in self.plan)


@dataclass
class ManifestWriter(OperatorBase):
    """Writes the manifests of the objects whose ids begin alike.

    Attributes:
        url: of the volume, or of the folder of its fragments.
        digits: how many digits tell the tasks apart.
        multires: write meshes of several levels of detail, into a folder of their own.
    """

    url: str
    digits: int = 1
    multires: bool = False

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the folder of the files, or of the volume that has one."""
        return (objects_below(self.url),)

    @property
    @hook
    def destination(self) -> str:
        """The manifests."""
        return f"{self.url.rstrip('/')}/mesh-manifest"

    @cached_property
    def _folder(self) -> ObjectFolder:
        return legacy_folder(self.url)

    @cached_property
    def _target(self) -> ObjectFolder:
        """The folder of the multi-resolution meshes, named by the volume from now on."""
        from chunkflow_py.segmentation.mesh.mesh_multires import INFO

        target = ObjectFolder(self._folder.url + MULTIRES)
        target.describe(INFO)
        place = ObjectFolder(self.url)
        if "scales" in (place.read_json("info") or {}):
            name = target.url.removeprefix(f"{place.url.rstrip('/')}/")
            place.update("info", lambda old: {**(old or {}), "mesh": name})
        return target

    def __call__(self, task: Task) -> Task:
        """Write what belongs to the prefix of a task.

        Raises:
            OptionError: the task is no prefix.
            VolumeError: the volume names no folder of meshes, there is not one fragment, or a file
                cannot be read or written.
        """
        if task.bbox is None:
            msg = "a task without a box says no prefix; begin the line with mesh-manifest"
            raise OptionError(msg)
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

    def _write_multires(self, target: ObjectFolder, label: int, names: list[str]) -> list[Any]:
        from chunkflow_py.segmentation.mesh.mesh_multires import multires

        mesh = welded(read_fragments(self._folder, names))
        if mesh.is_empty:
            return []
        manifest, data = multires(mesh)
        # Parts of the data are read by their place in it, so that it cannot be gzipped.
        return target.put([(f"{label}", data), (f"{label}.index", manifest)], compress=False)
