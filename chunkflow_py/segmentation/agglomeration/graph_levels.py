"""Merge the stored graphs of boxes level by level, and write the hierarchy and segment tables.

The graph of a box consists of its regions and their contacts. A box of a higher level consists of
smaller boxes; see `graph_store`.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import islice, repeat
from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.errors import OptionError
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean, scale_of
from chunkflow_py.segmentation.agglomeration.graph_store import GraphStore
from chunkflow_py.segmentation.agglomeration.hierarchy import Segments, absorbed, cut
from chunkflow_py.segmentation.agglomeration.hierarchy_store import (
    read_hierarchy,
    write_hierarchy,
)
from chunkflow_py.segmentation.agglomeration.region_merging import combined, merge_box
from chunkflow_py.segmentation.labels.label_table import LabelTable, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings
    from chunkflow_py.segmentation.agglomeration.region_merging import Merges
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

_READ_TOGETHER = 64  # objects, so that those of all boxes need not fit into memory


def merge_level(graphs: GraphStore, box: BoundingBox, level: int, task_size: Zyx) -> str:
    """Combine the graphs of the smaller boxes in *box*, merge regions, and store the result.

    Args:
        graphs: store of the graph.
        box: box whose regions are merged, voxels.
        level: number of the level of *box*. A box of level 1 consists of 2 x 2 x 2 boxes of tasks.
        task_size: size of the tasks of measure-contacts, voxels, zyx.

    Returns:
        A summary as text: the number of contacts before the merges, the number of merges, and the
        number of contacts that remain for a larger box.

    Raises:
        GeometryError: the box does not belong to the level.
        VolumeError: the stored graph of one of the smaller boxes is missing or damaged.
    """
    settings = graphs.settings_below(box, level, task_size)
    settings.check(box, level)
    children = settings.children(box, level)
    with ThreadPoolExecutor(graphs.store.connections, "graph") as threads:
        found = list(threads.map(lambda child: graphs.read_graph(child, level - 1), children))
    graph = combined(dict(zip(children, found, strict=True)), box)
    merges, left = merge_box(graph, settings.least)
    graphs.write_level(box, level, merges, left)
    return (
        f"{len(graph.inside)} contacts, {len(merges)} merges, {len(left.inside)} contacts left open"
    )


def write_all_merges(graphs: GraphStore, hierarchy: Store, level: int) -> None:
    """Write the hierarchy: the merges of all boxes, in the order of the greedy algorithm.

    Args:
        graphs: store of the graph, after the merges of the last level.
        hierarchy: store of the hierarchy.
        level: number of the last level of merges, at which one box covers the volume.

    Raises:
        OptionError: *level* is not the last level of the volume.
        VolumeError: the merges of a box are missing or damaged.
    """
    settings = graphs.known_settings
    if level != settings.last_level:
        msg = (
            f"--hierarchy-path was given at level {level}, but the last level of the volume "
            f"{settings.domain} with --task-size {settings.size.as_option} is "
            f"{settings.last_level}; give --hierarchy-path at that level"
        )
        raise OptionError(msg)
    write_hierarchy(hierarchy, _all_merges(graphs, settings, level), settings)


def _all_merges(graphs: GraphStore, settings: GraphSettings, last_level: int) -> Iterator[Merges]:
    with ThreadPoolExecutor(graphs.store.connections, "graph") as threads:
        for level in range(last_level + 1):
            boxes = iter(settings.grid(level))
            while some := list(islice(boxes, _READ_TOGETHER)):
                yield from threads.map(graphs.read_merges, some, repeat(level))


def write_segment_table(
    hierarchy: Store,
    graph: Store,
    fragments: Store,
    table: Store,
    threshold: float,
    min_size: int = 0,
    min_affinity: float = 0.0,
) -> None:
    """Write the table that maps each fragment id, made by fragment-affinity, to a segment id.

    Args:
        hierarchy: store of the hierarchy.
        graph: store of the graph, whose contacts are read if *min_size* is above 1.
        fragments: store of the table that solve-labels has written for the fragments.
        table: store of the table to write.
        threshold: regions are merged while 1 - mean affinity is at most this.
        min_size: each segment with fewer voxels than this is united with the neighbour to which its
            mean affinity is greatest; 0 unites no segments.
        min_affinity: smallest mean affinity at which a small segment is united, in [0, 1].

    Raises:
        OptionError: *threshold* is above the highest threshold of the hierarchy.
        VolumeError: the hierarchy or the fragment table is missing or damaged.
    """
    merges, settings = read_hierarchy(hierarchy, threshold)
    pairs = cut(merges, least_mean(threshold, settings.dtype))
    merged = len(pairs)
    if min_size > 1:
        pairs = absorbed(
            pairs, *fragment_graph(graph, settings), min_size,
            Fraction(str(min_affinity)) * scale_of(settings.dtype),
        )  # fmt: skip
    old = LabelTable(fragments).entries()
    segments = Segments(pairs)
    changes = segments.changes
    own = np.stack((old[:, 0], segments(old[:, 1])), axis=1)
    rows = np.concatenate((own, changes))
    write_table(table, rows[np.argsort(rows[:, 0], kind="stable")])
    logger.info(
        "threshold %g: %d merges of regions, then %d merges of small segments",
        *(threshold, merged, len(pairs) - merged),
    )


def fragment_graph(
    graph: Store, settings: GraphSettings
) -> tuple[Contacts, tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Return all contacts of fragments, and the ids and sizes of the fragments.

    Args:
        graph: store of the graph.
        settings: settings of the graph.

    Returns:
        The contacts, in the form of `Contacts.summed`; and a pair of arrays: the ids of the
        fragments of all tasks, and the number of voxels of each of these fragments. A fragment that
        lies in several tasks has several entries.

    Raises:
        VolumeError: the contacts of a task are missing or damaged.
    """
    graphs = GraphStore(graph, settings)
    with ThreadPoolExecutor(graph.connections, "graph") as threads:
        parts = list(threads.map(graphs.read_contacts, settings.grid(0)))
    contacts = Contacts.joined(table for table, _, _ in parts).summed()
    ids = np.concatenate([each for _, each, _ in parts])
    sizes = np.concatenate([each for _, _, each in parts])
    return contacts, (ids, sizes)
