"""Parts: files in which tasks store annotations; a merge joins all parts into one collection.

Each task stores one part. A part is an npz file without pickles, named after the box of the task,
with these arrays:

```
about            JSON: bounds, voxel size, number of tasks, names and types of the columns
geometry         (n, p, 3) float32: p positions of each of n annotations
ids              (n,) uint64; missing if ids are computed from the content
value:NAME       values of the property NAME
count:NAME       number of segments of each annotation, for the relation NAME
segment:NAME     ids of the segments of all annotations, for the relation NAME
```
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.annotations import Annotations, Property, Relation
from chunkflow_py.core.decoding import npz, parse_json
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import AlignmentError, ChunkError, VolumeError
from chunkflow_py.volume.write_unit_check import check_disjoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store

SUFFIX = ".npz"
FORMAT = "chunkflow annotations 1"


@dataclass(frozen=True)
class AnnotationPart:
    """The annotations of one task, as stored in its file.

    Attributes:
        annotations: the annotations; ``None`` if the task has no result.
        bounds: box that must contain all annotations of the collection; ``None`` if unknown.
        tasks: number of tasks of the pipeline; 0 if unknown.
    """

    annotations: Annotations | None
    bounds: BoundingBox | None = None
    tasks: int = 0

    def encoded(self) -> bytes:
        """Return the npz file of the part.

        Raises:
            ChunkError: an annotation lies outside the bounds.
        """
        about: dict[str, Any] = {"format": FORMAT, "tasks": self.tasks}
        about["bounds"] = None if self.bounds is None else str(self.bounds)
        arrays: dict[str, NDArray[Any]] = {}
        found = self.annotations
        if found is not None:
            check_inside(found, self.bounds)
            about |= {"kind": found.kind, "voxel_size_nm": list(found.voxel_size_nm)}
            about["properties"] = [each.description_json for each in found.properties]
            about["relations"] = [each.name for each in found.relations]
            arrays["geometry"] = found.geometry
            if found.ids is not None:
                arrays["ids"] = found.ids
            arrays |= {f"value:{each.name}": each.values for each in found.properties}
            for each in found.relations:
                arrays[f"count:{each.name}"] = each.counts
                arrays[f"segment:{each.name}"] = each.segments
        arrays["about"] = np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def decoded(cls, data: bytes | None, address: str) -> AnnotationPart:
        """Return the part that an npz file contains.

        Args:
            data: content of the file, or ``None`` if the file is missing.
            address: address of the file, for messages.

        Raises:
            VolumeError: the file is missing or damaged.
        """
        try:
            arrays = npz(data or b"")
            about = parse_json(arrays["about"].tobytes())
            bounds = None if about["bounds"] is None else BoundingBox.parse(about["bounds"])
            if "kind" not in about:
                return cls(None, bounds, about["tasks"])
            z, y, x = (float(nm) for nm in about["voxel_size_nm"])
            annotations = Annotations(
                about["kind"],
                arrays["geometry"],
                (z, y, x),
                arrays.get("ids"),
                tuple(
                    Property.from_json(each, arrays[f"value:{each['id']}"])
                    for each in about["properties"]
                ),
                tuple(
                    Relation(name, arrays[f"count:{name}"], arrays[f"segment:{name}"])
                    for name in about["relations"]
                ),
            )
        except (ValueError, KeyError, TypeError, EOFError, OSError, NotImplementedError,
                RuntimeError, MemoryError, zlib.error, zipfile.BadZipFile) as error:  # fmt: skip
            why = "is missing" if data is None else f"is damaged ({error})"
            msg = f"{address} {why}; repeat the task that writes this file"
            raise VolumeError(msg) from error
        return cls(annotations, bounds, about["tasks"])


def part_key(box: BoundingBox) -> str:
    """Return the key of the part that the task with this *box* stores."""
    return f"{box}{SUFFIX}"


def check_inside(annotations: Annotations, bounds: BoundingBox | None) -> None:
    """Check that all annotations lie in *bounds*.

    Raises:
        ChunkError: an annotation is not completely inside *bounds*.
    """
    if bounds is None:
        return
    low, high = annotations.hull()
    outside = ((low < bounds.start) | (high > bounds.stop)).any(axis=1)
    if outside.any():
        at = int(np.argmax(outside))
        place = np.array([low[at], high[at]]).round(3)
        where = "-".join(map(str, dict.fromkeys(map(tuple, place.tolist()))))
        msg = (
            f"annotation number {at} at {where} is outside the bounds {bounds} (zyx, voxels); "
            "remove annotations outside the volume, or give larger --bounds"
        )
        raise ChunkError(msg)


def parts_in(store: Store, *, allow_missing: bool = False) -> Iterator[AnnotationPart]:
    """Yield the part of each task, sorted by key.

    Args:
        store: store that contains the parts.
        allow_missing: whether to accept a store that lacks the parts of some tasks.

    Raises:
        VolumeError: the store has no parts, or lacks a part; a part is damaged; or the boxes of two
            tasks overlap.
    """
    keys = sorted(key for key in store.list() if key.endswith(SUFFIX))
    if not keys:
        msg = f"{store.url} has no annotations of tasks; run save-annotations first"
        raise VolumeError(msg)
    boxes = [BoundingBox.parse(key.removesuffix(SUFFIX)) for key in keys]
    try:
        check_disjoint(boxes, store.url)
    except AlignmentError as error:
        msg = (
            f"{store.url} has annotations of tasks whose boxes overlap, because save-annotations "
            "ran with tasks of different sizes or positions; remove all files of annotations, and "
            "run save-annotations again"
        )
        raise VolumeError(msg) from error
    step = 2 * store.connections
    with ThreadPoolExecutor(store.connections, "annotations") as threads:
        for at in range(0, len(keys), step):
            names = keys[at : at + step]
            for key, data in zip(names, threads.map(store.get, names), strict=True):
                part = AnnotationPart.decoded(data, f"{store.url.rstrip('/')}/{key}")
                if part.tasks > len(keys) and not allow_missing:
                    raise VolumeError(_missing(store.url, boxes, part.tasks))
                yield part


def _missing(url: str, boxes: list[BoundingBox], tasks: int) -> str:
    """Return the message for missing tasks; if the tasks form a grid, name one missing task."""
    starts = np.array([box.start for box in boxes])
    axes = [np.unique(starts[:, axis]) for axis in range(3)]
    example = ""
    if np.prod([len(axis) for axis in axes]) <= 4 * len(boxes):
        present = set(map(tuple, starts.tolist()))
        cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3).tolist()
        gap = next((cell for cell in map(tuple, cells) if cell not in present), None)
        example = "" if gap is None else f", for example the task that starts at {gap} (zyx)"
    return (
        f"{url} has the annotations of {len(boxes)} of {tasks} tasks; run the missing tasks"
        f"{example}, or give --allow-missing if these tasks were skipped"
    )
