"""Fragments of one task, and the contacts between them, from chunks with margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.core.affinity_layout import DEFAULT_LAYOUT, AffinityLayout
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, OptionError, needs_extra
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import (
    as_edges,
    check_sums,
    least_edge,
)
from chunkflow_py.segmentation.agglomeration.edge_fragments import (
    ChosenEdges,
    FragmentMethod,
    FragmentRule,
    components,
)
from chunkflow_py.segmentation.agglomeration.region_merging import OpenGraph
from chunkflow_py.segmentation.labels.components import single_channel
from chunkflow_py.segmentation.labels.numbering import global_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

    from chunkflow_py.core.chunk import Chunk


@dataclass(frozen=True)
class FragmentOptions:
    """Options of the rule by which each voxel chooses edges, which join the voxel to neighbours.

    See `edge_fragments.FragmentRule`.

    Attributes:
        method: ``distance`` or ``affinity``.
        low, high: thresholds of `FragmentRule`, as affinities in [0, 1].
    """

    method: FragmentMethod
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the thresholds.

        Raises:
            OptionError: a threshold is outside of [0, 1], or the low one is above the high one.
        """
        for name, value in (("low", self.low), ("high", self.high)):
            if not 0 <= value <= 1:
                msg = f"--aff-threshold-{name} {value:g} is an affinity, so it must be in [0, 1]"
                raise OptionError(msg)
        if self.low > self.high:
            msg = (
                f"--aff-threshold-low {self.low:g} is above --aff-threshold-high {self.high:g}; "
                "exchange the two"
            )
            raise OptionError(msg)

    def rule(self, dtype: DTypeLike, voxel_size_nm: Iterable[float]) -> FragmentRule:
        """Return the rule for integer affinities and a voxel size.

        Args:
            dtype: type of the integer affinities, uint8 or uint16.
            voxel_size_nm: voxel size, zyx, in nm.
        """
        sizes = tuple(voxel_size_nm)
        z, y, x = (max(1, round((size / min(sizes)) ** 2)) for size in sizes)
        return FragmentRule(
            self.method, least_edge(self.low, dtype), least_edge(self.high, dtype),
            weights=(z, y, x),
        )  # fmt: skip

    def required_input(
        self, box: BoundingBox, domain: BoundingBox, voxel_size_nm: Iterable[float]
    ) -> BoundingBox:
        """Return the box of the affinities that are needed to choose the edges in *box*.

        Either voxel of an edge can choose the edge. At the start of *box* along each axis, one
        voxel of an edge lies before *box*. Therefore, the result also contains the affinities that
        this voxel needs for its choice.
        """
        halo = self.rule("uint8", voxel_size_nm).halo
        around = BoundingBox(box.start - halo - 1, box.stop + halo)
        return around.intersection(domain)


def fragments_in(
    chunk: Chunk,
    box: BoundingBox,
    options: FragmentOptions,
    layout: AffinityLayout = DEFAULT_LAYOUT,
) -> tuple[Chunk, ChosenEdges]:
    """Return the fragments in the box of a task, and the edges that voxels in the box choose.

    Args:
        chunk: affinities, (3, z, y, x); must contain `FragmentOptions.required_input` of *box*.
        box: box of the task.
        options: rule by which voxels choose edges.
        layout: order of the channels, and which of the two voxels of an edge stores its affinity.

    Returns:
        A chunk (z, y, x) of kind segmentation, uint64, and the chosen edges. The id of a fragment
        is 1 plus the raster index, in the volume, of the fragment's first voxel in the box. 0 is
        background.

    Raises:
        GeometryError: the chunk does not contain the margin that the rule needs.
        ChunkError: the chunk does not contain affinities.
    """
    needed = options.required_input(box, chunk.domain, chunk.voxel_size_nm)
    if not chunk.bbox.contains(needed):
        msg = (
            f"the fragments in {box} depend on the affinities in {needed}, but only {chunk.bbox} "
            "was loaded (zyx, voxels); add --expand-margin-size auto to the loader"
        )
        raise GeometryError(msg)
    edges = as_edges(chunk.cut(needed).array, layout)
    check_sums(chunk.domain, edges.dtype)
    rule = options.rule(edges.dtype, chunk.voxel_size_nm)
    joins, background = rule.choose(edges)
    own = box.slices(needed.start)
    chosen = ChosenEdges(joins[(slice(None), *own)], background[own])
    with needs_extra("segmentation", "fragment-affinity"):
        labels = components(chosen)
    ids = global_ids(labels, box, box, chunk.domain)
    return chunk.cut(box).with_array(ids, kind="segmentation"), chosen


@dataclass(frozen=True)
class TaskContacts:
    """Contacts and sizes of the fragments of one task.

    Attributes:
        graph: regions of the box and their contacts, before the first merge.
        counted: contacts in the box, and across its lower faces (at its start along each axis).
            The neighbouring tasks count the contacts across the other faces.
        ids: fragments in the box.
        sizes: number of voxels of each fragment in the box.
    """

    graph: OpenGraph
    counted: Contacts
    ids: NDArray[np.uint64]
    sizes: NDArray[np.int64]


def contacts_in(
    fragments: Chunk, affinity: Chunk, box: BoundingBox, layout: AffinityLayout = DEFAULT_LAYOUT
) -> TaskContacts:
    """Return the contacts of the fragments in the box of a task.

    Args:
        fragments: fragments, (z, y, x); must contain *box*, enlarged by one voxel on each side
            where the volume continues.
        affinity: affinities, (3, z, y, x), of at least the same voxels.
        box: box of the task.
        layout: order of the channels, and which of the two voxels of an edge stores its affinity.

    Raises:
        GeometryError: the margin of one voxel is missing.
        ChunkError: the two chunks come from volumes with different bounds, or do not contain
            fragments and affinities.
    """
    domain = fragments.domain
    if affinity.domain != domain:
        msg = (
            f"the affinities have the bounds {affinity.domain}, but the fragments have {domain} "
            "(zyx, voxels); use the volume from which the fragments were made"
        )
        raise ChunkError(msg)
    around = box.grow(Zyx(1, 1, 1)).intersection(domain)
    for name, chunk in (("fragments", fragments), ("affinities", affinity)):
        if not chunk.bbox.contains(around):
            msg = (
                f"to find touching fragments in {box}, this task needs the {name} in {around}, but "
                f"only {chunk.bbox} was loaded (zyx, voxels); add --expand-margin-size auto to the "
                "loader"
            )
            raise GeometryError(msg)
    labels = single_channel(fragments.cut(around).array)
    if labels.dtype != np.uint64:
        msg = f"the fragments are {labels.dtype}, not uint64; make them with fragment-affinity"
        raise ChunkError(msg)
    edges = as_edges(affinity.cut(around).array, layout)
    check_sums(domain, edges.dtype)
    graph = OpenGraph.of_box(labels, edges, box, domain)
    owned = graph.crossing.rows(graph.face % 2 == 0)
    counted = Contacts.joined((graph.inside, owned)).summed()
    ids, sizes = np.unique(labels[box.slices(around.start)], return_counts=True)
    used = ids != 0
    return TaskContacts(graph, counted, ids[used], sizes[used].astype(np.int64))
