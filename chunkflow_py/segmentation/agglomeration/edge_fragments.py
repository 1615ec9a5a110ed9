"""Fragments: groups of voxels that are connected by edges; a local rule chooses the edges.

```
affinity   a voxel chooses its best edge, and every edge that reaches --aff-threshold-high
distance   a voxel inside a cell chooses the edge towards the middle of the cell, and a voxel of a
           membrane chooses the edge towards the nearest cell
```

Each voxel chooses by the affinities in a bounded neighbourhood, the *halo*. Of equally good edges,
it chooses the first in a fixed order of directions. Therefore, every task chooses the same edges.
Fragments are the connected components of the chosen edges. The parts of a fragment in several tasks
are linked later; see `fragment_links`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.segmentation.agglomeration.edge_affinities import DIRECTIONS, scale_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FragmentMethod = Literal["distance", "affinity"]


class ChosenEdges(NamedTuple):
    """The edges that join voxels into fragments.

    Attributes:
        joins: (3, z, y, x) bool: whether the edge is chosen that joins a voxel to its lower
            neighbour along each axis (the neighbour whose coordinate is smaller by 1).
        background: (z, y, x) bool: voxels that belong to no fragment.
    """

    joins: NDArray[np.bool_]
    background: NDArray[np.bool_]


@dataclass(frozen=True)
class FragmentRule:
    """The rule by which each voxel chooses edges, which join the voxel to neighbours.

    Attributes:
        method: ``affinity`` or ``distance``; see the docstring of the module.
        low: the least affinity of a chosen edge. With the method ``distance``, this limit applies
            only to edges between two voxels inside a cell.
        high: with the method ``affinity``, all edges of at least this affinity are chosen. With
            ``distance``, a voxel is inside a cell if the mean affinity of its edges is at least
            *high*.
        cap: limit of the squared distance between a voxel and the nearest membrane or cell, in the
            unit of `weights`. Longer distances count as *cap*. Used only by ``distance``.
        weights: squared distances between neighbouring voxels along z, y and x, in units of the
            smallest of the three, rounded to integers.
        smoothing: number of times that the distances are smoothed with the weights 1, 2, 1 along
            each axis. Used only by ``distance``.
    """

    method: FragmentMethod = "distance"
    low: int = 0
    high: int = 0
    cap: int = 64
    weights: tuple[int, int, int] = (1, 1, 1)
    smoothing: int = 1

    @property
    def halo(self) -> Zyx:
        """Margin around a box, zyx, in voxels, that is needed to choose the edges in the box."""
        if self.method == "affinity":
            return Zyx(1, 1, 1)
        return Zyx.of(isqrt((self.cap - 1) // w) + self.smoothing + 2 for w in self.weights)

    def choose(self, edges: NDArray[Any]) -> ChosenEdges:
        """Return the edges that the voxels of an array choose.

        Args:
            edges: (3, z, y, x) affinities as integers, uint8 or uint16. If the volume continues
                beyond a face of the array, voxels that are closer to this face than the halo may
                choose wrong edges.
        """
        return self._by_affinity(edges) if self.method == "affinity" else self._by_distance(edges)

    def _by_affinity(self, edges: NDArray[Any]) -> ChosenEdges:
        best = np.zeros(edges.shape[1:], _key_type(scale_of(edges.dtype)))
        for number, (axis, _, voxel, edge, _) in enumerate(_sides()):
            keys = _keys(edges[axis][edge], number, best.dtype)
            np.maximum(best[voxel], keys, out=best[voxel])
        is_background = best < max(1, self.low << _BITS)
        joins = _joins(np.where(is_background, _NONE, _directions(best)))
        for axis in range(3):
            upper, _ = _pair(axis)
            joins[axis][upper] |= edges[axis][upper] >= max(self.high, self.low)
        return ChosenEdges(joins, is_background)

    def _by_distance(self, edges: NDArray[Any]) -> ChosenEdges:
        inside = _inside(edges, self.high)
        height = _smoothed(self._distance(~inside), self.cap, self.smoothing)
        joined = np.zeros(edges.shape, bool)
        for axis in range(3):
            upper, lower = _pair(axis)
            np.greater_equal(edges[axis][upper], self.low, out=joined[axis][upper])
            joined[axis][upper] &= inside[upper]
            joined[axis][upper] &= inside[lower]
        choice = _towards(joined, height)
        outer = self._distance(inside)
        is_background = outer >= self.cap
        joins = _joins(choice)
        # A voxel inside without a higher neighbour is joined to all neighbours of equal height.
        is_top = inside & (choice == _NONE)
        for axis in range(3):
            upper, lower = _pair(axis)
            flat = height[upper] == height[lower]
            flat &= joined[axis][upper]
            flat &= is_top[upper] | is_top[lower]
            joins[axis][upper] |= flat
        del joined, height
        joins |= _joins(_leaving(edges, outer, ~inside & ~is_background))
        return ChosenEdges(joins, is_background)

    def _distance(self, zero: NDArray[np.bool_]) -> NDArray[Any]:
        # The squared distance of each voxel to the nearest voxel of *zero*, at most `cap`.
        # The smallest type that holds a distance and the squared length of a step.
        distance = np.where(zero, 0, self.cap).astype(np.min_scalar_type(2 * self.cap))
        for axis, weight in enumerate(self.weights):
            best, longer = distance.copy(), np.empty_like(distance)
            for steps in range(1, min(isqrt((self.cap - 1) // weight), zero.shape[axis] - 1) + 1):
                upper, lower = _pair(axis, steps)
                np.add(distance, distance.dtype.type(weight * steps * steps), out=longer)
                np.minimum(best[upper], longer[lower], out=best[upper])
                np.minimum(best[lower], longer[upper], out=best[lower])
            distance = best
        return distance


def components(chosen: ChosenEdges) -> NDArray[np.uint32]:
    """Return the fragments of a box.

    Args:
        chosen: chosen edges of the voxels in the box; edges to voxels outside of the box are
            ignored.

    Returns:
        (z, y, x) labels from 1, in no particular order; 0 for background.
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
    upper = tuple(slice(steps, None) if a == axis else slice(None) for a in range(3))
    lower = tuple(slice(None, -steps) if a == axis else slice(None) for a in range(3))
    return upper, lower


