"""Read and write skeletons: SWC files, and folders in Neuroglancer's precomputed format."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.plain_text import bounded, is_digits
from chunkflow_py.core.skeleton import ATTRIBUTES, FLOAT_ATTRIBUTES, Skeleton
from chunkflow_py.core.task import Output
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder, folder_of, named_after
from chunkflow_py.segmentation.labels.object_shards import read_shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)

INFO: dict[str, Any] = {
    "@type": "neuroglancer_skeletons",
    "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "vertex_attributes": list(ATTRIBUTES),
}
_FURTHEST_NM = 1e18  # a kilometre is 1e12; products with voxels still fit float32
SHARDED_INFO: dict[str, Any] = {**INFO, "vertex_attributes": list(FLOAT_ATTRIBUTES)}


def read_skeletons(url: str) -> dict[int, Skeleton]:
    """Read skeletons from an SWC file, a folder of SWC files, or a precomputed folder.

    Args:
        url: path or URL of the file, of the folder, or of a precomputed volume, whose info file
            names the folder of skeletons. The object id of an SWC file is the last number in the
            file's name, or 1 if the name has no number.

    Returns:
        Dictionary from id to skeleton, sorted by id.

    Raises:
        VolumeNotFoundError: there are no skeletons at *url*.
        VolumeError: a file cannot be read.
    """
    if url.lower().endswith(".swc"):
        folder, name = named_after(url)
        return _from_swc(folder, [name])
    if url.lower().endswith(".mb"):
        msg = (
            f"{url} is a MapBuffer file of igneous, which chunkflow cannot read; convert the file "
            "to SWC or to a precomputed folder with igneous or cloud-volume"
        )
        raise VolumeError(msg)
    folder = folder_of(url, "skeletons")
    info = folder.read_json("info")
    if info is not None:
        return _from_precomputed(folder, info)
    names = [name for name in folder.names() if name.lower().endswith(".swc") and "/" not in name]
    if not names:
        msg = f"{folder.url} has neither .swc files nor an info file of skeletons; check --path"
        raise VolumeNotFoundError(msg)
    return _from_swc(folder, names)


def _from_swc(folder: ObjectFolder, names: Sequence[str]) -> dict[int, Skeleton]:
    skeletons: dict[int, Skeleton] = {}
    for name in names:
        data = folder.get(name)
        address = f"{folder.url}/{name}"
        if data is None:
            msg = f"{address} does not exist; check --path"
            raise VolumeNotFoundError(msg)
        numbers = re.findall(r"[0-9]+", name)
        label = int(numbers[-1]) if numbers else 1
        if label in skeletons:
            msg = (
                f"{address} is a second file of object {label}; put a different id in the name of "
                "each file"
            )
            raise VolumeError(msg)
        skeletons[label] = Skeleton.from_swc(data.decode("utf-8", "replace"), address)
    return dict(sorted(skeletons.items()))


def _from_precomputed(folder: ObjectFolder, info: Mapping[str, Any]) -> dict[int, Skeleton]:
    if info.get("@type") != INFO["@type"]:
        msg = (
            f"{folder.url} contains data of type {info.get('@type')}, but only skeletons can be "
            "read; check the address"
        )
        raise VolumeError(msg)
    transform = _transform(info.get("transform", INFO["transform"]), folder.url)
    attributes = info.get("vertex_attributes", ())
    if info.get("sharding"):
        contents: Iterable[tuple[int, bytes]] = sorted(read_shards(folder, info["sharding"]))
    else:
        labels = sorted(int(name) for name in folder.names() if is_digits(name))
        contents = zip(labels, folder.get_all(map(str, labels)), strict=True)
    return {
        label: _transformed(
            Skeleton.from_precomputed(data, f"{folder.url}/{label}", attributes), transform
        )
        for label, data in contents
    }


def _transform(found: Any, url: str) -> list[float]:
    numbers: list[float] = []
    if isinstance(found, list) and all(type(value) in (int, float) for value in found):
        numbers = [float(value) for value in found if abs(value) < _FURTHEST_NM]
    if len(numbers) != 12:
        msg = (
            f"the info file of {url} has the transform {bounded(str(found), 100)}, which is not a "
            f"list of twelve numbers between -{_FURTHEST_NM:g} and {_FURTHEST_NM:g}; correct the "
            "transform"
        )
        raise VolumeError(msg)
    return numbers


def _transformed(skeleton: Skeleton, transform: Sequence[float]) -> Skeleton:
    import numpy as np

    if list(transform) == INFO["transform"]:
        return skeleton
    matrix = np.array(transform, np.float64).reshape(3, 4)
    vertices = skeleton.vertices_nm[:, ::-1] @ matrix[:, :3].T + matrix[:, 3]
    return Skeleton.of(vertices[:, ::-1], skeleton.edges, skeleton.radii_nm, skeleton.types)


@dataclass
class SkeletonLoader:
    """Operator that reads skeletons and adds all of them to every task.

    Attributes:
        url: path or URL of the skeletons; see `read_skeletons`.
        shift_nm: distance that is added to the coordinates of skeletons, zyx, in nm.
        output_name: name under which the skeletons are added to the task, as a dictionary from
            object id to skeleton.
    """

    url: str
    shift_nm: tuple[float, float, float] = (0.0, 0.0, 0.0)
    output_name: str = "skels"

    def __call__(self, task: Task) -> Task:
        """Read the skeletons and add them to the task."""
        skeletons = read_skeletons(self.url)
        if any(self.shift_nm):
            skeletons = {label: each.moved(self.shift_nm) for label, each in skeletons.items()}
        task[self.output_name] = skeletons
        return task


@dataclass
class SwcSaver(OperatorBase):
    """Operator that writes each skeleton of a task to a separate SWC file.

    Attributes:
        input_name: name of the skeletons in the task: a dictionary from object id to skeleton.
        prefix: start of the path or URL of each file.
    """

    input_name: str = "skels"
    prefix: str = "./"
    _has_several: bool = field(default=False, init=False, repr=False)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Record whether there are several tasks.

        If there are several tasks, each can contain a part of the same object. The file names then
        contain the region of the task.
        """
        self._has_several = outline.has_tasks and outline.task_count != 1

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output: the files whose names start with `prefix`."""
        folder, start = named_after(self.prefix)
        return (Output("objects", f"{folder.url.rstrip('/')}/{start}"),)

    @property
    @hook
    def destination(self) -> str:
        """Address of the SWC files, with the letters ID in place of the object id."""
        folder, start = named_after(self.prefix)
        return f"{folder.url.rstrip('/')}/{start}ID.swc"

    def __call__(self, task: Task) -> Task:
        """Write the skeletons of a task, and record the files in the task."""
        skeletons = skeletons_of(task, self.input_name)
        folder, start = named_after(self.prefix)
        if self._has_several:  # the id stays the last number; see `read_skeletons`
            start += f"{task.region}_"
        task.written += folder.put(
            ((f"{start}{label}.swc", skeletons[label].to_swc().encode()) for label in skeletons),
            compress=False,
            content_type="text/plain",
        )
        logger.info("wrote %d skeletons to %s", len(skeletons), folder.url)
        return task


def skeletons_of(task: Task, name: str) -> dict[int, Skeleton]:
    """Return the skeletons in the item *name* of a task.

    Raises:
        VolumeError: the item is not a dictionary of skeletons.
    """
    item = task[name]
    if not isinstance(item, dict) or not all(isinstance(s, Skeleton) for s in item.values()):
        msg = (
            f"item {name!r} is a {type(item).__name__}, not a dictionary of skeletons; give "
            "--input-name the output name of skeletonize or load-skeleton"
        )
        raise VolumeError(msg)
    return item
