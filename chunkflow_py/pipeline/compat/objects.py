"""The Synapses and PointCloud classes for plugins that were written for chunkflow 1.x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.pipeline.compat.places import BoundingBox, Cartesian

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from chunkflow_py.pipeline.compat.chunks import Chunk


class PointCloud:
    """Positions of points and their voxel size.

    Attributes:
        points: positions in voxels, zyx, as an array of shape (n, 3).
        voxel_size: edge lengths of a voxel, nanometres, zyx.
    """

    def __init__(self, points: NDArray[Any] | None, voxel_size: Iterable[float]) -> None:
        """Use the array of points without copying it; ``None`` makes an empty cloud."""
        self.points = np.zeros((0, 3), np.int64) if points is None else points
        self.voxel_size = Cartesian.from_collection(voxel_size)

    @property
    def bounding_box(self) -> BoundingBox:
        """The box from the lowest to the highest coordinates."""
        return BoundingBox.from_points(self.points)

    @property
    def point_num(self) -> int:
        """Number of points."""
        return len(self.points)


class Synapses:
    """T-bars (presynaptic points) and their postsynaptic points.

    Methods that add or remove points change the object itself.

    Attributes:
        pre: positions of the T-bars in voxels, zyx, as an array of shape (n, 3), int32.
        post: postsynaptic points, as an array of shape (m, 4), int32; ``None`` without points. The
            four numbers of a point are the row of its T-bar in *pre*, then z, y and x in voxels.
        pre_confidence: confidence of each T-bar, of shape (n,), or ``None``.
        post_confidence: confidence of each postsynaptic point, of shape (m,), or ``None``.
        resolution: edge lengths of a voxel, nanometres, zyx, or ``None``.
        users: names of the annotators, or ``None``.
        pre_users: index in *users* for each T-bar, of shape (n,), or ``None``.
        post_users: index in *users* for each postsynaptic point, of shape (m,), or ``None``.
    """

    def __init__(
        self,
        pre: NDArray[Any],
        pre_confidence: NDArray[Any] | None = None,
        post: NDArray[Any] | None = None,
        post_confidence: NDArray[Any] | None = None,
        resolution: Iterable[float] | None = None,
        users: list[str] | None = None,
        pre_users: NDArray[Any] | None = None,
        post_users: NDArray[Any] | None = None,
    ) -> None:
        """Copy *pre* and *post* as int32; the arguments have the meaning of the attributes."""
        self.pre = pre.astype(np.int32)
        self.post = None if post is None else post.astype(np.int32)
        self.pre_confidence, self.post_confidence = pre_confidence, post_confidence
        self.resolution = None if resolution is None else np.asarray(tuple(resolution))
        self.users, self.pre_users, self.post_users = users, pre_users, post_users

    def __len__(self) -> int:
        """Return the number of postsynaptic points; 0 if *post* is ``None``."""
        return 0 if self.post is None else len(self.post)

    @property
    def pre_num(self) -> int:
        """Number of T-bars."""
        return len(self.pre)

    @property
    def post_num(self) -> int | None:
        """Number of postsynaptic points; ``None`` if *post* is ``None``."""
        return None if self.post is None else len(self.post)

    @property
    def post_coordinates(self) -> NDArray[Any]:
        """Positions of the postsynaptic points, (m, 3), zyx, voxels."""
        return np.zeros((0, 3), np.int32) if self.post is None else self.post[:, 1:]

    @property
    def pre_point_cloud(self) -> PointCloud:
        """Point cloud of the T-bars; if *resolution* is ``None``, the voxel size is 1 nm."""
        return PointCloud(self.pre, (1, 1, 1) if self.resolution is None else self.resolution)

    @property
    def pre_bounding_box(self) -> BoundingBox:
        """Smallest box that contains the voxels of all T-bars."""
        return BoundingBox.from_points(self.pre).adjust((0, 0, 0, 1, 1, 1))

    @property
    def pre_with_physical_coordinate(self) -> NDArray[Any]:
        """Positions of the T-bars in nanometres; in voxels if *resolution* is ``None``."""
        return self.pre if self.resolution is None else self.pre * self.resolution

    @property
    def post_with_physical_coordinate(self) -> NDArray[Any] | None:
        """*post* with positions in nanometres; in voxels if *resolution* is ``None``."""
        if self.post is None or self.resolution is None:
            return self.post
        return np.column_stack([self.post[:, 0], self.post_coordinates * self.resolution])

    @property
    def pre_index2post_indices(self) -> list[list[int] | None]:
        """For each T-bar, the rows of its points in *post*, or ``None`` if *post* is ``None``."""
        if self.post is None:
            return [None] * self.pre_num
        return [np.flatnonzero(self.post[:, 0] == row).tolist() for row in range(self.pre_num)]

    @property
    def post_synapse_num_list(self) -> list[int]:
        """Number of postsynaptic points of each T-bar."""
        return [len(rows or ()) for rows in self.pre_index2post_indices]

    @property
    def pre_indices_without_post(self) -> list[int]:
        """Rows of T-bars without postsynaptic points."""
        return [row for row, count in enumerate(self.post_synapse_num_list) if not count]

    @property
    def distances_from_pre_to_post(self) -> NDArray[Any]:
        """Distance in voxels of each postsynaptic point from its T-bar, of shape (m,)."""
        if self.post is None:
            return np.zeros(0, np.float32)
        apart = self.post_coordinates - self.pre[self.post[:, 0]]
        return np.asarray(np.linalg.norm(apart, axis=1), np.float32)

    def add_pre(self, pre: NDArray[Any], confidence: float = 1.0) -> Synapses:
        """Append T-bars at positions (n, 3) and return this object."""
        self.pre = np.concatenate([self.pre, pre.astype(np.int32)])
        if self.pre_confidence is not None:
            more = np.full(len(pre), confidence, self.pre_confidence.dtype)
            self.pre_confidence = np.concatenate([self.pre_confidence, more])
        if self.pre_users is not None:
            self.pre_users = np.concatenate([self.pre_users, np.full(len(pre), -1)])
        return self

    def remove_pre(self, indices: Iterable[int]) -> None:
        """Remove the T-bars in rows *indices* of *pre*, and their points in *post*."""
        keep = np.ones(self.pre_num, bool)
        keep[list(indices)] = False
        rows = np.cumsum(keep) - 1
        self.pre = self.pre[keep]
        self.pre_confidence = _part(self.pre_confidence, keep)
        self.pre_users = _part(self.pre_users, keep)
        if self.post is not None:
            self.remove_post(np.flatnonzero(~keep[self.post[:, 0]]))
            self.post[:, 0] = rows[self.post[:, 0]]

    def remove_post(self, indices: Iterable[int]) -> None:
        """Remove the postsynaptic points in rows *indices* of *post*."""
        if self.post is None:
            return
        keep = np.ones(len(self.post), bool)
        keep[list(indices)] = False
        self.post = self.post[keep]
        self.post_confidence = _part(self.post_confidence, keep)
        self.post_users = _part(self.post_users, keep)

    def remove_synapses_without_post(self) -> None:
        """Remove T-bars without postsynaptic points."""
        self.remove_pre(self.pre_indices_without_post)

    def remove_synapses_outside_bounding_box(self, bbox: BoundingBox) -> None:
        """Remove T-bars outside *bbox*; as in 1.x, T-bars at ``bbox.stop`` count as inside."""
        self.remove_pre(
            row for row, point in enumerate(self.pre.tolist()) if not bbox.contains(point)
        )

    def user_id(self, user: str) -> int | None:
        """Return the index of a user in *users*, or ``None`` if the user is unknown."""
        users = self.users or []
        return users.index(user) if user in users else None

    def post_indices_from_user(self, user: str) -> set[int]:
        """Return the rows in *post* of the points that a user annotated."""
        number = self.user_id(user)
        if number is None or self.post_users is None:
            return set()
        return set(np.flatnonzero(self.post_users == number).tolist())

    def find_redundent_post(
        self, num_threshold: int = 15, distance_threshold: float = 50.0
    ) -> set[int]:
        """Return rows of postsynaptic points that are surplus or too far from their T-bar.

        A point is surplus if its T-bar has at least *num_threshold* points with smaller distances.
        For this rule only, each distance is divided by the confidence of the point, if known.

        Args:
            num_threshold: number of points that a T-bar may have.
            distance_threshold: distance that a point may have from its T-bar, voxels.
        """
        distances = self.distances_from_pre_to_post
        found = set(np.flatnonzero(distances > distance_threshold).tolist())
        for rows in self.pre_index2post_indices:
            at = np.asarray(rows or [], int)
            sure = 1.0 if self.post_confidence is None else self.post_confidence[at]
            order = np.argsort(distances[at] / np.maximum(sure, 1e-6), kind="stable")
            found |= set(at[order[num_threshold:]].tolist())
        return found

    def find_duplicate_post_on_same_neuron(
        self, seg: Chunk, distance_threshold: float = 10
    ) -> set[int]:
        """Return rows of postsynaptic points that have a near neighbour on the same segment.

        Two points are near if their distance is at most *distance_threshold* voxels. Of two near
        points, only the row of the point that is farther from its T-bar is returned. Points outside
        *seg* and points with label 0 are never returned.
        """
        from scipy.spatial import KDTree

        points = self.post_coordinates - np.asarray(seg.voxel_offset, np.int64)
        inside = np.all((points >= 0) & (points < seg.shape[-3:]), axis=1)
        objects = np.zeros(len(points), seg.dtype)
        objects[inside] = seg.array[(..., *points[inside].T)].reshape(-1)
        distances = self.distances_from_pre_to_post
        pairs = KDTree(points).query_pairs(distance_threshold) if len(points) else ()
        return {
            a if distances[a] > distances[b] else b
            for a, b in pairs
            if objects[a] == objects[b] > 0
        }


def _part(values: NDArray[Any] | None, keep: NDArray[Any]) -> NDArray[Any] | None:
    return None if values is None else values[keep]
