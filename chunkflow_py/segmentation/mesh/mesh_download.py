"""Saves the meshes of some objects, whatever format they are stored in."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.outputs import Output
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.segmentation.labels.object_folder import folder_of, named_after
from chunkflow_py.segmentation.mesh.mesh import labels_of
from chunkflow_py.segmentation.mesh.mesh_format import Mesh, welded
from chunkflow_py.segmentation.mesh.mesh_manifest import LEGACY, legacy_folder, read_mesh

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)


@dataclass
class MeshDownload(OperatorBase):
    """Writes a file for each of some objects.

    Attributes:
        url: of a store: of the precomputed volume, or of the folder of its meshes.
        wanted: ids, a file of ids, or the name of a chunk.
        ranks: which of them, counted from 0.
        prefix: of the names of the files; a path or URL.
        format: of the files.
    """

    url: str
    wanted: str
    ranks: slice = field(default_factory=lambda: slice(0, None))
    prefix: str = "./"
    format: Literal["ply", "obj"] = "ply"

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return how the names of the files begin."""
        folder, start = named_after(self.prefix)
        return (Output("objects", f"{folder.url.rstrip('/')}/{start}"),)

    @property
    @hook
    def destination(self) -> str:
        """The files."""
        folder, start = named_after(self.prefix)
        return f"{folder.url.rstrip('/')}/{start}ID.{self.format}"

    @cached_property
    def reader(self) -> MeshReader:
        """What reads the meshes."""
        return MeshReader(self.url)

    def __call__(self, task: Task) -> Task:
        """Save the meshes, and remember what was stored.

        Raises:
            OptionError: there are no ids.
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
    """Reads meshes of a volume: fragments here, other formats by cloud-volume.

    Args:
        url: of a store: of the precomputed volume, or of the folder of its meshes.
    """

    def __init__(self, url: str) -> None:
        """Remember the address; it is looked at when the first mesh is read."""
        self.url = url

    @cached_property
    def _has_fragments(self) -> bool:
        """Whether lists of fragments may lie where the volume, or the folder, has its meshes."""
        info = folder_of(self.url, "mesh").read_json("info") or {}
        return bool(info.get("@type", LEGACY["@type"]) == LEGACY["@type"])

    def read(self, label: int) -> Mesh:
        """Return the mesh of an object.

        Raises:
            VolumeNotFoundError: there is none.
            VolumeError: it cannot be read.
        """
        try:
            return read_mesh(legacy_folder(self.url), label)
        except VolumeNotFoundError:
            if self._has_fragments:
                raise
        return self._by_cloud_volume(label)

    @cached_property
    def _source(self) -> Any:
        with needs_extra("precomputed", "download-mesh of several levels of detail"):
            from cloudvolume import CloudVolume
        return CloudVolume(self.url, progress=False).mesh

    def _by_cloud_volume(self, label: int) -> Mesh:
        try:
            found = self._source.get(label)
        except (OSError, ValueError, LookupError) as error:
            msg = f"cannot read the mesh of object {label} of {self.url}: {error}; check the id"
            raise VolumeError(msg) from error
        mesh = found.get(label) if isinstance(found, dict) else found
        if mesh is None:
            msg = f"{self.url} has no mesh of object {label}; check the id"
            raise VolumeNotFoundError(msg)
        return welded([Mesh(np.asarray(mesh.vertices, np.float32), np.asarray(mesh.faces))])


def ids_by_size(chunk: Chunk) -> list[int]:
    """Return the labels of a chunk without 0, those of most voxels first, then by their number."""
    found, counts = np.unique(labels_of(chunk), return_counts=True)
    order = np.lexsort((found, -counts))
    return [int(label) for label in found[order] if label]


def ids_in(text: str) -> list[int]:
    """Return ids, of which there are several with commas between, in a text or a file of it.

    Raises:
        OptionError: it is neither.
    """
    path = Path(text).expanduser()
    words = (path.read_text("utf-8") if path.is_file() else text).replace(",", " ").split()
    if not words or not all(is_digits(word) for word in words):
        msg = (
            f"{text!r} holds no ids such as 34,25,38, is no file of such, and no operator before "
            "has made a chunk of this name; check --input"
        )
        raise OptionError(msg)
    return [int(word) for word in words]
