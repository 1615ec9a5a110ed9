"""Supervoxels and their edges as PyChunkedGraph ingests them: chunk by chunk.

PyChunkedGraph (https://github.com/CAVEconnectome/PyChunkedGraph) is a server for proofreading. It
divides the volume into chunks. A supervoxel that several chunks share becomes one supervoxel in
each:

```
chunk 0    | chunk 1            fragments A and B       supervoxels 0.1 and 0.2, 1.1 and 1.2
  A  A  A  |  A  B              0.1-0.2, 1.1-1.2        in_chunk: mean affinity, number of faces
  A  B  B  |  B  B              0.1-1.1, 0.2-1.2        cross_chunk: parts of one fragment
                                0.1-1.2 and so on       between_chunk: if they touch
```

An id holds the layer (1 for supervoxels), the chunk and a number that counts from 1 in the chunk:

```
bits    8      b    b    b    56 - 3 b
        layer  x    y    z    number             b: spatial bits, the same for each axis
```

Each chunk has two files, named after its coordinates:

```
edges_X_Y_Z.proto.zst     a message of protobuf, packed with zstd; see `edges_file`
components_X_Y_Z.proto    sizes and members of the segments of supervoxels; see `components_file`
```

The first id of an edge is that of a supervoxel in the chunk. So an edge between two chunks is in
the files of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, OptionError
from chunkflow_py.segmentation.agglomeration.contacts import contacts_of
from chunkflow_py.segmentation.agglomeration.edge_affinities import check_sums, scale_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_LAYER_BITS, _SUPERVOXELS = 8, 1
_ZSTD_LEVEL = 17  # as PyChunkedGraph itself


@dataclass(frozen=True)
class ChunkGrid:
    """The chunks of a volume, and the ids of supervoxels.

    Attributes:
        domain: bounds of the volume, voxels; the first chunk begins at its start.
        size: size of a chunk, voxels, zyx.
        bits: spatial bits for each axis.
    """

    domain: BoundingBox
    size: Zyx
    bits: int

    @classmethod
    def of(cls, domain: BoundingBox, size: Zyx, bits: int | None = None) -> ChunkGrid:
        """Return the grid of a volume.

        Args:
            domain: bounds of the volume, voxels.
            size: size of a chunk, voxels, zyx.
            bits: spatial bits (default: as few as the chunks need).

        Raises:
            OptionError: there are too few bits for the chunks, or for the supervoxels of a chunk.
        """
        count = (domain.size + size - 1) // size
        least = max(1, max(int(n) - 1 for n in count).bit_length())
        bits = least if bits is None else bits
        if bits < least:
            msg = (
                f"--spatial-bits {bits} is too small for {count} chunks (zyx); give at least "
                f"{least}"
            )
            raise OptionError(msg)
        grid = cls(domain, size, bits)
        if grid.number_bits < 1 or size.product() >= 1 << grid.number_bits:
            msg = (
                f"{bits} spatial bits leave {max(0, grid.number_bits)} bits for the supervoxels of "
                f"a chunk of {size} voxels (zyx); give a smaller --spatial-bits or a larger "
                "--graph-chunk-size"
            )
            raise OptionError(msg)
        return grid

    @property
    def number_bits(self) -> int:
        """Number of bits for the number of a supervoxel in its chunk."""
        return 64 - _LAYER_BITS - 3 * self.bits

    def chunks(self, box: BoundingBox) -> Iterator[tuple[Zyx, BoundingBox]]:
        """Yield the coordinates and the box of each chunk in *box*, in raster order.

        Raises:
            GeometryError: the box divides a chunk.
        """
        low, high = box.start - self.domain.start, box.stop - self.domain.start
        ends = self.domain.size
        for axis, name in enumerate("zyx"):
            at_end = high[axis] == ends[axis]
            if low[axis] % self.size[axis] or (high[axis] % self.size[axis] and not at_end):
                msg = (
                    f"the task {box} divides chunks of size {self.size} along {name} (zyx, "
                    f"voxels), which begin at {self.domain.start}; make tasks of whole chunks, "
                    f"such as generate-tasks --chunk-size {' '.join(map(str, self.size))}"
                )
                raise GeometryError(msg)
        first, last = low // self.size, (high + self.size - 1) // self.size
        for place in product(*(range(a, b) for a, b in zip(first, last, strict=True))):
            start = self.domain.start + Zyx(*place) * self.size
            yield Zyx(*place), BoundingBox(start, start + self.size).intersection(self.domain)

    def base(self, place: Zyx) -> int:
        """Return the id of number 0 in the chunk at *place*."""
        z, y, x = (int(n) for n in place)
        packed = (((_SUPERVOXELS << self.bits | x) << self.bits | y) << self.bits) | z
        return packed << self.number_bits


def split_supervoxels(
    labels: NDArray[Any], box: BoundingBox, grid: ChunkGrid
) -> NDArray[np.uint64]:
    """Return the ids of supervoxels, which end at the boundaries of chunks.

    In each chunk, labels are numbered from 1 in ascending order, so the ids depend on the labels of
    the chunk alone. Background, 0, stays 0.

    Args:
        labels: (z, y, x) labels of the voxels in *box*.
        box: whole chunks, voxels.
        grid: the chunks.

    Raises:
        GeometryError: the box divides a chunk.
    """
    result = np.zeros(labels.shape, np.uint64)
    for place, inside in grid.chunks(box):
        where = inside.slices(box.start)
        found, numbers = np.unique(labels[where], return_inverse=True)
        first = 0 if len(found) and found[0] == 0 else 1
        ids = np.uint64(grid.base(place)) + np.arange(first, first + len(found), dtype=np.uint64)
        ids[found == 0] = 0
        result[where] = ids[numbers.reshape(result[where].shape)]
    return result


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of one type.

    Attributes:
        first: ids of supervoxels in the chunk, uint64.
        second: ids of their partners, uint64.
        affinity: mean affinity of each edge, in [0, 1], float32; infinite for parts of a fragment.
        area: number of voxel faces, uint64; 1 for parts of a fragment.
    """

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    affinity: NDArray[np.float32]
    area: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ChunkEdges:
    """The edges of one chunk, and the segments of its supervoxels.

    Attributes:
        in_chunk: edges between supervoxels of the chunk, the smaller id first.
        cross_chunk: edges to other parts of the same fragment, in neighbouring chunks.
        between_chunk: edges to parts of other fragments, in neighbouring chunks.
        components: ids of the supervoxels of each segment, in this chunk and in those parts of
            neighbouring chunks that touch it.
    """

    in_chunk: Edges
    cross_chunk: Edges
    between_chunk: Edges
    components: Sequence[NDArray[np.uint64]]


