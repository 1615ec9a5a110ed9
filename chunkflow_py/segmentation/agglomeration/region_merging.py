"""Merge the regions in a box, unless a voxel outside of the box could change the merge.

```
            |  box      |        a region is *closed* in a box if none of its fragments continues
      o-----|--o   c    |        outside of the box: c is closed, o is open. A closed region may
            |   c--c    |        touch the boundary, because its contacts there are known.
            |           |
```

Contacts are processed from the best to the worst, down to the threshold. An open region is
*blocked*: it waits for a larger box. If the best contact of a region is with a blocked region, the
region is also blocked. A blocked region stays blocked, because no merge makes a contact better. Two
regions that are not blocked are merged if they are each other's best contact. In the end, a region
that is not blocked has no contact that reaches the threshold. Such a region is *final*, and leaves
the graph.

The result equals that of the greedy algorithm on the whole volume. The docstring of the package
explains why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.segmentation.agglomeration.contacts import (
    Contacts,
    contacts_of,
    mean_keys,
)
from chunkflow_py.segmentation.agglomeration.merge_kernel import merge_best_first
from chunkflow_py.segmentation.labels.union_find import smallest_of_sets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox

FACES = 6  # face 2 * axis is the lower face, face 2 * axis + 1 the upper one


def _ids() -> NDArray[np.uint64]:
    return np.empty(0, np.uint64)


def _faces() -> NDArray[np.uint8]:
    return np.empty(0, np.uint8)


@dataclass(eq=False)
class OpenGraph:
    """The regions and contacts of a box that remain after its merges, for the next larger box.

    Attributes:
        inside: contacts between regions in the box.
        crossing: contacts between fragments (not regions) across the faces of the box;
            `Contacts.first` lies inside, `Contacts.second` outside. A contact between two
            neighbouring boxes is in the graphs of both boxes. `combined` counts such a contact
            once.
        face: number of the face of each row of `crossing`: 2 * axis for the face at the start of
            the box along this axis, 2 * axis + 1 for the face at its stop.
        cut: fragments that continue outside of the box; one entry for each face through which a
            fragment continues.
        cut_face: number of the face of each entry of `cut`.
        fragments: the fragments in `crossing` and `cut` whose regions are not final, ascending.
        regions: region of each of these fragments.
    """

    inside: Contacts = field(default_factory=Contacts.none)
    crossing: Contacts = field(default_factory=Contacts.none)
    face: NDArray[np.uint8] = field(default_factory=_faces)
    cut: NDArray[np.uint64] = field(default_factory=_ids)
    cut_face: NDArray[np.uint8] = field(default_factory=_faces)
    fragments: NDArray[np.uint64] = field(default_factory=_ids)
    regions: NDArray[np.uint64] = field(default_factory=_ids)

    @classmethod
    def of_box(
        cls,
        fragments: NDArray[np.uint64],
        edges: NDArray[Any],
        box: BoundingBox,
        domain: BoundingBox,
    ) -> OpenGraph:
        """Return the graph of a task's box, in which each fragment is a region.

        Args:
            fragments: (z, y, x) ids of the fragments in *box* and in one more layer of voxels on
                each side where *domain* continues; 0 for background.
            edges: (3, z, y, x) affinities as integers, at the same voxels.
            box: box of the task.
            domain: bounds of the volume.
        """
        around = box.grow((1, 1, 1)).intersection(domain)
        own = box.slices(around.start)
        inside = contacts_of(fragments[own], edges[(slice(None), *own)], box.start, domain)
        crossing, faces, cut, cut_faces = [Contacts.none()], [_faces()], [_ids()], [_faces()]
        for face in range(FACES):
            axis, is_upper = divmod(face, 2)
            edge = box.stop[axis] if is_upper else box.start[axis]
            if edge == (domain.stop if is_upper else domain.start)[axis]:
                continue
            planes = tuple(
                slice(edge - 1 - around.start[a], edge + 1 - around.start[a]) if a == axis else each
                for a, each in enumerate(own)
            )
            labels = fragments[planes]
            corner = [edge - 1 if a == axis else at for a, at in enumerate(box.start)]
            across = contacts_of(
                labels, edges[(slice(None), *planes)], corner, domain, [axis], is_directed=True
            )
            if not is_upper:  # the box is above the face
                across = replace(across, first=across.second, second=across.first)
            crossing.append(across)
            faces.append(np.full(len(across), face, np.uint8))
            lower, upper = np.moveaxis(labels, axis, 0)
            both = np.unique(lower[(lower == upper) & (lower != 0)])
            cut.append(both)
            cut_faces.append(np.full(len(both), face, np.uint8))
        joined = Contacts.joined(crossing)
        ends = np.concatenate(cut)
        names = np.unique(np.concatenate((joined.first, ends)))
        return cls(
            inside, joined, np.concatenate(faces), ends, np.concatenate(cut_faces), names, names
        )

    def region_of(self, fragments: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the region of each fragment; 0 for a fragment that is not in `self.fragments`."""
        if not len(self.fragments):
            return np.zeros(len(fragments), np.uint64)
        places = np.searchsorted(self.fragments, fragments)
        places = np.minimum(places, len(self.fragments) - 1)
        return np.where(self.fragments[places] == fragments, self.regions[places], np.uint64(0))


