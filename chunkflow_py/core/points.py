"""Points: positions in a volume, such as the centres of nuclei or the peaks of a map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.csv_table import csv_of
from chunkflow_py.core.geometry import AXES
from chunkflow_py.core.hdf5_io import pack, unpack
from chunkflow_py.errors import ChunkError, VolumeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox


@dataclass(frozen=True, eq=False)
class Points:
    """Points in a volume, with optional confidences.

    Attributes:
        positions: array of shape (n, 3): indices, zyx, of the voxels that contain the points.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
        confidences: array of shape (n,) of numbers in [0, 1]; ``None`` if the points have no
            confidences.
    """

    positions: NDArray[Any]
    voxel_size_nm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    confidences: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Check the shapes of the arrays.

        Raises:
            ChunkError: the shape of positions is not (n, 3), or the shape of confidences is not
                (n,).
        """
        if self.positions.ndim != 2 or self.positions.shape[1] != 3:
            msg = f"points must be an array of shape (n, 3), zyx; got shape {self.positions.shape}"
            raise ChunkError(msg)
        if self.confidences is not None and self.confidences.shape != (len(self),):
            msg = (
                f"{len(self)} points have confidences of shape {self.confidences.shape}; "
                f"the shape must be ({len(self)},)"
            )
            raise ChunkError(msg)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.positions)

    @property
    def positions_nm(self) -> NDArray[Any]:
        """The centres of the points' voxels, nanometres, zyx: an array of shape (n, 3).

        Voxel i reaches from i·size to (i + 1)·size.
        """
        return np.multiply(self.positions + 0.5, self.voxel_size_nm)

    def inside(self, bbox: BoundingBox) -> Points:
        """Return the points in *bbox* (voxels, half-open), without changing their order."""
        keep = ((self.positions >= bbox.start) & (self.positions < bbox.stop)).all(axis=1)
        confidences = None if self.confidences is None else self.confidences[keep]
        return replace(self, positions=self.positions[keep], confidences=confidences)

    def to_csv(self) -> bytes:
        """Return a CSV file with one line per point.

        The columns are z, y, x (voxels), z_nm, y_nm, x_nm (see `positions_nm`) and confidence, if
        there are confidences.
        """
        columns = {axis: self.positions[:, number] for number, axis in enumerate(AXES)}
        columns |= {f"{axis}_nm": self.positions_nm[:, k] for k, axis in enumerate(AXES)}
        if self.confidences is not None:
            columns["confidence"] = self.confidences
        return csv_of(columns)

    def to_hdf5(self) -> bytes:
        """Return an HDF5 file with the datasets points (zyx), voxel_size (zyx) and confidences."""
        arrays = {
            "points": self.positions,
            "voxel_size": np.asarray(self.voxel_size_nm, float),
            "confidences": self.confidences,
        }
        return pack(arrays, {})

    @classmethod
    def from_hdf5(cls, data: bytes, what: str = "the file") -> Points:
        """Return the points of an HDF5 file that `to_hdf5` or chunkflow 1.x has written.

        Args:
            data: the whole file.
            what: name of the file, for messages.

        Raises:
            VolumeError: the data are not an HDF5 file, are damaged, or have no dataset ``points``.
            ChunkError: the shapes of the arrays in the file do not match.
        """
        arrays, _ = unpack(data, what)
        if "points" not in arrays:
            msg = f"{what} has no dataset 'points'; its datasets are {', '.join(arrays) or 'none'}"
            raise VolumeError(msg)
        size = np.ravel(arrays.get("voxel_size", (1, 1, 1)))
        if len(size) != 3 or not (np.isfinite(size).all() and (size > 0).all()):
            msg = f"voxel_size of {what} must be three positive numbers (nm, zyx), got {size}"
            raise VolumeError(msg)
        z, y, x = size.tolist()
        return cls(arrays["points"], (float(z), float(y), float(x)), arrays.get("confidences"))
