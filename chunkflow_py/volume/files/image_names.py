"""Recognize image files and folders of section images by their names, without reading files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.store.local_files import os_errors

if TYPE_CHECKING:
    from pathlib import Path

TIFF, PNG = (".tif", ".tiff"), (".png",)
# extension -> module of this package that opens the file
ARRAYS = {
    ".npy": "npy", ".nrrd": "nrrd", ".nhdr": "nrrd", ".mrc": "mrc", ".rec": "mrc", ".st": "mrc",
    ".map": "mrc", ".ali": "mrc", ".mrc.gz": "mrc", ".mrc.bz2": "mrc", ".nii": "nifti",
    ".nii.gz": "nifti", ".png": "png",
}  # fmt: skip
# Formats of microscopes, which are not read; Bio-Formats converts them.
FOREIGN = (
    ".czi", ".lif", ".nd2", ".oib", ".oif", ".ims", ".vsi", ".lsm", ".dv", ".stk", ".svs", ".ndpi",
    ".dm3", ".dm4", ".dcm",
)  # fmt: skip


def is_image(path: Path) -> bool:
    """Return whether a path is an image file, or a folder of section images."""
    if path.is_dir():
        return bool(section_files(path))
    return suffix_of(path, (*TIFF, *ARRAYS, *FOREIGN)) is not None


def suffix_of(path: Path, suffixes: tuple[str, ...]) -> str | None:
    """Return the longest of *suffixes* that ends the name of *path*, or ``None``; ignore case."""
    name = path.name.lower()
    return max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default=None)


def section_files(folder: Path) -> list[str]:
    """Return the names of the TIFF files in a folder or, if it has none, of the PNG files.

    The names are in natural order: ``s2`` before ``s10``.
    """
    with os_errors("read", folder):
        paths = sorted((p for p in folder.iterdir() if p.name[0] != "."), key=natural_order)
    for extensions in (TIFF, PNG):
        if found := [path.name for path in paths if suffix_of(path, extensions)]:
            return found
    return []


def natural_order(path: Path) -> list[tuple[int, int | str]]:
    """Return a sort key that puts ``s2.png`` before ``s10.png``."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(0, int(part)) if is_digits(part) else (1, part) for part in parts]