@dataclass(eq=False)
class Merges:
    """A table of merges, one row for each merge of two regions.

    Attributes:
        contacts: contact of the two regions when they were merged. `Contacts.first` is the region
            that keeps its id, the smaller one. `Contacts.second` is the region that loses its id.
    """

    contacts: Contacts = field(default_factory=Contacts.none)

    def __len__(self) -> int:
        """Return the number of merges."""
        return len(self.contacts)

    def sorted(self) -> Merges:
        """Return the merges in the order of the greedy algorithm: the best contact first."""
        whole, rest = mean_keys(self.contacts.total, self.contacts.count)
        return Merges(self.contacts.rows(np.lexsort((self.contacts.tie, -rest, -whole))))


def merge_box(graph: OpenGraph, least: Fraction) -> tuple[Merges, OpenGraph]:
    """Merge the regions of a box.

    Args:
        graph: graph of the box.
        least: smallest mean affinity at which two regions are merged, in integer units; see
            `edge_affinities.least_mean`.

    Returns:
        The merges, in the order of `Merges.sorted`, and the graph that remains.
    """
    crossing = graph.crossing
    near = graph.region_of(crossing.first)
    # A fragment outside that also lies in the box is a region here, and is open.
    far = graph.region_of(crossing.second)
    far = np.where(far == 0, crossing.second, far)
    copies = Contacts(near, far, crossing.total, crossing.count, crossing.tie)
    table = Contacts.joined((graph.inside, copies)).summed()
    ids = np.unique(np.concatenate((table.first, table.second, graph.regions)))
    blocked = np.zeros(len(ids), bool)
    blocked[np.searchsorted(ids, far)] = True
    blocked[np.searchsorted(ids, graph.region_of(graph.cut))] = True
    merges = _merged(ids, table, blocked, least)
    kept = _Renaming.of(ids, blocked, merges)
    inside = graph.inside
    first, second = kept(inside.first), kept(inside.second)
    rows = (first != 0) & (second != 0)
    inside = Contacts(first, second, inside.total, inside.count, inside.tie).rows(rows).summed()
    remain = kept(near) != 0
    regions = kept(graph.regions)
    named = regions != 0
    fragments, regions = graph.fragments[named], regions[named]
    left = OpenGraph(
        inside, crossing.rows(remain), graph.face[remain], graph.cut, graph.cut_face,
        fragments, regions,
    )  # fmt: skip
    return merges, left


