"""Agglomeration of small volumes: a slow model, and the steps of segment-affinity by hand."""

from __future__ import annotations

import random
import secrets
from fractions import Fraction
from itertools import product

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.graph_levels import (
    merge_level,
    write_all_merges,
    write_segment_table,
)
from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings, GraphStore
from chunkflow_py.segmentation.agglomeration.region_merging import merge_box
from chunkflow_py.segmentation.agglomeration.task_fragments import contacts_in, fragments_in
from chunkflow_py.segmentation.labels.label_table import LabelTable, relabelled, solve, write_table
from chunkflow_py.segmentation.labels.links import distinct
from chunkflow_py.store.memory_store import MemoryStore


class Model:
    """Mean-affinity agglomeration with dictionaries: the definition.

    Args:
        rows: contacts as (region, region, sum, count, tie).
    """

    def __init__(self, rows):
        self.edges = {}
        for a, b, total, count, tie in rows:
            self.add(a, b, total, count, tie)

    def add(self, a, b, total, count, tie):
        for one, two in ((a, b), (b, a)):
            old = self.edges.setdefault(one, {}).get(two)
            self.edges[one][two] = (
                (total, count, tie)
                if old is None
                else (old[0] + total, old[1] + count, min(old[2], tie))
            )

    def key(self, a, b):
        total, count, tie = self.edges[a][b]
        return Fraction(total, count), -tie

    def greedy(self, least):
        """Merge the two regions of the best contact, until none reaches *least*."""
        merges = []
        while True:
            pairs = [(self.key(a, b), a, b) for a in self.edges for b in self.edges[a] if a < b]
            if not pairs or max(pairs)[0][0] < least:
                return merges
            (mean, tie), a, b = max(pairs)
            merges.append((mean, -tie, a, b))
            del self.edges[a][b], self.edges[b][a]
            for c, (total, count, edge) in self.edges.pop(b).items():
                del self.edges[c][b]
                self.add(a, c, total, count, edge)


def rows_of(fragments, edges):
    """Return the contacts of a whole volume for `Model`, edge by edge."""
    rows = []
    shape = fragments.shape
    for place in product(*map(range, shape)):
        for axis in range(3):
            if place[axis]:
                below = tuple(p - (a == axis) for a, p in enumerate(place))
                a, b = int(fragments[below]), int(fragments[place])
                if a != b and a and b:
                    voxel = int(np.ravel_multi_index(place, shape))
                    rows.append((a, b, int(edges[(axis, *place)]), 1, 3 * voxel + axis))
    return rows


def as_rows(contacts):
    """Return a table as tuples (mean, tie, first, second)."""
    columns = (column.tolist() for column in contacts.columns().values())
    return [(Fraction(s, n), tie, a, b) for a, b, s, n, tie in zip(*columns, strict=True)]


