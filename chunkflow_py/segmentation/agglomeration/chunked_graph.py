"""Supervoxels and their edges, in the files that PyChunkedGraph reads for each chunk.

PyChunkedGraph (https://github.com/CAVEconnectome/PyChunkedGraph) is a server for proofreading. It
divides the volume into chunks. The part of a fragment in one chunk is a supervoxel. An edge joins
two supervoxels that touch. In this example, fragments A and B extend into two chunks:

```
chunk 0    | chunk 1       supervoxels 0.1 and 0.2 in chunk 0, 1.1 and 1.2 in chunk 1
  A  A  A  |  A  B         0.1 and 1.1 are the parts of A, 0.2 and 1.2 the parts of B
  A  B  B  |  B  B

in_chunk         0.1-0.2, 1.1-1.2     both supervoxels are in one chunk
cross_chunk      0.1-1.1, 0.2-1.2     parts of one fragment in two chunks
between_chunk    0.2-1.1 and so on    parts of two fragments in two chunks
```

The id of a supervoxel consists of the layer (1 for supervoxels), the coordinates of the chunk, and
a number that counts from 1 in the chunk:

```
bits    8      b    b    b    56 - 3 b
        layer  x    y    z    number             b: spatial bits, the same for each axis
```

Each chunk has two files, named after its coordinates:

```
edges_X_Y_Z.proto.zst     edges, as a protobuf message compressed with zstd; see `edges_file`
components_X_Y_Z.proto    the supervoxels of each segment; see `components_file`
```

In the file of a chunk, the first id of each edge belongs to a supervoxel of this chunk. So an edge
between two chunks is in the files of both chunks.
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
    """Divides a volume into chunks, and numbers the supervoxels of each chunk.

    Attributes:
        domain: bounds of the volume, voxels. The first chunk begins at the start of the volume.
        size: size of a chunk, voxels, zyx.
        bits: number of bits that an id has for each of the three coordinates of its chunk.
    """

    domain: BoundingBox
    size: Zyx
    bits: int

    @classmethod
    def of(cls, domain: BoundingBox, size: Zyx, bits: int | None = None) -> ChunkGrid:
        """Return the division of the volume *domain* into chunks of *size* voxels.

        Args:
            domain: bounds of the volume, voxels.
            size: size of a chunk, voxels, zyx.
            bits: number of bits that an id has for each of the three coordinates of its chunk
                (default: as few as the number of chunks needs).

        Raises:
            OptionError: *bits* is too small for the number of chunks, or leaves too few bits of the
                id for the supervoxels of a chunk.
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
                f"a chunk, which are too few for a chunk of {size} voxels (zyx); give a smaller "
                "--spatial-bits or a larger --graph-chunk-size"
            )
            raise OptionError(msg)
        return grid

    @property
    def number_bits(self) -> int:
        """Number of bits in an id that number the supervoxels within a chunk."""
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
                    f"the task {box} divides chunks of size {self.size} along {name}; the chunks "
                    f"begin at {self.domain.start} (zyx, voxels); make tasks of whole chunks, for "
                    f"example with generate-tasks --chunk-size {' '.join(map(str, self.size))}"
                )
                raise GeometryError(msg)
        first, last = low // self.size, (high + self.size - 1) // self.size
        for place in product(*(range(a, b) for a, b in zip(first, last, strict=True))):
            start = self.domain.start + Zyx(*place) * self.size
            yield Zyx(*place), BoundingBox(start, start + self.size).intersection(self.domain)

    def base(self, place: Zyx) -> int:
        """Return the id that precedes the first supervoxel id of a chunk.

        No supervoxel has this id, because supervoxels are numbered from 1 in each chunk.

        Args:
            place: index of the chunk along z, y and x.
        """
        z, y, x = (int(n) for n in place)
        packed = (((_SUPERVOXELS << self.bits | x) << self.bits | y) << self.bits) | z
        return packed << self.number_bits


def split_supervoxels(
    labels: NDArray[Any], box: BoundingBox, grid: ChunkGrid
) -> NDArray[np.uint64]:
    """Split labels at the boundaries of chunks, and return the supervoxel id of each voxel.

    In each chunk, labels are numbered from 1 in ascending order. So the ids in a chunk depend only
    on the labels in this chunk. Background, 0, stays 0.

    Args:
        labels: (z, y, x) labels of the voxels in *box*.
        box: box of the labels, voxels; must consist of whole chunks.
        grid: division of the volume into chunks.

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
    """Edges of a chunk, in arrays with one entry for each edge; see `ChunkEdges`.

    Attributes:
        first: id of the supervoxel in the chunk, uint64.
        second: id of the other supervoxel, uint64.
        affinity: mean affinity between the two supervoxels, in [0, 1], float32; infinite if the
            supervoxels are parts of one fragment.
        area: number of voxel faces between the two supervoxels, uint64; 1 if the supervoxels are
            parts of one fragment.
    """

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    affinity: NDArray[np.float32]
    area: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ChunkEdges:
    """The edges of one chunk, and the segments of its supervoxels.

    Attributes:
        in_chunk: edges between two supervoxels of the chunk; `Edges.first` is the smaller id.
        cross_chunk: edges to other parts of the same fragment, in neighbouring chunks.
        between_chunk: edges to parts of other fragments, in neighbouring chunks.
        components: one array of supervoxel ids for each segment. An array contains the segment's
            supervoxels in this chunk. It also contains the segment's supervoxels in neighbouring
            chunks, if an edge joins them to a supervoxel of this chunk.
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
        supervoxels: (z, y, x) ids of the fragments after they were split at the boundaries of
            chunks, for the voxels in *around*; see `split_supervoxels`.
        fragments: (z, y, x) ids of the fragments before they were split, for the voxels in
            *around*.
        segments: (z, y, x) segment ids of the voxels in *around*. Each segment must consist of
            whole fragments.
        edges: (3, z, y, x) affinities of the voxels in *around*, as integers; see
            `edge_affinities`.
        around: box of the chunk, enlarged by one voxel on each side where the volume continues.
        grid: division of the volume into chunks.
        place: index of the chunk along z, y and x.

    Raises:
        ChunkError: a supervoxel in the chunk has an id that belongs to another chunk, or the
            background voxels of the three arrays are not the same.
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
                f"some voxels are background (0) in the supervoxels, but not in the {name}, or the "
                "reverse; give the fragments that were the input of split-supervoxels, and "
                "segments that consist of these fragments"
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

    The content is a protobuf message of the type ChunkEdgesMsg, compressed with zstd:

    ```
    message          numbers and names of the fields                           type of each field
    ChunkEdgesMsg    1 in_chunk    2 cross_chunk    3 between_chunk            EdgesMsg
    EdgesMsg         1 node_ids1   2 node_ids2      3 affinities    4 areas    bytes (an array)
    ```

    The arrays are little-endian.
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

    The content is a protobuf message with one field, a list of integers. For each segment, the list
    contains the number of its supervoxels, followed by the ids of these supervoxels.
    """
    numbers = (number for each in components for number in (len(each), *each.tolist()))
    packed = b"".join(_varint(number) for number in numbers)
    return _field(1, packed) if packed else b""


def _field(number: int, content: bytes) -> bytes:
    # A length-delimited field: https://protobuf.dev/programming-guides/encoding.
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    # Seven bits in each byte, the lowest bits first.
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
