"""Writes the surfaces of the objects of every task to files."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder, objects_below, scales_of
from chunkflow_py.segmentation.labels.prefix import xyz
from chunkflow_py.segmentation.mesh.mesh import create_meshes, lacks_overlap, task_box
from chunkflow_py.segmentation.mesh.mesh_manifest import LEGACY, add_fragment, legacy_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.mesh.mesh_format import MeshFormat

logger = logging.getLogger(__name__)

_UNKNOWN_NM = (1.0, 1.0, 1.0)  # of chunks from files that say no voxel size


@dataclass
class MeshSaver(OperatorBase):
    """Makes the meshes of the objects of a chunk, and writes a file for each.

    Attributes:
        url: of a store: of the folder of the files, or of a precomputed volume that has one.
        input_name: of the chunk of labels.
        format: of the files.
        voxel_size_nm: instead of the chunk's, zyx.
        mip: level of the volume at *url* whose voxels the chunk has, if it was said.
        line_mip: that of the whole line.
        manifest: add the fragments to the lists of their objects at once.
        settings: further arguments of `create_meshes`.
    """

    url: str
    input_name: str = "chunk"
    format: MeshFormat = "precomputed"
    voxel_size_nm: tuple[float, float, float] | None = None
    mip: int | None = None
    line_mip: int = 0
    manifest: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    _known_nm: tuple[float, float, float] | None = field(default=None, init=False, repr=False)
    _folder: ObjectFolder | None = field(default=None, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the folder of the files, or of the volume that has one."""
        return (objects_below(self.url),)

    @property
    @hook
    def destination(self) -> str:
        """The folder, or the meshes of the volume."""
        return f"{self.url.rstrip('/')}/mesh"

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* and one voxel after it, where the surface goes on in the next task."""
        return box.grow((0, 0, 0), (1, 1, 1))

    @hook
    def prepare(self, outline: Any) -> None:
        """Take the voxel size from the line (an `Outline`)."""
        self._known_nm = outline.voxel_size_nm

    @hook
    def create_output(self) -> str | None:
        """Name the folder in the info file of the volume; return it if it is new."""
        if self.format != "precomputed":
            return None
        folder, is_new = self._open(self._known_nm or _UNKNOWN_NM)
        return folder.url if is_new else None

    def __call__(self, task: Task) -> Task:
        """Write the meshes of a task, and remember what was stored.

        Raises:
            ChunkError: the chunk holds no labels, or its voxels have another size than said.
            VolumeError: a file cannot be written.
        """
        chunk = task.chunk(self.input_name)
        box = task_box(chunk, task.bbox)
        if not self._warned and lacks_overlap(chunk, box):
            self._warned = True
            logger.warning(
                "chunk %s ends with its task, so that surfaces have a gap of one voxel to the "
                "next one; give the loader --expand-margin-size auto",
                chunk.bbox,
            )
        size_nm = self._voxel_size(chunk.voxel_size_nm)
        folder = self._folder or self._open(size_nm)[0]
        self._folder = folder
        names: dict[int, str] = {}
        task.written += folder.put(
            self._files(chunk, box, size_nm, names), compress=self.format == "precomputed"
        )
        if self.manifest:
            folder.update_all(
                {f"{label}:0": partial(add_fragment, n) for label, n in names.items()}
            )
        logger.info("wrote the meshes of %d objects to %s", len(names), folder.url)
        return task

    def _files(
        self,
        chunk: Chunk,
        box: BoundingBox,
        size_nm: tuple[float, float, float],
        names: dict[int, str],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file; put the names into *names* by their objects."""
        for label, mesh in create_meshes(chunk, box, voxel_size_nm=size_nm, **self.settings):
            names[label] = self._name(label, box, is_whole=box == chunk.domain)
            yield names[label], mesh.encoded(self.format)

    def _name(self, label: int, box: BoundingBox, *, is_whole: bool) -> str:
        if self.format == "precomputed":
            return fragment_name(label, box)
        # what no other task has a part of needs no box to tell it from
        return f"{label}.{self.format}" if is_whole else f"{label}_{box}.{self.format}"

    def _voxel_size(self, chunk_nm: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return that of the option, else of the chunk, else of the volume.

        Raises:
            ChunkError: chunk and volume disagree.
            VolumeError: the volume has no such level.
        """
        if self.voxel_size_nm is not None:
            return self.voxel_size_nm
        is_unknown = chunk_nm == _UNKNOWN_NM
        if self.format != "precomputed" or (self.mip is None and not is_unknown):
            return chunk_nm
        scales = scales_of(self.url)
        if not scales:
            return chunk_nm
        mip = self.line_mip if self.mip is None else self.mip
        if mip >= len(scales):
            msg = f"{self.url} has no mip {mip}; it has {', '.join(map(str, range(len(scales))))}"
            raise VolumeError(msg)
        if not is_unknown and not _same(chunk_nm, scales[mip]):
            msg = (
                f"the chunk has voxels of {chunk_nm} nm (zyx), but mip {mip} of {self.url} of "
                f"{scales[mip]} nm; change --mip, or give the right --voxel-size"
            )
            raise ChunkError(msg)
        return scales[mip]

    def _open(self, known_nm: tuple[float, float, float]) -> tuple[ObjectFolder, bool]:
        """Return the folder of the meshes, and whether this call has made it."""
        if self.format != "precomputed":
            return ObjectFolder(self.url), False
        size_nm = self._voxel_size(known_nm)
        mip = self.line_mip if self.mip is None else self.mip
        same = [k for k, scale in enumerate(scales_of(self.url)) if _same(scale, size_nm)]
        error_nm = self.settings.get("max_simplification_error", 0)
        name = f"mesh_mip_{same[0] if same else mip}_err_{error_nm:g}"
        folder = legacy_folder(self.url, name)
        return folder, folder.describe(LEGACY)


def fragment_name(label: int, box: BoundingBox) -> str:
    """Return the name of the fragment of an object in a task, as igneous gives it: xyz, voxels."""
    return f"{label}:0:{xyz(box)}"


def _same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))
