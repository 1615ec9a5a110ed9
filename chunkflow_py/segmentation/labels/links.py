"""Links: pairs of labels, one from each of two neighbouring tasks, that belong to one object.

Labels of connected components are linked by touch. The box of a task has three lower faces, at its
start along z, y and x. At each of these faces, the task reads the plane of its own voxels and the
plane of the neighbouring task's voxels. For connectivity 18 and 26, the planes extend one voxel
beyond the edges of the face.

```
            |                Voxels p and q belong to two tasks, and touch at an edge. Along one
        p   |                axis, q is the first voxel of its task, and the coordinate of p is
     -------+--------        lower by 1. So the task of q reads a plane that contains p, whatever
            | q              the sizes of the boxes are.
            |
```

Segments of agglomerate are linked by overlap. Each task also labels a margin around its box. The
segments of two tasks are compared in the voxels that both tasks have labelled; see `overlap_pairs`.

The links of a task are stored as an npz file without pickles. Its array ``pairs``, (n, 2) uint64,
contains each pair once, the smaller label first. Its array ``about`` contains a description of the
linking method, as JSON in UTF-8.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import ARRAYS_BYTES, npz, parse_json
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.errors import ChunkError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from chunkflow_py.segmentation.labels.components import Connectivity
    from chunkflow_py.store.store_protocol import Store

SUFFIX = ".npz"
FORMAT = "chunkflow links 1"


def touching_pairs(
    lower: NDArray[Any],
    upper: NDArray[Any],
    connectivity: Connectivity = 6,
    values: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> NDArray[np.uint64]:
    """Return the pairs of labels that touch across two neighbouring planes.

    Args:
        lower: (a, b) labels of one plane, 0 for background.
        upper: (a, b) labels of the next plane.
        connectivity: 6 (voxels share a face), 18 (a face or an edge) or 26 (also a corner).
        values: the same two planes of the volume from which the labels were made. Labels touch only
            where voxels of equal values touch (default: labels touch whatever the values are).

    Returns:
        (n, 2) uint64 pairs; see `distinct`.
    """
    furthest = {6: 0, 18: 1, 26: 2}[connectivity]
    pairs = []
    for down, right in product((-1, 0, 1), repeat=2):
        if abs(down) + abs(right) > furthest:
            continue
        low, high = _shifted(down, right), _shifted(-down, -right)
        same = values and values[0][low] == values[1][high]
        pairs.append(_different(lower[low], upper[high], same))
    return distinct(np.concatenate(pairs))


def check_no_touch(
    plane: NDArray[Any], box: BoundingBox, values: NDArray[Any] | None = None
) -> None:
    """Check that different labels do not touch in a plane of voxels inside one task.

    One task gives touching voxels the same label. If different labels touch inside *box*, several
    tasks have labelled the voxels in *box*. The labels of these tasks would not be linked.

    Args:
        plane: (a, b) labels, 0 for background.
        box: box of the task.
        values: (a, b) values in the volume that was labelled; only voxels of equal values count as
            touching (default: all voxels).

    Raises:
        ChunkError: two labels touch.
    """
    for axis in (0, 1):
        along = plane.swapaxes(0, axis)
        same = None
        if values is not None:
            same = np.diff(values.swapaxes(0, axis), axis=0) == 0
        pairs = _different(along[:-1], along[1:], same)
        if len(pairs):
            raise ChunkError(_touching(pairs[0], box))


def check_none_touch(
    labels: NDArray[Any],
    box: BoundingBox,
    connectivity: Connectivity,
    values: NDArray[Any] | None = None,
) -> None:
    """Check that different labels do not touch in a part of one task.

    Args:
        labels: (z, y, x), 0 for background.
        box: box of the task.
        connectivity: expected connectivity of the labels.
        values: (z, y, x) values in the volume that was labelled; only voxels of equal values count
            as touching (default: all voxels).

    Raises:
        ChunkError: two labels touch.
    """
    most = {6: 1, 18: 2, 26: 3}[connectivity]
    for step in product((-1, 0, 1), repeat=3):
        if not 0 < sum(map(abs, step)) <= most or step < (0, 0, 0):
            continue
        low, high = _shifted(*step), _shifted(*(-s for s in step))
        same = None if values is None else values[low] == values[high]
        pairs = _different(labels[low], labels[high], same)
        if len(pairs):
            raise ChunkError(_touching(pairs[0], box))


def _touching(pair: NDArray[Any], box: BoundingBox) -> str:
    return (
        f"labels {pair[0]} and {pair[1]} touch inside task {box}, so they were made by tasks of "
        "another size or with a lower --connectivity; give the --chunk-size and --connectivity "
        "that the labels were made with, and --values-path if a segmentation was labelled"
    )


def check_unique_ids(first: NDArray[Any], second: NDArray[Any], region: Region) -> None:
    """Check that two tasks have not used the same id.

    An id that two tasks share would merge two objects.

    Args:
        first: labels of one task, 0 for background; any shape.
        second: labels of the other task.
        region: region of one of the two tasks, for the message.

    Raises:
        ChunkError: an id occurs in the labels of both tasks.
    """
    shared = np.intersect1d(first, second)
    shared = shared[shared != 0]
    if len(shared):
        msg = (
            f"label {shared[0]} occurs in task {region} and in a task next to it, but two tasks "
            "must not use the same id; label with --global-ids, and give the --chunk-size that the "
            "labels were made with"
        )
        raise ChunkError(msg)


def overlap_pairs(
    first: NDArray[Any], second: NDArray[Any], fraction: float = 0.5, voxels: int = 1
) -> NDArray[np.uint64]:
    """Return the pairs of labels of two tasks that overlap enough to be one segment.

    Two labels a and b are linked if

    - b is the label that shares the most voxels with a, and a is the label that shares the most
      voxels with b (among equal numbers, the smallest label is chosen),
    - a and b share at least *voxels* voxels, and
    - the mean of n / A and n / B is at least *fraction*, where n is the number of voxels that a and
      b share, and A and B are the numbers of voxels of a and of b. Only voxels that both tasks have
      labelled are counted.

    cluster_tools (C. Pape) has a similar rule: mutual best partners with a minimum mean overlap.

    Args:
        first: labels of one task, 0 for background; any shape.
        second: labels that the other task gave to the same voxels.
        fraction: smallest mean overlap, as a fraction from 0 to 1.
        voxels: smallest number of shared voxels, at least 1.

    Returns:
        (n, 2) uint64 pairs; see `distinct`.
    """
    ids_a, codes_a, sizes_a = np.unique(first, return_inverse=True, return_counts=True)
    ids_b, codes_b, sizes_b = np.unique(second, return_inverse=True, return_counts=True)
    both = ((first != 0) & (second != 0)).ravel()
    codes_a, codes_b = codes_a.ravel()[both], codes_b.ravel()[both]
    cells, shared = np.unique(codes_a * len(ids_b) + codes_b, return_counts=True)
    a, b = np.divmod(cells, len(ids_b))
    mean = (shared / sizes_a[a] + shared / sizes_b[b]) / 2
    linked = _best(a, shared) & _best(b, shared) & (shared >= voxels) & (mean >= fraction)
    return distinct(np.stack((ids_a[a[linked]], ids_b[b[linked]]), axis=1))


def distinct(pairs: NDArray[Any]) -> NDArray[np.uint64]:
    """Return each pair of different labels once: (n, 2) uint64, sorted, the smaller label first."""
    pairs = np.sort(pairs.astype(np.uint64, copy=False), axis=1)
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    kept: NDArray[np.uint64] = pairs[new & (pairs[:, 0] != pairs[:, 1])]
    return kept


def lower_slab(
    box: BoundingBox, bounds: BoundingBox, axis: int, connectivity: Connectivity
) -> BoundingBox | None:
    """Return the box that a task reads at one of its lower faces: the planes on both sides.

    Args:
        box: box of the task.
        bounds: bounds of the volume.
        axis: axis perpendicular to the face; 0 for z. The face is at the start of *box*.
        connectivity: connectivity of the labels; if it is above 6, the planes extend one voxel
            beyond the edges of the face.

    Returns:
        The box of the planes; ``None`` if the face lies on the boundary of the volume.
    """
    if box.start[axis] <= bounds.start[axis]:
        return None
    reach = 0 if connectivity == 6 else 1
    start = Zyx(*(at - (1 if a == axis else reach) for a, at in enumerate(box.start)))
    stop = Zyx(*(box.start[a] + 1 if a == axis else at + reach for a, at in enumerate(box.stop)))
    return BoundingBox(start, stop).intersection(bounds)


# --- storage --------------------------------------------------------------------------------------


def link_key(region: Region) -> str:
    """Return the key under which the links of a task are stored."""
    return f"{region}{SUFFIX}"


def encoded_links(pairs: NDArray[np.uint64], about: Mapping[str, Any]) -> bytes:
    """Return the links of a task encoded as an npz file.

    Args:
        pairs: (n, 2) labels.
        about: description of the linking method, stored as JSON. It must be equal for all tasks of
            a volume.
    """
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True).encode()
    return encoded(pairs=pairs, about=np.frombuffer(text, np.uint8))


def links_in(
    store: Store,
) -> Iterator[tuple[Region, NDArray[np.uint64]]]:
    """Yield, for each task with links in a store, the task's region and its pairs of labels.

    Raises:
        VolumeError: there are no links, a file is damaged, or tasks used different methods.
    """
    keys = sorted(key for key in store.list() if key.endswith(SUFFIX))
    if not keys:
        msg = f"{store.url} has no links; run link-labels first"
        raise VolumeError(msg)
    first: tuple[str, dict[str, Any]] | None = None
    step = 4 * store.connections
    with ThreadPoolExecutor(store.connections, "links") as threads:
        for at in range(0, len(keys), step):
            part = keys[at : at + step]
            for key, data in zip(part, threads.map(store.get, part), strict=True):
                address = f"{store.url.rstrip('/')}/{key}"
                arrays = decoded(data, address, "pairs", "about")
                about = parse_json(arrays["about"].tobytes())
                first = first or (key, about)
                if about != first[1]:
                    msg = (
                        f"links {key} of {store.url} were made with the method {about}, but links "
                        f"{first[0]} with {first[1]}; remove the links of one method"
                    )
                    raise VolumeError(msg)
                yield Region.parse(key.removesuffix(SUFFIX)), arrays["pairs"]


def encoded(**arrays: NDArray[Any]) -> bytes:
    """Return arrays encoded as one compressed npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decoded(
    data: bytes | None, address: str, *names: str, most: int = ARRAYS_BYTES
) -> dict[str, NDArray[Any]]:
    """Return the arrays called *names* of an npz file, keyed by name; nothing is unpickled.

    Args:
        data: content of the file; ``None`` if it is missing.
        address: address of the file, for messages.
        names: names of the arrays.
        most: limit of the total size of the arrays in the file, in bytes.

    Raises:
        VolumeError: the file is missing or damaged.
    """
    try:
        arrays = npz(data or b"", most)
        return {name: arrays[name] for name in names}
    except (ValueError, KeyError, EOFError, OSError, NotImplementedError, RuntimeError, MemoryError,
            zlib.error, zipfile.BadZipFile) as error:  # fmt: skip
        why = "is missing" if data is None else f"is damaged ({error})"
        msg = f"{address} {why}; repeat the task that writes this file"
        raise VolumeError(msg) from error


def _shifted(*shift: int) -> tuple[slice, ...]:
    return tuple(slice(max(0, -s), -s if s > 0 else None) for s in shift)


def _different(
    first: NDArray[Any], second: NDArray[Any], same: NDArray[np.bool_] | None
) -> NDArray[Any]:
    meet = (first != 0) & (second != 0) & (first != second)
    if same is not None:
        meet &= same
    pairs: NDArray[Any] = np.stack((first[meet], second[meet]), axis=1)
    return pairs


def _best(codes: NDArray[Any], shared: NDArray[Any]) -> NDArray[np.bool_]:
    # For each code, select the entry with the most shared voxels, the first of equal ones.
    order = np.lexsort((np.arange(len(codes)), -shared, codes))
    first = np.ones(len(codes), bool)
    first[1:] = codes[order][1:] != codes[order][:-1]
    best = np.zeros(len(codes), bool)
    best[order] = first
    return best