class Volume:
    """An affinity volume, which is segmented by tasks of any size, in any order.

    Args:
        edges: (3, z, y, x) affinities along z, y, x, as integers or floating point.
        options: rule of the fragments.
        start: global position of the first voxel.
    """

    def __init__(self, edges, options, start=(0, 0, 0)):
        self.box = BoundingBox.from_size(start, edges.shape[1:])
        self.affinity = Chunk(
            np.ascontiguousarray(edges[::-1]), self.box.start, kind="affinity", domain=self.box
        )
        self.options = options

    def fragments(self, task_size, rng):
        """Return the fragments by tasks, and the label table that joins them."""
        fragments = np.zeros(self.box.size, np.uint64)
        grid = BoxGrid.covering(self.box, Zyx(*task_size), respect_stop=True)
        joins = np.zeros((3, *self.box.size), bool)
        for box in shuffled(grid, rng):
            needed = self.options.required_input(box, self.box, (1, 1, 1))
            part, chosen = fragments_in(self.affinity.cut(needed), box, self.options)
            at = box.slices(self.box.start)
            fragments[at] = part.array
            joins[(slice(None), *at)] = chosen.joins
        links = [np.empty((0, 2), np.uint64)]
        for box in grid:
            at = box.slices(self.box.start)
            for axis in range(3):
                if box.start[axis] == self.box.start[axis]:
                    continue
                face = tuple(slice(s.start, s.start + 1) if a == axis else s
                             for a, s in enumerate(at))  # fmt: skip
                below = tuple(slice(s.start - 1, s.start) if a == axis else s
                              for a, s in enumerate(at))  # fmt: skip
                chosen = joins[(axis, *face)]
                links.append(np.stack((fragments[below][chosen], fragments[face][chosen]), 1))
        table = solve([(Region(self.box), distinct(np.concatenate(links)))])
        return fragments, table[None]

    def segmented(self, task_size, threshold, seed=0, max_threshold=0.95, **small):
        """Return final fragments, hierarchy rows and segments of a division into tasks."""
        rng = random.Random(seed)
        local, changes = self.fragments(task_size, rng)
        name = f"agglomeration-{secrets.token_hex(8)}"
        tables = MemoryStore(f"{name}/fragments"), MemoryStore(f"{name}/segments")
        write_table(tables[0], changes)
        final = relabelled(local, LabelTable(tables[0]))
        chunk = Chunk(final, self.box.start, kind="segmentation", domain=self.box)
        dtype = "uint8" if self.affinity.dtype == np.uint8 else "uint16"
        settings = GraphSettings(str(self.box), tuple(task_size), dtype, max_threshold)
        store = MemoryStore(f"{name}/graph")
        for box in shuffled(settings.grid(0), rng):
            around = box.grow((1, 1, 1)).intersection(self.box)
            found = contacts_in(chunk.cut(around), self.affinity.cut(around), box)
            merges, graph = merge_box(found.graph, settings.least)
            graphs = GraphStore(store, settings)
            graphs.write_contacts(box, found.counted, found.ids, found.sizes)
            graphs.write_level(box, 0, merges, graph)
        for level in range(1, settings.last_level + 1):
            for box in shuffled(settings.grid(level), rng):
                merge_level(GraphStore(store), box, level, Zyx(*task_size))
        hierarchy = MemoryStore(f"{name}/hierarchy")
        write_all_merges(GraphStore(store, settings), hierarchy, settings.last_level)
        write_segment_table(hierarchy, store, *tables, threshold, **small)
        return final, hierarchy, relabelled(local, LabelTable(tables[1]))


def shuffled(boxes, rng):
    """Return *boxes* in a random order."""
    boxes = list(boxes)
    rng.shuffle(boxes)
    return boxes


def model_segments(fragments, edges, least):
    """Return the segments of the slow model on the whole volume."""
    merges = Model(rows_of(fragments, edges)).greedy(least)
    name = {lost: kept for _, _, kept, lost in merges}

    def root(label):
        while label in name:
            label = name[label]
        return label

    return np.vectorize(root, otypes=[np.uint64])(fragments) if fragments.size else fragments


def absorbed_by_hand(segment_of, sizes, rows, smallest, floor):
    """Return fragment -> segment after small segments were united, round by round.

    Args:
        segment_of: fragment -> segment.
        sizes: fragment -> voxels.
        rows: contacts as (fragment, fragment, sum, count, tie).
        smallest: smallest size of a segment.
        floor: least mean of a contact.
    """
    while True:
        voxels = {}
        for fragment, count in sizes.items():
            segment = segment_of[fragment]
            voxels[segment] = voxels.get(segment, 0) + count
        model = Model((segment_of[a], segment_of[b], s, n, t) for a, b, s, n, t in rows
                      if segment_of[a] != segment_of[b])  # fmt: skip
        picks = []
        for segment, count in voxels.items():
            others = model.edges.get(segment, {})
            if count < smallest and others:
                best = max(others, key=lambda other, at=segment: model.key(at, other))
                if model.key(segment, best)[0] >= floor:
                    picks.append((segment, best))
        if not picks:
            return segment_of
        for pick in picks:
            names = {root: root for root in voxels}
            ends = [segment_of.get(each, each) for each in pick]
            low, high = min(ends), max(ends)
            names[high] = low
            segment_of = {f: low if g == high else g for f, g in segment_of.items()}


def contacts_from(rows):
    """Return a table of contacts from tuples (first, second, sum, count, tie)."""
    if not rows:
        return Contacts.none()
    first, second, *numbers = zip(*rows, strict=True)
    ids = (np.array(each, np.uint64) for each in (first, second))
    return Contacts(*ids, *(np.array(each, np.int64) for each in numbers))
