"""Links between fragments of neighbouring tasks: pairs joined by a chosen edge.

The box of a task has three lower faces, at its start along z, y and x. For each of these faces, the
task stores which edges through the face are chosen, one bit for each edge. When all tasks have
stored their fragments, the two labels at the ends of each chosen edge are linked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import GeometryError, VolumeError
from chunkflow_py.segmentation.labels.components import single_channel
from chunkflow_py.segmentation.labels.links import decoded, distinct, encoded, lower_slab
from chunkflow_py.store import open_store
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location, level_name
from chunkflow_py.volume.protocol import VolumeOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox, Region
    from chunkflow_py.segmentation.agglomeration.edge_fragments import ChosenEdges
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume


def save_face_edges(store: Store, region: Region, chosen: ChosenEdges) -> None:
    """Store which edges through the three faces at the start of a task's box are chosen.

    Args:
        store: store of the edges.
        region: box of the task, and its time point.
        chosen: chosen edges of the voxels in the box of the task.
    """
    faces = {f"face_{axis}": np.packbits(chosen.joins[axis].take(0, axis)) for axis in range(3)}
    store.put(_key(region), encoded(**faces))


def _key(region: Region) -> str:
    return f"{region}.npz"


@dataclass
class EdgeLinker:
    """Links two fragments of neighbouring tasks if a chosen edge joins the fragments.

    Attributes:
        url: address of the volume of fragments.
        edges_url: address of the chosen edges through the lower faces of tasks.
        mip: resolution level of the fragments in the volume.
        opening: options for opening the volume and the store.
    """

    url: str
    edges_url: str
    mip: int = 0
    opening: VolumeOptions = field(default_factory=VolumeOptions)

    @property
    def places(self) -> tuple[str, ...]:
        """Normalised addresses of the fragments and of the edges; the linker reads both."""
        return (level_name(Location.parse(self.url), self.mip), self._edges_place)

    @property
    def about(self) -> dict[str, Any]:
        """Description of the linking method; each file of links contains it as JSON."""
        return {"labels": self.places[0], "edges": self._edges_place}

    @property
    def _edges_place(self) -> str:
        return Location.parse(self.edges_url).store_url

    @cached_property
    def _edges(self) -> Store:
        return open_store(self._edges_place, self.opening.access)

    @cached_property
    def _labels(self) -> Volume:
        return open_volume(self.url, self.mip, opening=self.opening)

    def prepare(self) -> None:
        """Open the store without reading, because an earlier step may still have to fill it."""
        _ = self._edges

    def __call__(self, region: Region) -> NDArray[np.uint64]:
        """Return pairs of labels to link, (n, 2), at the three faces at the start of a task's box.

        Raises:
            GeometryError: the task lies outside of the volume.
            VolumeError: the edges of the task are missing or damaged.
        """
        bounds = self._labels.bounds
        box = region.bbox.intersection(bounds)
        if box.is_empty:
            msg = (
                f"task {region} is outside of {self.url}, whose bounds are {bounds}; use the "
                "generate-tasks options that made the fragments"
            )
            raise GeometryError(msg)
        address = f"{self._edges.url.rstrip('/')}/{_key(region)}"
        names = [f"face_{axis}" for axis in range(3)]
        faces = decoded(self._edges.get(_key(region)), address, *names)
        links = [np.empty((0, 2), np.uint64)]
        for axis, name in enumerate(names):
            slab = lower_slab(box, bounds, axis, 6)
            if slab is None:
                continue
            labels = single_channel(self._labels.read(slab, time=region.time).array)
            chosen = _unpacked(faces[name], box, axis, address)
            links.append(
                np.stack(
                    (labels.take(0, axis)[chosen], labels.take(1, axis)[chosen]), axis=1
                ).astype(np.uint64)
            )
        return distinct(np.concatenate(links))


def _unpacked(bits: NDArray[Any], box: BoundingBox, axis: int, address: str) -> NDArray[np.bool_]:
    shape = tuple(n for a, n in enumerate(box.size) if a != axis)
    if bits.dtype != np.uint8 or bits.shape != (-(-prod(shape) // 8),):
        msg = (
            f"{address} has an array of shape {bits.shape} and type {bits.dtype}, which does not "
            f"fit a face of {shape} voxels; run fragment-affinity again for this task"
        )
        raise VolumeError(msg)
    return np.unpackbits(bits, count=prod(shape)).astype(bool).reshape(shape)
