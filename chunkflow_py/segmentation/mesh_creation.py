"""Create meshes of the objects in a chunk; meshes of neighbouring tasks join exactly.

```
voxels        a   a+1  ...  b-1 |  b       a to b - 1 are voxels of this task, b is the first
                                |          voxel of the next task
cells         |----|----|----|----|        marching cubes makes triangles in cells between the
                                           centres of neighbouring voxels, from a to b
```

Each cell belongs to one task, so no triangle is missing or occurs twice. At the faces of the domain
(the bounds of the volume), a layer of zeros is added, which closes the surfaces.

A surface that ends at a task boundary has an open rim. Simplification does not move rims. The
coordinates of vertices on a rim are multiples of half a voxel. Therefore, vertices that the meshes
of two tasks share are equal to the last bit.

Each surface is simplified by a separate ``zmesh.Mesher``, for the bounding box of its object. The
reason is a defect of zmesh: a `Mesher` counts the open edges of each vertex, and does not reset the
counts between meshes. After a mesh with an open rim, or with an edge that four triangles share, the
next mesh of the same `Mesher` would have too many vertices.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import ChunkError, VolumeError, needs_extra
from chunkflow_py.segmentation.labels.components import labels_of
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder, objects_below, scales_of
from chunkflow_py.segmentation.labels.prefix import xyz
from chunkflow_py.segmentation.mesh_files import Mesh
from chunkflow_py.segmentation.mesh_folder import LEGACY, add_fragment, legacy_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.segmentation.mesh_files import MeshFormat

logger = logging.getLogger(__name__)

ONE = Zyx(1, 1, 1)
KEPT_VOLUME = 0.5  # least share of its volume that a closed surface keeps when simplified
_TRIES = 3  # with 1, 1/8 and 1/64 of the largest error; after that, the surface stays unsimplified
_SNAP = 1e-3  # voxels; float32 arithmetic moves a vertex by less
_UNKNOWN_NM = (1.0, 1.0, 1.0)  # voxel size of chunks from files that do not give one


def task_box(chunk: Chunk, box: BoundingBox | None) -> BoundingBox:
    """Return the part of *box* in the chunk's domain, or the chunk's box if *box* is ``None``.

    The domain of a chunk is the bounds of its volume.

    Raises:
        ChunkError: the chunk does not contain this part.
    """
    if box is None:
        return chunk.bbox
    inside = box.intersection(chunk.domain)
    if chunk.bbox.is_empty:
        return chunk.bbox
    if inside.is_empty or not chunk.bbox.contains(inside):
        msg = (
            f"chunk {chunk.bbox} of the volume {chunk.domain} does not contain the box {box} of "
            "the task; load at least this box"
        )
        raise ChunkError(msg)
    return inside


def lacks_overlap(chunk: Chunk, box: BoundingBox) -> bool:
    """Return whether *chunk* lacks the layer of voxels after *box* along an axis.

    At the end of the volume, there is no such layer, so none is missing.
    """
    return not chunk.bbox.contains(box.grow((0, 0, 0), ONE).intersection(chunk.domain))


def cells_of(chunk: Chunk, box: BoundingBox) -> tuple[NDArray[Any], Zyx]:
    """Return the labels from which a task makes surfaces, with a layer of neighbours or zeros.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x).
        box: box of the task, inside the chunk.

    Returns:
        Labels (z, y, x), and the voxel offset of this array, zyx. The array contains *box* and the
        next layer of voxels after *box* along each axis, if this layer lies in the chunk. A layer
        of zeros is added at each face of *box* that is a face of the volume.
    """
    have = box.grow((0, 0, 0), ONE).intersection(chunk.bbox)
    before = [int(a == d) for a, d in zip(have.start, chunk.domain.start, strict=True)]
    after = [int(b == d) for b, d in zip(box.stop, chunk.domain.stop, strict=True)]
    labels = labels_of(chunk)[have.slices(chunk.voxel_offset)]
    padded = np.pad(labels, list(zip(before, after, strict=True)))
    return padded, have.start - before


def create_meshes(
    chunk: Chunk,
    box: BoundingBox | None = None,
    *,
    voxel_size_nm: tuple[float, float, float] | None = None,
    simplification_factor: int = 100,
    max_simplification_error: float = 40,
    ids: Collection[int] | None = None,
    skip_ids: Collection[int] = (),
    dust_threshold: int = 0,
) -> Iterator[tuple[int, Mesh]]:
    """Yield the id and the marching-cubes mesh of each object, sorted by id.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x); 0 is background. The chunk should extend one voxel
            beyond the end of *box* along each axis, except at the end of the volume.
        box: part of the chunk to mesh (default: the chunk's box).
        voxel_size_nm: voxel size, zyx, in nm (default: that of the chunk).
        simplification_factor: factor by which to reduce the number of triangles; with 1 or less,
            all triangles are kept.
        max_simplification_error: largest distance that the surface may move, in nm. A closed
            surface that would lose more than half of its volume moves less.
        ids: ids of the objects to mesh (default: all).
        skip_ids: ids of objects that get no mesh.
        dust_threshold: objects with fewer voxels in *box* get no mesh.

    Raises:
        ChunkError: the voxels are not labels, or the chunk does not contain *box*.
        MissingExtraError: zmesh is not installed, or *dust_threshold* is above 1 and fastremap is
            not installed.
    """
    inside = task_box(chunk, box)
    if inside.is_empty:
        return
    size_nm = chunk.voxel_size_nm if voxel_size_nm is None else voxel_size_nm
    cells, start = cells_of(chunk, inside)
    unit = np.array(size_nm[::-1], np.float64)
    shift = np.array(start[::-1], np.float64) + 0.5  # zmesh counts from voxel centres
    surfaces = Surfaces(cells.T, unit)
    left_out = {0, *skip_ids}
    if dust_threshold > 1:
        left_out |= _dust(labels_of(chunk)[inside.slices(chunk.voxel_offset)], dust_threshold)
    chosen = surfaces.ids - left_out
    factor = simplification_factor if simplification_factor > 1 else 0
    for label in sorted(chosen if ids is None else chosen.intersection(ids)):
        vertices, faces = surfaces.take(label, factor, max_simplification_error)
        halves = np.round(2 * vertices) / 2
        vertices = np.where(np.abs(vertices - halves) < _SNAP, halves, vertices)
        mesh = Mesh(((vertices + shift) * unit).astype(np.float32), faces)
        if not mesh.is_empty:
            yield label, mesh


def _dust(labels: NDArray[Any], threshold: int) -> set[int]:
    with needs_extra("segmentation", "mesh --dust-threshold"):
        import fastremap
    values, counts = fastremap.unique(labels, return_counts=True)
    return {int(label) for label in values[counts < threshold]}


class Surface(NamedTuple):
    """A surface of triangles, with coordinates in voxels.

    Attributes:
        vertices: (n, 3) float64, xyz, in voxels from the centre of the first voxel.
        faces: (m, 3), indices of the vertices of each triangle.
    """

    vertices: NDArray[np.float64]
    faces: NDArray[Any]

    @property
    def volume(self) -> float:
        """Volume that the surface encloses, in voxels; only correct for a closed surface."""
        if not len(self.faces):
            return 0.0
        x, y, z = (self.vertices - self.vertices[0])[self.faces].T  # each (corner, triangle)
        cross = y[1] * z[2] - y[2] * z[1], z[1] * x[2] - z[2] * x[1], x[1] * y[2] - x[2] * y[1]
        return abs(float((x[0] * cross[0] + y[0] * cross[1] + z[0] * cross[2]).sum())) / 6


class Surfaces:
    """Creates the surface of each object in an array of labels.

    Args:
        labels: (x, y, z), unsigned integers.
        unit: voxel size, xyz, in nm.

    Attributes:
        ids: labels of the objects.

    Raises:
        MissingExtraError: zmesh is not installed.
    """

    def __init__(self, labels: NDArray[Any], unit: NDArray[np.float64]) -> None:
        self._labels, self._unit = labels, unit
        self._mesher = self._meshed(labels)
        self.ids = {int(label) for label in self._mesher.ids()}
        faces = [np.take(labels, end, axis) for axis in range(3) for end in (0, -1)]
        self._open = {int(label) for face in faces for label in np.unique(face)}

    def take(self, label: int, factor: int, max_error: float) -> Surface:
        """Return the simplified surface of an object; can be called once for each object.

        Afterwards, the memory of the object is freed. A closed surface that would lose more than
        half of its volume is simplified less, so that the smallest objects do not become flat.

        Args:
            label: label of the object.
            factor: factor by which to reduce the number of triangles; 0 means no reduction.
            max_error: largest distance that the surface may move, in nm.
        """
        whole = self._get(self._mesher, label)
        self._mesher.erase(label)
        if not factor or not len(whole.faces):
            return whole
        start = np.floor(whole.vertices.min(axis=0)).astype(int).clip(0)
        stop = np.ceil(whole.vertices.max(axis=0)).astype(int) + 1
        part = np.asfortranarray(self._labels[tuple(map(slice, start, stop))] == label)
        kept = 0.0 if label in self._open else KEPT_VOLUME * whole.volume
        for attempt in range(_TRIES):
            mesher = self._meshed(part.view(np.uint8))
            surface = self._get(mesher, 1, factor, max_error / 8**attempt)
            if surface.volume >= kept:
                return surface._replace(vertices=surface.vertices + start)
        return whole

    def _meshed(self, labels: NDArray[Any]) -> Any:
        with needs_extra("mesh", "mesh"):
            from zmesh import Mesher
        mesher = Mesher(self._unit)
        mesher.mesh(labels)
        return mesher

    def _get(self, mesher: Any, label: int, factor: int = 0, max_error: float = 0) -> Surface:
        mesh = mesher.get(label, reduction_factor=factor, max_error=max_error)
        return Surface(mesh.vertices.astype(np.float64) / self._unit, mesh.faces)


@dataclass
class MeshSaver(OperatorBase):
    """Operator that writes a mesh file for each object of a chunk.

    Attributes:
        url: address of a folder for the files, or of a precomputed volume. The info file of a
            volume names the folder of meshes.
        input_name: name of the chunk of labels.
        format: file format.
        voxel_size_nm: voxel size, zyx, in nm (default: that of the chunk).
        mip: resolution level, in the volume at *url*, from which the chunk was loaded. The level
            and the chunk must have the same voxel size.
        default_mip: value of the global option --mip, which is used if *mip* is ``None``.
        manifest: whether to add each fragment (mesh file of an object in one task) to the manifest
            of its object when the fragment is written.
        settings: further arguments of `create_meshes`.
    """

    url: str
    input_name: str = "chunk"
    format: MeshFormat = "precomputed"
    voxel_size_nm: tuple[float, float, float] | None = None
    mip: int | None = None
    default_mip: int = 0
    manifest: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    _known_nm: tuple[float, float, float] | None = field(default=None, init=False, repr=False)
    _folder: ObjectFolder | None = field(default=None, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)
    separates_times: ClassVar[bool] = hook_value(False)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the description of the output: the files below `url`."""
        return (objects_below(self.url),)

    @property
    @hook
    def destination(self) -> str:
        """Address of the folder of meshes."""
        return f"{self.url.rstrip('/')}/mesh"

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box*, extended by one voxel at its end along each axis.

        Surfaces of neighbouring tasks meet in this layer of voxels.
        """
        return box.grow((0, 0, 0), (1, 1, 1))

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the voxel size from *outline*, the `Outline` of the pipeline."""
        self._known_nm = outline.voxel_size_nm

    @hook
    def create_output(self) -> str | None:
        """Create the folder of meshes, and write the folder name to the info file of the volume.

        Returns:
            The address of the folder if this call has created the folder, else ``None``.
        """
        if self.format != "precomputed":
            return None
        folder, is_new = self._open(self._known_nm or _UNKNOWN_NM)
        return folder.url if is_new else None

    def __call__(self, task: Task) -> Task:
        """Write the meshes of a task, and record the files.

        Raises:
            ChunkError: the voxels are not labels, or the chunk and the volume have different voxel
                sizes.
            VolumeError: a file cannot be written.
        """
        chunk = task.chunk(self.input_name)
        box = task_box(chunk, task.bbox)
        if not self._warned and lacks_overlap(chunk, box):
            self._warned = True
            logger.warning(
                "chunk %s does not extend beyond the task's box, so surfaces have a gap of one "
                "voxel between tasks; give the loader --expand-margin-size auto",
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
        for label, mesh in create_meshes(chunk, box, voxel_size_nm=size_nm, **self.settings):
            names[label] = self._name(label, box, is_whole=box == chunk.domain)
            yield names[label], mesh.encoded(self.format)

    def _name(self, label: int, box: BoundingBox, *, is_whole: bool) -> str:
        if self.format == "precomputed":
            return fragment_name(label, box)
        # An object that lies in one task needs no box in its file name.
        return f"{label}.{self.format}" if is_whole else f"{label}_{box}.{self.format}"

    def _voxel_size(self, chunk_nm: tuple[float, float, float]) -> tuple[float, float, float]:
        # From the option, else the chunk, else the volume.
        if self.voxel_size_nm is not None:
            return self.voxel_size_nm
        is_unknown = chunk_nm == _UNKNOWN_NM
        if self.format != "precomputed" or (self.mip is None and not is_unknown):
            return chunk_nm
        scales = scales_of(self.url)
        if not scales:
            return chunk_nm
        mip = self.default_mip if self.mip is None else self.mip
        if mip >= len(scales):
            levels = ", ".join(map(str, range(len(scales))))
            msg = f"{self.url} has no mip {mip}; its mips are {levels}; change --mip"
            raise VolumeError(msg)
        if not is_unknown and not _same(chunk_nm, scales[mip]):
            msg = (
                f"the chunk has voxels of {chunk_nm} nm (zyx), but mip {mip} of {self.url} has "
                f"voxels of {scales[mip]} nm; change --mip, or give the right --voxel-size"
            )
            raise ChunkError(msg)
        return scales[mip]

    def _open(self, known_nm: tuple[float, float, float]) -> tuple[ObjectFolder, bool]:
        if self.format != "precomputed":
            return ObjectFolder(self.url), False
        size_nm = self._voxel_size(known_nm)
        mip = self.default_mip if self.mip is None else self.mip
        same = [k for k, scale in enumerate(scales_of(self.url)) if _same(scale, size_nm)]
        error_nm = self.settings.get("max_simplification_error", 0)
        name = f"mesh_mip_{same[0] if same else mip}_err_{error_nm:g}"
        folder = legacy_folder(self.url, name)
        return folder, folder.describe(LEGACY)


def fragment_name(label: int, box: BoundingBox) -> str:
    """Return the file name of the mesh fragment of an object in a box, in the style of igneous."""
    return f"{label}:0:{xyz(box)}"


def _same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))
