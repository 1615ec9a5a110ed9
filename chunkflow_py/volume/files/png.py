"""Read and write stacks of PNG sections: each file is one section, named after its z position.

| path             | sections                                                            |
|------------------|---------------------------------------------------------------------|
| ``a/7.png``      | only this file                                                      |
| ``a/`` (folder)  | all files; if all names are numbers, the number is the z position,  |
|                  | else the files are sorted by name                                   |
| ``a/raw_``       | files with this prefix; the number is the rest of the name          |
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.core.processors import usable_cores
from chunkflow_py.core.task import Output
from chunkflow_py.errors import (
    ChunkError,
    OptionError,
    VolumeError,
    VolumeNotFoundError,
    needs_extra,
)
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import Leftover, together
from chunkflow_py.volume.conversion import converted
from chunkflow_py.volume.files.file_name import FileName
from chunkflow_py.volume.files.image_names import natural_order
from chunkflow_py.volume.files.sections import SectionStack

with needs_extra("image", "reading and writing PNG"):
    from PIL import Image

_SECTION = re.compile(r"(?:t(?P<time>[0-9]+)_)?(?P<z>-?[0-9]+)\.png")  # as `PngSaver` names them

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Region
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume.files.file_volume import FileVolume

logger = logging.getLogger(__name__)

EXTENSIONS = (".png",)


# --- reading ------------------------------------------------------------------------------------


def open_png(
    path: Path,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    digit_num: int = 5,
) -> FileVolume:
    """Open PNG sections as one volume, with the shape and dtype of the first section.

    Args:
        path: a file, a folder or a prefix; see the docstring of the module.
        voxel_offset: global position of the first voxel, zyx (default: y and x are 0, and z is the
            number of the first section, or 0 if names are not numbers).
        voxel_size_nm: size of a voxel, nanometres, zyx (default: 1 nm, with a warning).
        digit_num: if the folder contains both 7.png and 00007.png, the file whose name has this
            number of digits is read.

    Raises:
        VolumeNotFoundError: *path* matches no section.
        VolumeError: the first section is not a PNG file, or is damaged.
    """
    files, numbered = _sections(path, digit_num)
    if not files:
        msg = f"{path} is neither a PNG file, nor a folder or prefix of PNG sections; check --path"
        raise VolumeNotFoundError(msg)
    stack = SectionStack(files, read_png, f"sections {path}", EXTENSIONS)
    offset = voxel_offset or Zyx(min(files) if numbered else 0, 0, 0)
    return stack.as_volume(offset, voxel_size_nm)


def _sections(path: Path, digit_num: int) -> tuple[dict[int, Path], bool]:
    if path.is_file():
        return {0: path}, False
    folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name)
    with os_errors("read", folder):
        files = [
            p
            for p in folder.iterdir()
            if p.name.startswith(prefix) and p.suffix.lower() == ".png" and p.name[0] != "."
        ]
    numbers = [re.fullmatch(r"-?[0-9]+", p.stem[len(prefix) :]) for p in files]
    if not all(numbers):
        return dict(enumerate(sorted(files, key=natural_order))), False
    # The name with the right number of digits comes last and wins.
    files.sort(
        key=lambda p: p.stem[len(prefix) :] == _number(int(p.stem[len(prefix) :]), digit_num)
    )
    return {int(p.stem[len(prefix) :]): p for p in files}, True


def _number(z: int, digit_num: int) -> str:
    return f"{z:0{digit_num}d}"


def read_png(path: Path) -> NDArray[Any]:
    """Return a PNG image: (y, x) grey, uint8 or uint16, or (c, y, x) with 2, 3 or 4 channels.

    Raises:
        VolumeError: the file cannot be read, or is not a PNG image.
    """
    with os_errors("read", path):
        data = path.read_bytes()
    return png_image(data, str(path))


def png_image(data: bytes, name: str) -> NDArray[Any]:
    """Return the image of a PNG file with the content *data*; see `read_png`."""
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            # Colours, not indices of a palette.
            array = np.array(image.convert("RGB") if image.mode == "P" else image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not a PNG image" if "identify" in str(error) else f"damaged: {error}"
        msg = f"cannot read {name}, which is {reason}; save the file again"
        raise VolumeError(msg) from error
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif array.dtype == np.int32:  # some versions return 16-bit grey images in this type
        array = array.astype(np.uint16)
    return array if array.ndim == 2 else np.moveaxis(array, -1, 0)


# --- writing ------------------------------------------------------------------------------------


@dataclass
class PngSaver(OperatorBase):
    """Operator that writes each section of a chunk to a file named after the section's z position.

    Attributes:
        folder: path or URL of the folder, in any store; created if it does not exist.
        dtype: dtype of the images, ``uint8`` or ``uint16``.
        input_name: name of the chunk in the task.
    """

    folder: str | Path
    dtype: str = "uint8"
    input_name: str = "chunk"
    _written: dict[int, Region | None] = field(default_factory=dict, repr=False)
    _outline: Any = field(default=None, init=False, repr=False)
    separates_times: ClassVar[bool] = hook_value(False)

    @property
    @hook
    def destination(self) -> str:
        """Address of the folder, without ``file://``."""
        return open_store(str(self.folder)).url.removeprefix("file://")

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the folder as the only output."""
        return (Output("objects", f"{open_store(str(self.folder)).url.rstrip('/')}/"),)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that no two tasks write the same section.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.

        Raises:
            OptionError: two tasks would write the same section.
            VolumeError: the folder cannot be created.
        """
        if open_store(str(self.folder)).is_local:
            FileName(f"{self.destination}/", EXTENSIONS, option="--output-path").check_writable()
        self._outline, boxes = outline, outline.boxes
        if boxes is None or len(boxes) < 2:
            return
        if isinstance(boxes, BoxGrid):
            shared = boxes.count.y * boxes.count.x > 1 or (
                boxes.count.z > 1 and boxes.size.z > boxes.stride.z
            )
        else:
            spans = sorted((box.start.z, box.stop.z) for box in boxes)
            shared = any(before[1] > after[0] for before, after in pairwise(spans))
        if shared:
            region: BoundingBox = outline.region
            msg = (
                f"two of the {len(boxes)} tasks share a section, which is one file in "
                f"{self.folder}; use tasks that cover whole sections: {region.size.y} voxels along "
                f"y and {region.size.x} along x"
            )
            raise OptionError(msg)

    @hook
    def leftovers(self, tasks: Any) -> Iterator[Leftover]:
        """Yield the stored sections that *tasks* will write again."""
        region = None if self._outline is None else self._outline.region
        if region is None:
            return
        store = open_store(str(self.folder))
        for key in store.list():
            match = _SECTION.fullmatch(key)
            if match is None:
                continue
            time = None if match["time"] is None else int(match["time"])
            if tasks.number(Zyx(int(match["z"]), *region.start[1:]), time) is not None:
                yield Leftover(f"{store.url}/{key}", partial(store.delete, key))

    def __call__(self, task: Task) -> Task:
        """Write the sections of the chunk.

        Raises:
            ChunkError: the chunk has several channels, or a value does not fit into the dtype.
            VolumeError: a file cannot be written, or an earlier task has written the same section.
        """
        chunk = task.chunk(self.input_name)
        time = "" if task.region is None or task.region.time is None else f"t{task.region.time}_"
        for z in range(chunk.bbox.start.z, chunk.bbox.stop.z):
            # The tasks of a queue are not known in advance, so `prepare` cannot detect this.
            if self._written.setdefault(z, task.region) != task.region and not time:
                msg = (
                    f"task {task} would replace section {z} in {self.folder}, which task "
                    f"{self._written[z]} has written; use tasks that cover whole sections"
                )
                raise VolumeError(msg)
        task.written += write_pngs(self.folder, chunk, self.dtype, prefix=time)
        logger.info("wrote %d sections to %s", chunk.size.z, without_secrets(str(self.folder)))
        return task


