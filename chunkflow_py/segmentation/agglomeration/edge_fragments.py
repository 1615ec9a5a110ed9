"""Fragments: components of the edges that a local rule chooses.

```
affinity   a voxel chooses its best edge, and every edge of at least --aff-threshold-high
distance   a voxel inside a cell chooses the edge towards the middle of the cell, and a voxel of a
           membrane chooses the edge towards the nearest cell
```

Each voxel decides from the values in a bounded neighbourhood, the *halo*, under a total order, so a
chosen edge is the same in every task. Fragments are the connected components of the chosen edges;
what crosses a task boundary is linked as in `labels.linking`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.segmentation.agglomeration.edge_affinities import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FragmentMethod = Literal["distance", "affinity"]


class ChosenEdges(NamedTuple):
    """The edges that join voxels into fragments.

    Attributes:
        joins: (3, z, y, x) bool: whether the edge of a voxel to its lower neighbour along each axis
            is chosen.
        background: (z, y, x) bool: voxels that belong to no fragment.
    """

    joins: NDArray[np.bool_]
    background: NDArray[np.bool_]


@dataclass(frozen=True)
class FragmentRule:
    """The rule by which voxels choose edges.

    Attributes:
        method: ``affinity`` or ``distance``, see above.
        low: ``affinity``: the least affinity of a chosen edge. ``distance``: the least affinity of
            an edge between two voxels inside a cell.
        high: ``affinity``: edges of at least this affinity are chosen. ``distance``: a voxel is
            inside a cell if the mean affinity of its edges is at least this.
        cap: squared distances are cut off here, in units of *weights*.
        weights: squared length of a step along z, y and x, in units of the shortest.
        smoothing: how often distances are smoothed with the weights 1, 2, 1 along each axis.
    """

    method: FragmentMethod = "distance"
    low: int = 0
    high: int = 0
    cap: int = 64
    weights: tuple[int, int, int] = (1, 1, 1)
    smoothing: int = 1

    @property
    def halo(self) -> Zyx:
        """Voxels around a box that the rule needs to choose the edges of the voxels in the box."""
        if self.method == "affinity":
            return Zyx(1, 1, 1)
        return Zyx.of(isqrt((self.cap - 1) // w) + self.smoothing + 2 for w in self.weights)

    def choose(self, edges: NDArray[Any]) -> ChosenEdges:
        """Return the chosen edges.

        Args:
            edges: (3, z, y, x) uint8 or uint16. Where a face of the array lies inside the volume,
                voxels nearer to it than the halo may choose wrong edges.
        """
        return self._by_affinity(edges) if self.method == "affinity" else self._by_distance(edges)

    def _by_affinity(self, edges: NDArray[Any]) -> ChosenEdges:
        shape = edges.shape[1:]
        best = np.full(shape, -1, np.int32)
        choice = np.full(shape, len(DIRECTIONS), np.uint8)
        for number, (axis, _, voxel, edge, _) in enumerate(_sides()):
            values = edges[axis][edge].astype(np.int32)
            better = values > best[voxel]
            best[voxel][better] = values[better]
            choice[voxel][better] = number
        choice[best < self.low] = len(DIRECTIONS)
        joins = _joins(choice)
        for axis in range(3):
            upper, _ = _pair(axis)
            joins[axis][upper] |= edges[axis][upper] >= max(self.high, self.low)
        return ChosenEdges(joins, best < self.low)

    def _by_distance(self, edges: NDArray[Any]) -> ChosenEdges:
        inside = _inside(edges, self.high)
        height = _smoothed(self._distance(~inside), self.smoothing)
        joined = np.zeros(edges.shape, bool)
        for axis in range(3):
            upper, lower = _pair(axis)
            joined[axis][upper] = (edges[axis][upper] >= self.low) & inside[upper] & inside[lower]
        choice = _towards(joined, height)
        outer = self._distance(inside)
        self._leave(edges, outer, inside, choice)
        joins = _joins(choice)
        # A voxel inside without a higher neighbour is joined to all neighbours of equal height.
        is_top = inside & (choice == len(DIRECTIONS))
        for axis in range(3):
            upper, lower = _pair(axis)
            flat = joined[axis][upper] & (height[upper] == height[lower])
            joins[axis][upper] |= flat & (is_top[upper] | is_top[lower])
        return ChosenEdges(joins, outer >= self.cap)

    def _distance(self, zero: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the squared distance to the nearest voxel of *zero*, at most `cap`."""
        distance = np.where(zero, 0, self.cap).astype(np.int32)
        for axis, weight in enumerate(self.weights):
            best = distance.copy()
            for steps in range(1, min(isqrt((self.cap - 1) // weight), zero.shape[axis] - 1) + 1):
                upper, lower = _pair(axis, steps)
                added = weight * steps * steps
                np.minimum(best[upper], distance[lower] + added, out=best[upper])
                np.minimum(best[lower], distance[upper] + added, out=best[lower])
            distance = best
        return distance

    def _leave(
        self,
        edges: NDArray[Any],
        outer: NDArray[np.int32],
        inside: NDArray[np.bool_],
        choice: NDArray[np.uint8],
    ) -> None:
        """Let voxels outside of cells choose the best edge to a voxel that is nearer to a cell."""
        best = np.full(outer.shape, -1, np.int32)
        free = ~inside & (outer < self.cap)
        for number, (axis, _, voxel, edge, neighbour) in enumerate(_sides()):
            nearer = free[voxel] & (outer[neighbour] < outer[voxel])
            values = np.where(nearer, edges[axis][edge].astype(np.int32), -1)
            better = values > best[voxel]
            best[voxel][better] = values[better]
            choice[voxel][better] = number


def components(chosen: ChosenEdges) -> NDArray[np.uint32]:
    """Return the fragments of a box.

    Args:
        chosen: chosen edges of the voxels in the box; edges to lower neighbours outside of the box
            are ignored.

    Returns:
        (z, y, x) labels from 1, not in order, 0 for background.
    """
    import cc3d

    joins, background = chosen
    graph = np.zeros(background.shape, np.uint8)
    for axis in range(3):
        upper, lower = _pair(axis)
        step = joins[axis][upper]
        # cc3d calls the first axis of an array in C order x.
        graph[lower] |= step * np.uint8(1 << 2 * axis)
        graph[upper] |= step * np.uint8(2 << 2 * axis)
    labels: NDArray[Any] = cc3d.color_connectivity_graph(graph, connectivity=6)
    labels[background] = 0
    return labels


def _pair(axis: int, steps: int = 1) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return slices of the voxels that have a neighbour *steps* below, and of these neighbours."""
    upper = tuple(slice(steps, None) if a == axis else slice(None) for a in range(3))
    lower = tuple(slice(None, -steps) if a == axis else slice(None) for a in range(3))
    return upper, lower


def _sides() -> Iterator[tuple[int, bool, tuple[slice, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Yield axis, side and slices of voxels, of their edges and of their neighbours."""
    for axis, is_upper in DIRECTIONS:
        upper, lower = _pair(axis)
        voxel, neighbour = (lower, upper) if is_upper else (upper, lower)
        yield axis, is_upper, voxel, upper, neighbour


def _inside(edges: NDArray[Any], least: int) -> NDArray[np.bool_]:
    """Return whether the mean of the existing edges of a voxel is at least *least*."""
    spare = np.zeros(edges.shape[1:], np.int32)  # sum of the edges - least * number of the edges
    for axis in range(3):
        upper, lower = _pair(axis)
        values = edges[axis][upper].astype(np.int32) - least
        spare[upper] += values
        spare[lower] += values
    return spare >= 0


def _smoothed(values: NDArray[np.int32], times: int) -> NDArray[np.int32]:
    """Return *values* smoothed with the weights 1, 2, 1; a face of the array repeats its voxels."""
    for _ in range(times):
        for axis in range(3):
            padding = [(1, 1) if a == axis else (0, 0) for a in range(3)]
            wide = np.pad(values, padding, mode="edge")
            take = [
                wide[
                    tuple(
                        slice(k, k + n) if a == axis else slice(None)
                        for a, n in enumerate(values.shape)
                    )
                ]
                for k in range(3)
            ]
            values = take[0] + 2 * take[1] + take[2]
    return values


def _towards(joined: NDArray[np.bool_], height: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the direction of the highest joined neighbour that is higher, if there is one."""
    best = height.copy()
    choice = np.full(height.shape, len(DIRECTIONS), np.uint8)
    for number, (axis, _, voxel, edge, neighbour) in enumerate(_sides()):
        better = joined[axis][edge] & (height[neighbour] > best[voxel])
        best[voxel][better] = height[neighbour][better]
        choice[voxel][better] = number
    return choice


def _joins(choice: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the edges that one of their voxels has chosen, as in `ChosenEdges`."""
    joins = np.zeros((3, *choice.shape), bool)
    for number, (axis, _, voxel, edge, _) in enumerate(_sides()):
        joins[axis][edge] |= choice[voxel] == number
    return joins
