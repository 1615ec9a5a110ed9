"""Files of skeletons: SWC, and folders of Neuroglancer's precomputed format."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.outputs import Output
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.core.skeleton import ATTRIBUTES, Skeleton
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder, folder_of, named_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)

INFO: dict[str, Any] = {
    "@type": "neuroglancer_skeletons",
    "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "vertex_attributes": list(ATTRIBUTES),
}


def read_skeletons(url: str) -> dict[int, Skeleton]:
    """Return the skeletons of an SWC file, of a folder of such, or of a precomputed folder.

    Args:
        url: path or URL, of the file, the folder, or a precomputed volume that names its folder of
            skeletons. The last number in the name of an SWC file is the id of its object; without
            one it is 1.

    Raises:
        VolumeNotFoundError: there are none.
        VolumeError: a file cannot be read.
    """
    if url.lower().endswith(".swc"):
        folder, name = named_after(url)
        return _from_swc(folder, [name])
    if url.lower().endswith(".mb"):
        msg = (
            f"{url} is a MapBuffer of igneous, which is not read here; write its skeletons as "
            "SWC, or as a precomputed folder, by igneous or cloud-volume, and load these"
        )
        raise VolumeError(msg)
    folder = folder_of(url, "skeletons")
    info = folder.read_json("info")
    if info is not None:
        return _from_precomputed(folder, info)
    names = [name for name in folder.names() if name.lower().endswith(".swc") and "/" not in name]
    if not names:
        msg = f"{folder.url} holds no .swc files, and no info file of skeletons; check --path"
        raise VolumeNotFoundError(msg)
    return _from_swc(folder, names)


def _from_swc(folder: ObjectFolder, names: Sequence[str]) -> dict[int, Skeleton]:
    found: dict[int, Skeleton] = {}
    for name in names:
        data = folder.get(name)
        what = f"{folder.url}/{name}"
        if data is None:
            msg = f"{what} does not exist; check --path"
            raise VolumeNotFoundError(msg)
        numbers = re.findall(r"[0-9]+", name)
        label = int(numbers[-1]) if numbers else 1
        if label in found:
            msg = f"{what} is a second file of object {label}; name each by the id of its object"
            raise VolumeError(msg)
        found[label] = Skeleton.from_swc(data.decode("utf-8", "replace"), what)
    return dict(sorted(found.items()))


def _from_precomputed(folder: ObjectFolder, info: Mapping[str, Any]) -> dict[int, Skeleton]:
    if info.get("@type") != INFO["@type"] or info.get("sharding"):
        kind = "sharded skeletons" if info.get("sharding") else info.get("@type")
        msg = f"{folder.url} holds {kind}, but only unsharded skeletons are read; write them so"
        raise VolumeError(msg)
    transform = [float(value) for value in info.get("transform", INFO["transform"])]
    attributes = info.get("vertex_attributes", ())
    labels = sorted(int(name) for name in folder.names() if is_digits(name))
    contents = zip(labels, folder.get_all(map(str, labels)), strict=True)
    return {
        label: _transformed(
            Skeleton.from_precomputed(data, f"{folder.url}/{label}", attributes), transform
        )
        for label, data in contents
    }


def _transformed(skeleton: Skeleton, transform: Sequence[float]) -> Skeleton:
    """Return a skeleton of the coordinates that the 3 by 4 matrix of an info file makes."""
    import numpy as np

    if list(transform) == INFO["transform"]:
        return skeleton
    matrix = np.array(transform, np.float64).reshape(3, 4)
    places = skeleton.vertices_nm[:, ::-1] @ matrix[:, :3].T + matrix[:, 3]
    return Skeleton.of(places[:, ::-1], skeleton.edges, skeleton.radii_nm, skeleton.types)


@dataclass
class SkeletonLoader:
    """Puts skeletons into every task.

    Attributes:
        url: see `read_skeletons`.
        shift_nm: added to all coordinates, zyx.
        output_name: of the item: id -> `Skeleton`.
    """

    url: str
    shift_nm: tuple[float, float, float] = (0.0, 0.0, 0.0)
    output_name: str = "skels"

    def __call__(self, task: Task) -> Task:
        """Read them."""
        found = read_skeletons(self.url)
        if any(self.shift_nm):
            found = {label: each.moved(self.shift_nm) for label, each in found.items()}
        task[self.output_name] = found
        return task


@dataclass
class SwcSaver(OperatorBase):
    """Writes each skeleton of every task to an SWC file.

    Attributes:
        input_name: of the item: id -> `Skeleton`.
        prefix: of the names of the files; a path or URL.
    """

    input_name: str = "skels"
    prefix: str = "./"
    _has_several: bool = field(default=False, init=False, repr=False)

    @hook
    def prepare(self, outline: Outline) -> None:
        """See whether other tasks of the line may have a part of the same object."""
        self._has_several = outline.has_tasks and (outline.boxes is None or len(outline.boxes) > 1)

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return how the names of the files begin."""
        folder, start = named_after(self.prefix)
        return (Output("objects", f"{folder.url.rstrip('/')}/{start}"),)

    @property
    @hook
    def destination(self) -> str:
        """The files."""
        folder, start = named_after(self.prefix)
        return f"{folder.url.rstrip('/')}/{start}ID.swc"

    def __call__(self, task: Task) -> Task:
        """Write them, and remember what was stored."""
        skeletons = skeletons_of(task, self.input_name)
        folder, start = named_after(self.prefix)
        if self._has_several:  # the id stays the last number, see `read_skeletons`
            start += f"{task.region}_"
        task.written += folder.put(
            ((f"{start}{label}.swc", skeletons[label].to_swc().encode()) for label in skeletons),
            compress=False,
            content_type="text/plain",
        )
        logger.info("wrote %d skeletons to %s", len(skeletons), folder.url)
        return task


def skeletons_of(task: Task, name: str) -> dict[int, Skeleton]:
    """Return the skeletons that a task carries under a name.

    Raises:
        VolumeError: the item is something else.
    """
    item = task[name]
    if not isinstance(item, dict) or not all(isinstance(s, Skeleton) for s in item.values()):
        msg = f"item {name!r} is a {type(item).__name__}, not skeletons; change --input-name"
        raise VolumeError(msg)
    return item
