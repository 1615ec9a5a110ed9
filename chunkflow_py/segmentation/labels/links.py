"""Pairs of labels of neighbouring tasks that belong to one object: found, stored, read again.

By touch, for connected components. A task looks at its three lower faces, at the planes of voxels
on both sides, and for edges and corners (18, 26) one voxel further along the face:

```
            | task           two voxels p and q of two tasks touch across a face: along one axis,
     - - - -+--------        q is the first voxel of its task and p lies one voxel below. So the
        p   |                task of q sees both, whatever the boxes of the other tasks are, and
     -------+--------        whether there is a task behind each face.
            | q
```

By overlap, for segments that each task has made with a margin around its box: see `overlap_pairs`.

An object of links is an npz file without pickles: ``pairs`` (n, 2) uint64, each pair once, the
smaller label first; and ``about``, JSON in UTF-8: how they were found.
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

from chunkflow_py.core.decoding import npz, parse_json
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
        upper: the same of the next one.
        connectivity: 6 (voxels share a face), 18 (or an edge) or 26 (or a corner).
        values: what was labelled, of both planes: voxels hang together where it is the same
            (default: wherever there are labels).

    Returns:
        (n, 2) as `distinct` gives them.
    """
    furthest = {6: 0, 18: 1, 26: 2}[connectivity]
    found = []
    for down, right in product((-1, 0, 1), repeat=2):
        if abs(down) + abs(right) > furthest:
            continue
        low, high = _shifted(down, right), _shifted(-down, -right)
        same = values and values[0][low] == values[1][high]
        found.append(_different(lower[low], upper[high], same))
    return distinct(np.concatenate(found))


def check_no_touch(
    plane: NDArray[Any], box: BoundingBox, values: NDArray[Any] | None = None
) -> None:
    """Refuse a plane inside of one task on which different labels touch.

    One task gives voxels that touch one label, so these were made by several: faces between them
    would be missed.

    Args:
        plane: (a, b) labels.
        box: of the task.
        values: what was labelled.

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
    """Refuse a part of one task in which voxels of different labels touch.

    Args:
        labels: (z, y, x), 0 for background.
        box: of the task.
        connectivity: with which tasks are to have labelled.
        values: what was labelled.

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
        f"labels {pair[0]} and {pair[1]} touch inside of task {box}, so that other tasks have made "
        "them, or with a lower --connectivity; give tasks of the size with which they were "
        "labelled (--chunk-size), that connectivity, and --values-path where labels of a "
        "segmentation were labelled"
    )


def check_unique_ids(first: NDArray[Any], second: NDArray[Any], region: Region) -> None:
    """Refuse ids that two tasks have both given: different objects would become one.

    Args:
        first: labels that one task gave, 0 for background; any shape.
        second: those of the other.
        region: of the task whose lower face lies between them.

    Raises:
        ChunkError: an id is in both.
    """
    shared = np.intersect1d(first, second)
    shared = shared[shared != 0]
    if len(shared):
        msg = (
            f"label {shared[0]} lies on both sides of a lower face of task {region}, but no two "
            "tasks may use one id; label with --global-ids, and give tasks of the size with which "
            "they were labelled (--chunk-size)"
        )
        raise ChunkError(msg)


