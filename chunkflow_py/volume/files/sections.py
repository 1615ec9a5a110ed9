"""Stacks of section images, one file per section, read as one array."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import ChunkError, VolumeNotFoundError
from chunkflow_py.volume.files.file_volume import FileVolume

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.geometry import Zyx

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SectionStack:
    """A stack of numbered section images as one array; the lowest number comes first.

    Attributes:
        files: dict from section number to file; if a number has no file, its section is read as
            zeros.
        read_section: function file -> array (y, x) or (c, y, x).
        what: description of the stack for messages.
        extensions: extensions of the format, for messages.
    """

    files: Mapping[int, Path]
    read_section: Callable[[Path], NDArray[Any]]
    what: str
    extensions: tuple[str, ...]

    def as_volume(
        self,
        voxel_offset: Zyx | None,
        voxel_size_nm: tuple[float, float, float] | None,
        kind: Kind | None = None,
    ) -> FileVolume:
        """Return the stack as one volume, with the shape and dtype of the first section.

        Raises:
            VolumeNotFoundError: there is no section.
            VolumeError: the first section cannot be read.
        """
        if not self.files:
            msg = f"{self.what} contains no {self.extensions[0]} files; check the path"
            raise VolumeNotFoundError(msg)
        first = self.read_section(self.files[min(self.files)])
        depth = max(self.files) + 1 - min(self.files)
        shape = (*first.shape[:-2], depth, *first.shape[-2:])

        def read_part(
            slices: tuple[slice, slice, slice], channels: Sequence[int] | None
        ) -> NDArray[Any]:
            return self._read_part(first.shape, first.dtype, slices, channels)

        return FileVolume(
            self.what,
            shape,
            first.dtype,
            read_part,
            voxel_offset=voxel_offset,
            voxel_size_nm=voxel_size_nm,
            kind=kind,
        )

    def _read_part(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        slices: tuple[slice, slice, slice],
        channels: Sequence[int] | None,
    ) -> NDArray[Any]:
        start = min(self.files)
        numbers = range(start + slices[0].start, start + slices[0].stop)
        size = [s.stop - s.start for s in slices]
        leading = shape[:-2] if channels is None else (len(channels),)
        result = np.zeros((*leading, *size), dtype)
        missing = [number for number in numbers if number not in self.files]

        def place(number: int) -> None:
            path = self.files[number]
            section = self.read_section(path)
            if section.shape != shape or section.dtype != dtype:
                msg = (
                    f"section {path} is {section.dtype} of shape {section.shape}, but the "
                    f"first section of {self.what} is {dtype} of shape {shape}; use sections of "
                    "one dtype and shape"
                )
                raise ChunkError(msg)
            chosen = section if channels is None else section[list(channels)]
            result[..., number - numbers.start, :, :] = chosen[(..., *slices[1:])]

        existing = [number for number in numbers if number in self.files]
        if existing:
            # Files are decoded in parallel; the first error in the order of sections is raised.
            with ThreadPoolExecutor(min(len(existing), usable_cores()), "sections") as pool:
                list(pool.map(place, existing))
        if missing:
            logger.warning(
                "%d of %d sections of %s are missing and were read as zeros: %s",
                len(missing), len(numbers), self.what, ", ".join(map(str, missing[:10])),
            )  # fmt: skip
        return result