def edges_of_chunk(
    supervoxels: NDArray[np.uint64],
    fragments: NDArray[np.uint64],
    segments: NDArray[Any],
    edges: NDArray[Any],
    around: BoundingBox,
    grid: ChunkGrid,
    place: Zyx,
) -> ChunkEdges:
    """Return the edges and segments of the chunk at *place*.

    Args:
        supervoxels: (z, y, x) result of `split_supervoxels`, of the voxels in *around*.
        fragments: labels from which the supervoxels were made, of the same voxels.
        segments: ids of segments, each of which consists of whole fragments, of the same voxels.
        edges: (3, z, y, x) affinities as integers, of the same voxels; see `edge_affinities`.
        around: the chunk and one voxel around it, as far as the volume reaches.
        grid: the chunks.
        place: coordinates of the chunk, zyx.

    Raises:
        ChunkError: the supervoxels do not belong to these chunks, or not to the fragments.
    """
    check_sums(grid.domain, edges.dtype)
    base = np.uint64(grid.base(place))
    shift = np.uint64(grid.number_bits)
    start = grid.domain.start + place * grid.size
    box = BoundingBox(start, start + grid.size).intersection(grid.domain)
    ids, at = np.unique(supervoxels, return_index=True)
    inside = np.unique(supervoxels[box.slices(around.start)])
    used = inside != 0
    if (inside[used] >> shift != base >> shift).any():
        wrong = inside[used][inside[used] >> shift != base >> shift][0]
        msg = (
            f"supervoxel {wrong} in chunk {'_'.join(map(str, place[::-1]))} (xyz) has the id of "
            "another chunk; give the --graph-chunk-size and --spatial-bits with which "
            "split-supervoxels ran"
        )
        raise ChunkError(msg)
    of_fragment, of_segment = fragments.ravel()[at], segments.ravel()[at]
    for name, labels in (("fragments", of_fragment), ("segments", of_segment)):
        if ((labels == 0) != (ids == 0)).any():
            msg = (
                f"supervoxels and {name} have different background; give the fragments from which "
                "split-supervoxels made the supervoxels, and segments of these fragments"
            )
            raise ChunkError(msg)
    found = contacts_of(supervoxels, edges, around.start, grid.domain)
    is_own = [each >> shift == base >> shift for each in (found.first, found.second)]
    touching = found.rows(is_own[0] | is_own[1])
    own_first = touching.first >> shift == base >> shift
    own_second = touching.second >> shift == base >> shift
    first = np.where(own_first, touching.first, touching.second)
    second = np.where(own_first, touching.second, touching.first)
    is_inside = own_first & own_second
    is_part = of_fragment[np.searchsorted(ids, first)] == of_fragment[np.searchsorted(ids, second)]
    mean = touching.total / (touching.count * scale_of(edges.dtype))
    affinity = np.where(is_part, np.inf, mean).astype(np.float32)
    area = np.where(is_part, 1, touching.count).astype(np.uint64)

    def chosen(which: NDArray[np.bool_]) -> Edges:
        order = np.lexsort((second[which], first[which]))
        return Edges(
            first[which][order],
            second[which][order],
            affinity[which][order],
            area[which][order],
        )

    near = np.unique(np.concatenate((inside[used], second)))
    of_near = of_segment[np.searchsorted(ids, near)]
    order = np.lexsort((near, of_near))
    bounds = np.flatnonzero(np.diff(of_near[order])) + 1
    components = np.split(near[order], bounds) if len(near) else []
    return ChunkEdges(
        chosen(is_inside), chosen(~is_inside & is_part), chosen(~is_inside & ~is_part), components
    )


