"""Find and read the files of a trained model (a folder or a zip archive)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from typing import BinaryIO

PLANS, DATASET = "plans.json", "dataset.json"
_MOST_JSON = 64 << 20  # bytes
_MOST_WEIGHTS = 16 << 30
_MOST_RATIO = 50  # weights hardly compress; a file that does would fill the memory


class ModelFiles:
    """Reads the files of a trained model by their names.

    Attributes:
        path: path of the folder or zip archive, as the user gave it.
        names: paths of all files, relative to the folder that contains ``plans.json``.
    """

    def __init__(self, path: str) -> None:
        """List the files of the model at *path*.

        An archive may contain the files at the top level or in a folder.

        Raises:
            ModelError: *path* does not exist, or lacks ``plans.json`` or ``dataset.json``.
        """
        self.path, place = path, Path(path)
        self._zip: Path | None = None
        self._folder, self._prefix = place, ""
        if place.is_dir():
            self.names = frozenset(
                file.relative_to(place).as_posix()
                for pattern in ("*", "fold_*/*")
                for file in place.glob(pattern)
                if file.is_file()
            )
        elif place.is_file() and zipfile.is_zipfile(place):
            self._zip = place
            with zipfile.ZipFile(place) as archive:
                names = archive.namelist()
            plans = [name for name in names if PurePosixPath(name).name == PLANS]
            if plans:
                nearest = min(plans, key=lambda name: (name.count("/"), name))
                self._prefix = nearest.removesuffix(PLANS)
            inside = (name for name in names if name.startswith(self._prefix))
            self.names = frozenset(name.removeprefix(self._prefix) for name in inside)
        else:
            what = "is neither a folder nor a zip archive" if place.exists() else "does not exist"
            msg = f"model {path} {what}; give {_WHAT}"
            raise ModelError(msg)
        for name in (PLANS, DATASET):
            if name not in self.names:
                msg = f"model {path} contains no {name}; give {_WHAT}"
                raise ModelError(msg)

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the model.

        Raises:
            ModelError: the file is too large, not JSON, or not an object.
        """
        try:
            found = parse_json(self._content(name, _MOST_JSON))
        except ValueError as error:
            msg = f"{name} of model {self.path} is not JSON: {error}; copy the file again"
            raise ModelError(msg) from error
        if not isinstance(found, dict):
            msg = (
                f"{name} of model {self.path} contains a {type(found).__name__}, not a JSON "
                "object; copy the file again"
            )
            raise ModelError(msg)
        return found

    def open_weights(self, name: str) -> BinaryIO:
        """Open a weight file; the returned stream supports ``seek``."""
        if self._zip is None:
            return (self._folder / name).open("rb")
        return io.BytesIO(self._content(name, _MOST_WEIGHTS))

    def _content(self, name: str, most: int) -> bytes:
        if self._zip is None:
            file = self._folder / name
            size, packed = file.stat().st_size, _MOST_WEIGHTS
        else:
            with zipfile.ZipFile(self._zip) as archive:
                entry = archive.getinfo(self._prefix + name)
            size, packed = entry.file_size, entry.compress_size
        limit = min(most, packed * _MOST_RATIO + _MOST_JSON)
        if size > limit:
            msg = (
                f"{name} of model {self.path} has {size} bytes unpacked, but the limit for this "
                f"file is {limit} bytes; check the model"
            )
            raise ModelError(msg)
        if self._zip is None:
            return (self._folder / name).read_bytes()
        try:
            with zipfile.ZipFile(self._zip) as archive:
                return archive.read(self._prefix + name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            msg = f"{name} of model {self.path} is damaged ({error}); copy the file again"
            raise ModelError(msg) from error


_WHAT = (
    "the folder that nnU-Net v2 has trained (TRAINER__PLANS__CONFIGURATION, with plans.json, "
    "dataset.json and fold_*), a .zip of it, or the result of chunkflow import-model"
)