@dataclass(eq=False)
class _Renaming:
    """Maps the id of a region before the merges of a box to the id after these merges.

    A region that is final after the merges has the id 0.
    """

    ids: NDArray[np.uint64]
    names: NDArray[np.uint64]

    @classmethod
    def of(cls, ids: NDArray[np.uint64], blocked: NDArray[np.bool_], merges: Merges) -> _Renaming:
        names = ids.copy()
        pairs = np.stack((merges.contacts.first, merges.contacts.second), axis=1)
        if len(pairs):
            merged, kept = smallest_of_sets(pairs)
            names[np.searchsorted(ids, merged)] = kept
        return cls(ids, np.where(blocked[np.searchsorted(ids, names)], names, np.uint64(0)))

    def __call__(self, regions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return self.names[np.searchsorted(self.ids, regions)]


def _merged(
    ids: NDArray[np.uint64], table: Contacts, blocked: NDArray[np.bool_], least: Fraction
) -> Merges:
    # *ids* are ascending. *blocked* is changed: it also marks the regions that became blocked.
    if not len(table):
        return Merges()
    numerator, denominator = np.array([least.numerator]), np.array([least.denominator])
    (whole,), (rest,) = mean_keys(numerator, denominator)
    kept, lost, total, count, tie = merge_best_first(
        np.searchsorted(ids, table.first), np.searchsorted(ids, table.second),
        table.total.copy(), table.count.copy(), table.tie.copy(), blocked, int(whole), int(rest),
    )  # fmt: skip
    return Merges(Contacts(ids[kept], ids[lost], total, count, tie)).sorted()


def combined(children: Mapping[BoundingBox, OpenGraph], box: BoundingBox) -> OpenGraph:
    """Return the graph of a box that consists of smaller boxes.

    Args:
        children: graphs of the smaller boxes, after their merges. The boxes form a grid.
        box: the larger box.
    """
    inside, crossing, faces, cut, cut_faces = [], [], [], [], []
    names: list[NDArray[np.uint64]] = []
    for child, graph in children.items():
        inside.append(graph.inside)
        outer = np.array([_is_outer(child, box, face) for face in range(FACES)])
        rows = outer[graph.face]
        crossing.append(graph.crossing.rows(rows))
        faces.append(graph.face[rows])
        rows = outer[graph.cut_face]
        cut.append(graph.cut[rows])
        cut_faces.append(graph.cut_face[rows])
        names.append(np.stack((graph.fragments, graph.regions), axis=1))
        for axis in range(3):
            if not outer[2 * axis]:  # each contact between two children is counted in the upper one
                other = _below(children, child, axis)
                owned = graph.crossing.rows(graph.face == 2 * axis)
                first, second = graph.region_of(owned.first), other.region_of(owned.second)
                both = (first != 0) & (second != 0)
                owned = Contacts(first, second, owned.total, owned.count, owned.tie)
                inside.append(owned.rows(both))
    table = np.unique(np.concatenate(names), axis=0)
    fragments, regions = table[:, 0], table[:, 1]
    left = OpenGraph(
        Contacts.joined(inside).summed(), Contacts.joined(crossing), np.concatenate(faces),
        np.concatenate(cut), np.concatenate(cut_faces),
    )  # fmt: skip
    # Region ids of fragments at inner faces are not needed any more.
    needed = np.isin(fragments, np.concatenate((left.crossing.first, left.cut)))
    left.fragments, left.regions = fragments[needed], regions[needed]
    return left


def _is_outer(child: BoundingBox, box: BoundingBox, face: int) -> bool:
    axis, is_upper = divmod(face, 2)
    return (child.stop if is_upper else child.start)[axis] == (box.stop if is_upper else box.start)[
        axis
    ]


def _below(children: Mapping[BoundingBox, OpenGraph], child: BoundingBox, axis: int) -> OpenGraph:
    for other, graph in children.items():
        same = all(
            other.start[a] == child.start[a] and other.stop[a] == child.stop[a]
            for a in range(3)
            if a != axis
        )
        if same and other.stop[axis] == child.start[axis]:
            return graph
    msg = f"no box below {child} along axis {axis}"
    raise KeyError(msg)
