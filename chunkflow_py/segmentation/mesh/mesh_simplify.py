"""Surfaces of the objects of an array, each as if it were the only one.

zmesh simplifies all meshes of a `Mesher` in one buffer of vertices, and counts there the open edges
of each vertex. It does not clear these counts, so that a mesh that follows one with an open rim, or
with an edge of four triangles, keeps more vertices than it would alone. Here each surface that is
simplified has a mesher of its own, for the box of its object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkflow_py.errors import needs_extra

with needs_extra("mesh", "mesh"):
    from zmesh import Mesher

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT_VOLUME = 0.5  # share of the volume that a closed surface encloses after simplification
_TRIES = 3  # with 1, 1/8 and 1/64 of the largest error, before the surface stays as it is


class Surface(NamedTuple):
    """Triangles.

    Attributes:
        places: (n, 3) float64 of the vertices, xyz, voxels from the middle of the first voxel.
        faces: (m, 3), indices of vertices.
    """

    places: NDArray[np.float64]
    faces: NDArray[Any]

    @property
    def volume(self) -> float:
        """What a closed surface encloses, cubic voxels."""
        if not len(self.faces):
            return 0.0
        x, y, z = (self.places - self.places[0])[self.faces].T  # each (corner, triangle)
        cross = y[1] * z[2] - y[2] * z[1], z[1] * x[2] - z[2] * x[1], x[1] * y[2] - x[2] * y[1]
        return abs(float((x[0] * cross[0] + y[0] * cross[1] + z[0] * cross[2]).sum())) / 6


class Surfaces:
    """The surfaces of all objects of an array.

    Args:
        labels: (x, y, z), unsigned integers.
        unit: edge lengths of a voxel, nanometres, xyz.

    Attributes:
        ids: of the objects.
    """

    def __init__(self, labels: NDArray[Any], unit: NDArray[np.float64]) -> None:
        self._labels, self._unit = labels, unit
        self._mesher = self._meshed(labels)
        self.ids = {int(label) for label in self._mesher.ids()}
        faces = [np.take(labels, end, axis) for axis in range(3) for end in (0, -1)]
        self._open = {int(label) for face in faces for label in np.unique(face)}

    def take(self, label: int, factor: int, max_error: float) -> Surface:
        """Return the surface of an object, which can be taken once.

        A closed surface is simplified less where it would lose half of what it encloses, as the
        smallest objects would, which became flat.

        Args:
            label: of the object.
            factor: how many times fewer triangles there should be; 0 keeps all.
            max_error: of zmesh.
        """
        whole = self._get(self._mesher, label)
        self._mesher.erase(label)
        if not factor or not len(whole.faces):
            return whole
        start = np.floor(whole.places.min(axis=0)).astype(int).clip(0)
        stop = np.ceil(whole.places.max(axis=0)).astype(int) + 1
        part = np.asfortranarray(self._labels[tuple(map(slice, start, stop))] == label)
        kept = 0.0 if label in self._open else KEPT_VOLUME * whole.volume
        for attempt in range(_TRIES):
            mesher = self._meshed(part.view(np.uint8))
            found = self._get(mesher, 1, factor, max_error / 8**attempt)
            if found.volume >= kept:
                return found._replace(places=found.places + start)
        return whole

    def _meshed(self, labels: NDArray[Any]) -> Any:
        mesher = Mesher(self._unit)
        mesher.mesh(labels)
        return mesher

    def _get(self, mesher: Any, label: int, factor: int = 0, max_error: float = 0) -> Surface:
        mesh = mesher.get(label, reduction_factor=factor, max_error=max_error)
        return Surface(mesh.vertices.astype(np.float64) / self._unit, mesh.faces)