def write_pngs(
    folder: str | Path, chunk: Chunk, dtype: str = "uint8", prefix: str = ""
) -> list[Stored]:
    """Write each section of *chunk* to a file named after its z position, such as ``00042.png``.

    Each file has its final name only when it is complete.

    Args:
        folder: path or URL of the folder, in any store; created if it does not exist.
        chunk: (z, y, x), or (c, z, y, x) with one channel; for an affinity map, the mean of the
            channels x and y is written.
        dtype: ``uint8`` or ``uint16``; probabilities p become 255·p or 65535·p.
        prefix: prefix of the file names.

    Returns:
        Records of the stored files, sorted by address.

    Raises:
        ChunkError: the chunk has no voxels; it has several channels, but is not an affinity map; or
            a value does not fit into the dtype.
        VolumeError: a file cannot be written, for example on a full disk.
    """
    array = chunk.array
    if chunk.ndim == 4 and chunk.kind == "affinity" and chunk.channels == 3:
        array = array[:2].mean(axis=0, dtype=np.float32)
        if chunk.dtype.kind in "iu":  # round the mean of integers
            array = np.rint(array).astype(chunk.dtype)
    elif chunk.ndim == 4:
        if chunk.channels != 1:
            msg = (
                f"PNG sections are grey, but the chunk has {chunk.channels} channels; "
                "choose one channel with the option --channels of the loader"
            )
            raise ChunkError(msg)
        array = array[0]
    if array.size == 0:
        msg = f"chunk {chunk.bbox} has no voxels, and PNG does not support empty images"
        raise ChunkError(msg)
    grey = converted(chunk.with_array(array), dtype).array
    with (
        together(open_store(str(folder))) as gathering,
        ThreadPoolExecutor(min(len(grey), usable_cores()), "png") as pool,
    ):
        store = RecordingStore(gathering)

        def write(z: int, section: NDArray[Any]) -> None:
            buffer = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(section)).save(buffer, "PNG")
            key = f"{prefix}{_number(z, 5)}.png"
            store.put(key, buffer.getvalue(), content_type="image/png")

        deque(pool.map(write, itertools.count(chunk.voxel_offset.z), grey), maxlen=0)
    return sorted(store.written, key=lambda stored: stored.url)
