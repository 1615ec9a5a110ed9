"""Find and unpack the files of a package (a folder or a zip archive)."""

from __future__ import annotations

import hashlib
import zipfile
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from chunkflow_py.core.temporary_folders import temporary_folder
from chunkflow_py.errors import ModelError, needs_extra

NAMES = ("rdf.yaml", "bioimageio.yaml", "model.yaml")
_ENDINGS = (".rdf.yaml", ".bioimageio.yaml")


def is_package(path: str) -> bool:
    """Return whether *path* is a package: a folder, a ``.zip``, or a description file."""
    place = Path(path)
    if place.is_dir():
        return _description_in(entry.name for entry in place.iterdir()) is not None
    if place.suffix == ".zip":
        return place.is_file()
    return place.is_file() and _description_in([place.name]) is not None


class PackageFiles:
    """Accesses the files of a package by their names in the description.

    Attributes:
        path: path of the package, as the user gave it.
        description: name of the description file.
    """

    def __init__(self, path: str) -> None:
        """Find the description of the package at *path*.

        Raises:
            ModelError: the package does not exist, or contains no description.
        """
        self.path = path
        place = Path(path)
        self._zip: Path | None = None
        self._unpacked: Path | None = None
        if place.is_dir():
            self._folder, names = place, [entry.name for entry in place.iterdir()]
        elif place.suffix == ".zip" and zipfile.is_zipfile(place):
            self._zip, self._folder = place, Path()
            with zipfile.ZipFile(place) as archive:
                names = archive.namelist()
        elif place.is_file() and place.suffix != ".zip":
            self._folder, names = place.parent, [place.name]
        else:
            what = "is not a zip archive" if place.exists() else "does not exist"
            msg = f"model package {path} {what}; give a folder or .zip that contains {NAMES[0]}"
            raise ModelError(msg)
        found = _description_in(names)
        if found is None:
            msg = (
                f"model package {path} contains no {NAMES[0]} or {NAMES[1]}; add the description "
                "of the model"
            )
            raise ModelError(msg)
        self.description = found

    def read_description(self) -> dict[str, Any]:
        """Return the fields of the description.

        Raises:
            MissingExtraError: PyYAML is not installed.
            ModelError: the description is not YAML, or not a mapping.
        """
        with needs_extra("bioimage", f"model package {self.path}"):
            yaml: Any = import_module("yaml")
        try:
            found = yaml.safe_load(self.local(self.description).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            msg = f"{self.description} of model package {self.path} is not valid YAML: {reason}"
            raise ModelError(msg) from error
        if not isinstance(found, dict):
            msg = (
                f"{self.description} of model package {self.path} contains a "
                f"{type(found).__name__}, not a mapping of fields"
            )
            raise ModelError(msg)
        return found

    def has(self, name: str) -> bool:
        """Return whether the package contains the file *name*."""
        if self._zip is None:
            return (self._folder / name).is_file()
        with zipfile.ZipFile(self._zip) as archive:
            return name in archive.namelist()

    def local(self, name: str, sha256: str | None = None) -> Path:
        """Return the path of a file of the package; unpack the package if it is a zip archive.

        Unpacked files are deleted when the process ends.

        Args:
            name: name of the file, relative to the description.
            sha256: expected checksum (default: do not check).

        Raises:
            ModelError: the checksum of the file differs from *sha256*.
        """
        file = self._folder / name if self._zip is None else self._unpack(name)
        if sha256 is not None:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256.lower():
                msg = (
                    f"{name} of model package {self.path} has the SHA-256 {found}, but "
                    f"{self.description} expects {sha256}, so {name} is damaged or from another "
                    "version; download the package again"
                )
                raise ModelError(msg)
        return file

    def _unpack(self, name: str) -> Path:
        if self._zip is None:
            return self._folder / name
        if self._unpacked is None:
            self._unpacked = temporary_folder("chunkflow_model_")
        file = self._unpacked / name
        if not file.exists():
            with zipfile.ZipFile(self._zip) as archive:
                # Weights may consist of several files, and code may import its neighbours.
                archive.extractall(self._unpacked)
        return file


def is_inside(name: str) -> bool:
    """Return whether *name* is a relative path that does not lead out of the package."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _description_in(names: Any) -> str | None:
    listed = list(names)
    for name in NAMES:
        if name in listed:
            return name
    ending = sorted(name for name in listed if name.endswith(_ENDINGS) and "/" not in name)
    return ending[0] if ending else None