def overlap_pairs(
    first: NDArray[Any], second: NDArray[Any], fraction: float = 0.5, voxels: int = 1
) -> NDArray[np.uint64]:
    """Return the pairs of labels of two tasks that are one segment, by the voxels they share.

    Two labels are linked if each has more voxels in common with the other than with any other
    label (of equals, the smallest), these are at least *voxels*, and they are at least *fraction*
    of the two labels, in the mean of both, of what each has where the tasks overlap. Mutual best
    partners above a mean overlap are also what cluster_tools (C. Pape) stitches blocks by.

    Args:
        first: labels that one task gave, 0 for background; any shape.
        second: what the other one gave the same voxels.
        fraction: from 0 to 1.
        voxels: at least 1.

    Returns:
        (n, 2) as `distinct` gives them.
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
    """Return each of *pairs*, (n, 2), once: uint64, the smaller label first, in order."""
    pairs = np.sort(pairs.astype(np.uint64, copy=False), axis=1)
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    kept: NDArray[np.uint64] = pairs[new & (pairs[:, 0] != pairs[:, 1])]
    return kept


def lower_slab(
    box: BoundingBox, bounds: BoundingBox, axis: int, connectivity: Connectivity
) -> BoundingBox | None:
    """Return what a task has to see of its lower face: two voxels thick, in voxels of the volume.

    Args:
        box: of the task.
        bounds: of the volume.
        axis: 0 for z.
        connectivity: of the labels.

    Returns:
        The box; ``None`` where the face is one of the volume.
    """
    if box.start[axis] <= bounds.start[axis]:
        return None
    reach = 0 if connectivity == 6 else 1
    start = Zyx(*(at - (1 if a == axis else reach) for a, at in enumerate(box.start)))
    stop = Zyx(*(box.start[a] + 1 if a == axis else at + reach for a, at in enumerate(box.stop)))
    return BoundingBox(start, stop).intersection(bounds)


# --- stored ---------------------------------------------------------------------------------------


def link_key(region: Region) -> str:
    """Return the name of the object that holds the links of a task."""
    return f"{region}{SUFFIX}"


def encoded_links(pairs: NDArray[np.uint64], about: Mapping[str, Any]) -> bytes:
    """Return the content of an object of links.

    Args:
        pairs: (n, 2).
        about: how they were found, as JSON takes it; the same for all tasks of a volume.
    """
    said = json.dumps({"format": FORMAT, **about}, sort_keys=True).encode()
    return encoded(pairs=pairs, about=np.frombuffer(said, np.uint8))


def links_in(
    store: Store,
) -> Iterator[tuple[Region, NDArray[np.uint64]]]:
    """Yield the links of all tasks below a store: the region, and pairs.

    Raises:
        VolumeError: there are none, an object is damaged, or they were found in different ways.
    """
    keys = sorted(key for key in store.list() if key.endswith(SUFFIX))
    if not keys:
        msg = f"{store.url} holds no links; let link-labels write them there first"
        raise VolumeError(msg)
    said: tuple[str, dict[str, Any]] | None = None
    step = 4 * store.connections
    with ThreadPoolExecutor(store.connections, "links") as threads:
        for at in range(0, len(keys), step):
            part = keys[at : at + step]
            for key, data in zip(part, threads.map(store.get, part), strict=True):
                what = f"{store.url.rstrip('/')}/{key}"
                arrays = decoded(data, what, "pairs", "about")
                about = parse_json(arrays["about"].tobytes())
                said = said or (key, about)
                if about != said[1]:
                    msg = (
                        f"links {key} and {said[0]} of {store.url} were found in different ways, "
                        f"{about} and {said[1]}; remove those of one of them"
                    )
                    raise VolumeError(msg)
                yield Region.parse(key.removesuffix(SUFFIX)), arrays["pairs"]


def encoded(**arrays: NDArray[Any]) -> bytes:
    """Return arrays as one npz file, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decoded(data: bytes | None, what: str, *names: str) -> dict[str, NDArray[Any]]:
    """Return the arrays called *names* of an npz file; nothing is unpickled.

    Raises:
        VolumeError: it is missing or damaged.
    """
    try:
        found = npz(data or b"")
        return {name: found[name] for name in names}
    except (ValueError, KeyError, EOFError, OSError, NotImplementedError, RuntimeError, MemoryError,
            zlib.error, zipfile.BadZipFile) as error:  # fmt: skip
        why = "is missing" if data is None else f"is damaged ({error})"
        msg = f"{what} {why}; make it again, by the task of that box"
        raise VolumeError(msg) from error


def _shifted(*shift: int) -> tuple[slice, ...]:
    """Return the part of a plane that has a voxel *shift* further."""
    return tuple(slice(max(0, -s), -s if s > 0 else None) for s in shift)


def _different(
    first: NDArray[Any], second: NDArray[Any], same: NDArray[np.bool_] | None
) -> NDArray[Any]:
    """Return the labels at places where both planes have one, and different ones."""
    meet = (first != 0) & (second != 0) & (first != second)
    if same is not None:
        meet &= same
    pairs: NDArray[Any] = np.stack((first[meet], second[meet]), axis=1)
    return pairs


def _best(codes: NDArray[Any], shared: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each cell whether it is the first with the most voxels among those of its code."""
    order = np.lexsort((np.arange(len(codes)), -shared, codes))
    first = np.ones(len(codes), bool)
    first[1:] = codes[order][1:] != codes[order][:-1]
    best = np.zeros(len(codes), bool)
    best[order] = first
    return best