def _sides() -> Iterator[tuple[int, bool, tuple[slice, ...], tuple[slice, ...], tuple[slice, ...]]]:
    for axis, is_upper in DIRECTIONS:
        upper, lower = _pair(axis)
        voxel, neighbour = (lower, upper) if is_upper else (upper, lower)
        yield axis, is_upper, voxel, upper, neighbour


# The best edge of a voxel is found as the maximum of integer keys. A key combines a value with the
# number of a direction. For equal values, the key of the lower number is greater.
_BITS = 3
_NONE = np.uint8(2**_BITS - 1)  # number of no direction


def _key_type(largest: int) -> np.dtype[Any]:
    return np.min_scalar_type(largest << _BITS | int(_NONE))


def _keys(values: NDArray[Any], number: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    keys: NDArray[Any] = np.left_shift(values, _BITS, dtype=dtype)
    keys |= dtype.type(len(DIRECTIONS) - number)
    return keys


def _directions(keys: NDArray[Any]) -> NDArray[np.uint8]:
    return np.uint8(len(DIRECTIONS)) - (keys & _NONE).astype(np.uint8)


def _inside(edges: NDArray[Any], least: int) -> NDArray[np.bool_]:
    # The sum of the edges - least * number of the edges.
    spare = np.zeros(edges.shape[1:], np.int16 if edges.dtype == np.uint8 else np.int32)
    for axis in range(3):
        upper, lower = _pair(axis)
        values = np.subtract(edges[axis][upper], least, dtype=spare.dtype)
        spare[upper] += values
        spare[lower] += values
    return spare >= 0


def _smoothed(values: NDArray[Any], largest: int, times: int) -> NDArray[Any]:
    # With the weights 1, 2, 1 along each axis, so that each round multiplies *largest* by 64.
    # At each face of the array, the outermost voxels are repeated.
    values = values.astype(_key_type(largest * 64**times))
    for _ in range(times):
        for axis in range(3):
            wide = 2 * values
            upper, lower = _pair(axis)
            wide[upper] += values[lower]
            wide[lower] += values[upper]
            for end in (slice(None, 1), slice(-1, None)):
                face = tuple(end if a == axis else slice(None) for a in range(3))
                wide[face] += values[face]
            values = wide
    return values


def _towards(joined: NDArray[np.bool_], height: NDArray[Any]) -> NDArray[np.uint8]:
    # The direction to the highest joined neighbour, if this neighbour is higher than the voxel.
    own = height << _BITS
    best = own | _NONE  # greater than the keys of neighbours of the same height
    for number, (axis, _, voxel, edge, neighbour) in enumerate(_sides()):
        keys = own[neighbour] | own.dtype.type(len(DIRECTIONS) - number)
        keys *= joined[axis][edge]
        np.maximum(best[voxel], keys, out=best[voxel])
    return np.where(best & _NONE == _NONE, _NONE, _directions(best))


def _leaving(
    edges: NDArray[Any], outer: NDArray[Any], free: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    # *outer*: distances to the nearest cell. *free*: voxels outside of cells, except background.
    # Such a voxel chooses its best edge among the edges to neighbours that are nearer to a cell.
    best = np.zeros(outer.shape, _key_type(scale_of(edges.dtype)))
    for number, (axis, _, voxel, edge, neighbour) in enumerate(_sides()):
        keys = _keys(edges[axis][edge], number, best.dtype)
        keys *= outer[neighbour] < outer[voxel]
        np.maximum(best[voxel], keys, out=best[voxel])
    return np.where(free & (best > 0), _directions(best), _NONE)


def _joins(choice: NDArray[np.uint8]) -> NDArray[np.bool_]:
    joins = np.zeros((3, *choice.shape), bool)
    for number, (axis, _, voxel, edge, _) in enumerate(_sides()):
        joins[axis][edge] |= choice[voxel] == number
    return joins
