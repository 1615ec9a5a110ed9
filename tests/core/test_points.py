"""Points: positions in a volume, and their files."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.points import Points
from chunkflow_py.errors import ChunkError, VolumeError

THREE = Points(np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]]), (40, 4, 8), np.array([0.5, 0.25, 1.0]))


def test_positions_in_nanometres_are_centres_of_voxels() -> None:
    """Voxel i reaches from i·size to (i + 1)·size, so that its centre is half a voxel further."""
    assert THREE.positions_nm.tolist() == [[20, 6, 20], [140, 18, 44], [260, 30, 68]]


def test_those_inside_keep_their_confidences() -> None:
    """Boxes are half-open: a point on the low face is inside, one on the high face is not."""
    kept = THREE.inside(BoundingBox.parse("3-6_0-9_0-9"))
    assert (kept.positions.tolist(), kept.confidences.tolist()) == ([[3, 4, 5]], [0.25])
    assert len(THREE.inside(BoundingBox.parse("4-6_0-9_0-9"))) == 0


def test_a_file_gives_back_what_was_written() -> None:
    """HDF5 keeps positions, voxel size and confidences; the same points are the same bytes."""
    data = THREE.to_hdf5()
    again = Points.from_hdf5(data)
    assert again.positions.tolist() == THREE.positions.tolist()
    assert again.voxel_size_nm == (40, 4, 8)
    assert again.confidences.tolist() == [0.5, 0.25, 1.0]
    assert again.to_hdf5() == data


def test_an_older_file_is_read() -> None:
    """Files of chunkflow 1.x have the datasets points and voxel_size."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["points"] = np.array([[1, 2, 3]], np.int32)
        file["voxel_size"] = np.array([8, 8, 8])
    found = Points.from_hdf5(buffer.getvalue())
    assert (found.positions.tolist(), found.voxel_size_nm) == ([[1, 2, 3]], (8, 8, 8))
    assert found.confidences is None


def test_what_does_not_fit_is_refused() -> None:
    """Messages name arrays of a wrong shape, wrong files and damaged files."""
    with pytest.raises(ChunkError, match=r"\(n, 3\).*shape \(2, 2\)"):
        Points(np.zeros((2, 2)))
    with pytest.raises(ChunkError, match=r"1 points have confidences of shape \(2,\)"):
        Points(np.zeros((1, 3)), confidences=np.zeros(2))
    with pytest.raises(VolumeError, match=r"p\.h5 is not an HDF5 file"):
        Points.from_hdf5(b"hello", "p.h5")
    with pytest.raises(VolumeError, match="seems damaged"):
        Points.from_hdf5(THREE.to_hdf5()[:200])
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["main"] = np.zeros(3)
    with pytest.raises(VolumeError, match="no dataset 'points'; its datasets are main"):
        Points.from_hdf5(buffer.getvalue())