def edges_file(edges: ChunkEdges) -> bytes:
    """Return the content of ``edges_X_Y_Z.proto.zst``.

    The messages of protobuf, whose fields all are bytes or messages:

    ```
    ChunkEdgesMsg    1 in_chunk    2 cross_chunk    3 between_chunk             each an EdgesMsg
    EdgesMsg         1 node_ids1   2 node_ids2      3 affinities     4 areas    little-endian arrays
    ```
    """
    import numcodecs.zstd

    parts = (edges.in_chunk, edges.cross_chunk, edges.between_chunk)
    message = b"".join(
        _field(number, _edges_message(part)) for number, part in enumerate(parts, start=1)
    )
    return bytes(numcodecs.zstd.compress(message, _ZSTD_LEVEL))


def _edges_message(edges: Edges) -> bytes:
    columns = (
        edges.first.astype("<u8"), edges.second.astype("<u8"),
        edges.affinity.astype("<f4"), edges.area.astype("<u8"),
    )  # fmt: skip
    contents = (column.tobytes() for column in columns)
    return b"".join(_field(number, each) for number, each in enumerate(contents, start=1) if each)


def components_file(components: Sequence[NDArray[np.uint64]]) -> bytes:
    """Return the content of ``components_X_Y_Z.proto``.

    Field 1 of the message holds the number of supervoxels of a segment, then their ids, then the
    same of the next segment, and so on.
    """
    numbers = (number for each in components for number in (len(each), *each.tolist()))
    packed = b"".join(_varint(number) for number in numbers)
    return _field(1, packed) if packed else b""


def _field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf with a length: https://protobuf.dev/programming-guides/encoding."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return a number as protobuf stores it: seven bits a byte, the lowest ones first."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
