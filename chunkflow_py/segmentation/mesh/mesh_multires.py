"""One mesh in several levels of detail, cut into cells that a viewer loads by themselves.

```
level 0     | | | | |     cells of chunk_shape: all triangles
level 1     |   |   |     cells of twice that, a quarter of the triangles
level 2     |       |     one cell around the object
```

Format: Neuroglancer, ``datasource/precomputed/meshes.md``, multi-resolution, unsharded: vertices
are integers of 16 bits in their cell, encoded by Draco; triangles do not cross the faces of cells,
nor those of the cells of the level below.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import needs_extra
from chunkflow_py.segmentation.mesh.mesh_cut import cut
from chunkflow_py.segmentation.mesh.mesh_format import Mesh, welded

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = 16
INFO: dict[str, Any] = {
    "@type": "neuroglancer_multilod_draco",
    "vertex_quantization_bits": BITS,
    "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "lod_scale_multiplier": 1.0,
}
_MOST = (1 << BITS) - 1
_CELL_FACES = 16384  # triangles that a cell should have about
_LEVELS = 8
_COMPRESSION = 7  # of Draco, 0 to 10
_Cell = tuple[int, int, int]


def multires(mesh: Mesh) -> tuple[bytes, bytes]:
    """Return the manifest and the data of a mesh.

    Args:
        mesh: of one object, welded; not empty.

    Raises:
        MissingExtraError: DracoPy or zmesh is not installed.
    """
    with needs_extra("precomputed", "mesh-manifest --multires"):
        import DracoPy  # noqa: F401
    with needs_extra("mesh", "mesh-manifest --multires"):
        import zmesh  # noqa: F401
    levels = level_count(len(mesh.faces))
    origin = mesh.vertices.min(axis=0)
    extent = np.maximum(mesh.vertices.max(axis=0) - origin, 1e-3)  # flat ones have a thickness
    # a little larger, so that arithmetic leaves no vertex outside
    shape = (extent * (1 + 1e-5) / (1 << (levels - 1))).astype(np.float32)
    # how coarse each level looks, as the viewer compares it with the pixels of the screen
    scale = _edge_length(mesh)
    counts: list[int] = []
    tables: list[bytes] = []
    data: list[bytes] = []
    for level in range(levels):
        coarse = mesh if level == 0 else _simplified(mesh, 4**level)
        cells = _encoded_cells(coarse, shape, origin, level, levels)
        counts.append(len(cells))
        positions = np.array(list(cells), "<u4").reshape(-1, 3)
        tables.append(np.ascontiguousarray(positions.T).tobytes())
        tables.append(np.array([len(part) for part in cells.values()], "<u4").tobytes())
        data += cells.values()
    header = [
        shape.astype("<f4"),
        origin.astype("<f4"),
        np.array([levels], "<u4"),
        np.array([scale * 2**level for level in range(levels)], "<f4"),
        np.zeros((levels, 3), "<f4"),
        np.array(counts, "<u4"),
    ]
    return b"".join([*(part.tobytes() for part in header), *tables]), b"".join(data)


def level_count(faces: int) -> int:
    """Return the number of levels: each cell of the finest has few enough triangles.

    A surface has four times as many cells at each finer level.
    """
    return min(_LEVELS, 1 + max(0, math.ceil(math.log(max(1, faces) / _CELL_FACES, 4))))


def _edge_length(mesh: Mesh) -> float:
    ends = mesh.vertices[mesh.faces[:, :2]].astype(np.float64)
    return float(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1).mean())


def _simplified(mesh: Mesh, factor: int) -> Mesh:
    import zmesh

    raw = zmesh.Mesh(mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32), None)
    found = zmesh.simplify_fqmr(raw, max(4, len(mesh.faces) // factor))
    # Nothing may leave the cells, which are those of the whole mesh.
    vertices = np.clip(found.vertices, mesh.vertices.min(axis=0), mesh.vertices.max(axis=0))
    return Mesh(vertices, found.faces)


def _encoded_cells(
    mesh: Mesh, shape: NDArray[Any], origin: NDArray[Any], level: int, levels: int
) -> dict[_Cell, bytes]:
    """Return the parts of a level by their cells, in Z-curve order."""
    half = max(0, level - 1)  # also cut where the cells of the level below end
    count, by = 1 << (levels - 1 - half), 1 << (level - half)
    low, size = origin.astype(np.float64), shape.astype(np.float64)
    planes = [[low[axis] + size[axis] * (k << half) for k in range(1, count)] for axis in range(3)]
    children: dict[_Cell, list[Mesh]] = {}
    for x, slab in enumerate(cut(mesh, 0, planes[0])):
        for y, row in enumerate(cut(slab, 1, planes[1])):
            for z, part in enumerate(cut(row, 2, planes[2])):
                if not part.is_empty:
                    children.setdefault((x // by, y // by, z // by), []).append(part)
    size = size * (1 << level)
    encoded = {
        cell: _encoded(children[cell], low + size * cell, size)
        for cell in sorted(children, key=_along_curve)
    }
    return {cell: data for cell, data in encoded.items() if data}


def _encoded(parts: list[Mesh], low: NDArray[Any], size: NDArray[Any]) -> bytes:
    """Return one cell, encoded by Draco, with vertices as integers in it."""
    import DracoPy

    whole = []
    for part in parts:
        # What lies in the middle of a cell, at 32767.5, has to go one way, whatever arithmetic
        # has made of it.
        places = np.floor((part.vertices - low) / size * _MOST + 0.5 + 1e-6)
        whole.append(Mesh(np.clip(places, 0, _MOST), part.faces))
    mesh = welded(whole)
    if mesh.is_empty:
        return b""
    data: bytes = DracoPy.encode(
        mesh.vertices.astype(np.uint32), mesh.faces, compression_level=_COMPRESSION
    )
    return data


def _along_curve(cell: _Cell) -> int:
    """Return the place of a cell on the Z-curve: bits of x lowest, then y, then z."""
    return sum(
        (value >> bit & 1) << (3 * bit + axis)
        for axis, value in enumerate(cell)
        for bit in range(_LEVELS)
    )
