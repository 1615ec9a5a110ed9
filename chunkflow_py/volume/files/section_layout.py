"""Map a folder of section images to an array of blocks: each file is one block.

| names                              | sections                                                  |
|------------------------------------|-----------------------------------------------------------|
| ``img_0007.tif``, ``img_0008.tif`` | in the order of the last number; no number may be missing |
| ``00042.png``, ``00043.png``       | in the order of the number, which is the z position; no   |
|                                    | number may be missing                                     |
| any other names                    | in alphabetical order, with ``s2`` before ``s10``         |
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.files.image_names import TIFF, section_files, suffix_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.engine.block_layout import Index

_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,12})([^0-9]*)")
_NAMED = 5  # missing sections that a message names


class SectionLayout(BlockLayout):
    """The blocks of a folder of section images; read only.

    Attributes:
        axes, shape, block, unit, dtype, fill, root: see `BlockLayout`.
        first: z position of the first section.
    """

    root = ""

    def __init__(self, folder: Path) -> None:
        """Read the names of the files, and the first section.

        Raises:
            VolumeNotFoundError: the folder contains no section.
            VolumeError: a section is missing, or the first section cannot be read.
        """
        self._folder = folder
        self._files, self.first = _sections(folder)
        section = self._read(0)
        channels = section.shape[:-2]
        self.axes = ("c", "z", "y", "x") if channels else ("z", "y", "x")
        self.shape = (*channels, len(self._files), *section.shape[-2:])
        self.block = self.unit = (*channels, 1, *section.shape[-2:])
        self.dtype = section.dtype

    @property
    def first_file(self) -> Path:
        """The file of the first section."""
        return self._folder / self._files[0]

    def key(self, unit: Index) -> str:
        """Return the name of the file of a section."""
        return self._files[unit[-3]]

    def unit_of(self, key: str) -> Index | None:
        """Return the index of the section that a file stores, or ``None`` for any other file."""
        if key not in self._files:
            return None
        return (*(0,) * (len(self.axes) - 3), self._files.index(key), 0, 0)

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Raise an error, because folders of sections are read only."""
        msg = (
            f"cannot write section {block[-3]} of {self._folder}, because folders of sections are "
            "read only"
        )
        raise VolumeError(msg)

    def fetch(
        self,
        store: Store,
        unit: Index,
        blocks: Sequence[Index],
    ) -> dict[Index, bytes | None]:
        """Return a dict from the block of a section to the content of the section's file.

        Raises:
            VolumeError: the file has been removed, or cannot be read.
        """
        data = store.get(self.key(unit))
        if data is None:
            msg = (
                f"{self._folder / self.key(unit)} has been removed since the folder was opened; "
                "restore this file"
            )
            raise VolumeError(msg)
        return dict.fromkeys(blocks, data)

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a section.

        Raises:
            VolumeError: the file cannot be read.
            ChunkError: the shape or dtype of the section differs from that of the first section.
        """
        section = self._read(block[-3], data)
        first = (*self.block[:-3], *self.block[-2:])
        if section.shape != first or section.dtype != self.dtype:
            msg = (
                f"section {self._folder / self._files[block[-3]]} is {section.dtype} of shape "
                f"{section.shape}, but the first section {self._files[0]} is {self.dtype} of shape "
                f"{first}; use sections of one dtype and shape"
            )
            raise ChunkError(msg)
        return section[..., np.newaxis, :, :]

    def _read(self, number: int, data: bytes | None = None) -> NDArray[Any]:
        path = self._folder / self._files[number]
        if suffix_of(path, TIFF):
            from chunkflow_py.volume.files.tiff import read_section

            return read_section(path, data)
        from chunkflow_py.volume.files.png import png_image, read_png

        return read_png(path) if data is None else png_image(data, str(path))


def _sections(folder: Path) -> tuple[list[str], int]:
    """Return the file names in the order of the sections, and the z position of the first section.

    Raises:
        VolumeNotFoundError: the folder has no TIFF or PNG files.
        VolumeError: two files have the same number, or a number is missing.
    """
    names = section_files(folder)
    if not names:
        msg = f"{folder} contains no TIFF or PNG files; check the path"
        raise VolumeNotFoundError(msg)
    stems = [PurePosixPath(name).stem for name in names]
    numbers = _numbers(stems)
    if numbers is None:
        return names, 0
    by_number: dict[int, str] = {}
    for number, name in zip(numbers, names, strict=True):
        if number in by_number:
            msg = (
                f"{folder} has two files of section {number}, {by_number[number]} and {name}; move "
                "one of these two files away"
            )
            raise VolumeError(msg)
        by_number[number] = name
    first, last = min(by_number), max(by_number)
    if last - first + 1 != len(by_number):
        missing = sorted(set(range(first, last + 1)) - set(by_number)) if (
            last - first < 100 * len(by_number)
        ) else []  # fmt: skip
        shown = ", ".join(map(str, missing[:_NAMED])) or "many"
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        msg = (
            f"{folder} has the files {by_number[first]} to {by_number[last]}, but section {shown}"
            f"{more} is missing; add a file for each missing section, such as a copy of a "
            "neighbour, or number the files without gaps"
        )
        raise VolumeError(msg)
    alone = all(map(is_digits, stems))
    return [by_number[number] for number in sorted(by_number)], first if alone else 0


def _numbers(stems: Sequence[str]) -> list[int] | None:
    """Return the last number in each name, such as 7 in ``s1_007``.

    The result is ``None`` if a name has no number, or if the names differ in more than this number.
    """
    found = [_LAST_NUMBER.fullmatch(stem) for stem in stems]
    matches = [match for match in found if match is not None]
    if len(matches) != len(stems) or len({(match[1], match[3]) for match in matches}) != 1:
        return None
    return [int(match[2]) for match in matches]
