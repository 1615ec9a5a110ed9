"""Find and read the files of a bundle, which is a folder or a zip archive."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.temporary_folders import temporary_folder
from chunkflow_py.errors import ModelError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

METADATA = "configs/metadata.json"
CONFIGS = ("configs/inference.json", "configs/inference.yaml", "configs/inference.yml")
_CONFIG_BYTES = 4 << 20
_MODEL_BYTES = 16 << 30
_READ_BYTES = 1 << 20
# What zipfile raises for archives that are damaged, encrypted, or packed in an unknown way.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError)


def is_bundle(path: str) -> bool:
    """Return whether *path* is a folder or a ``.zip`` with the configs of a MONAI bundle."""
    try:
        return _prefix(list(_names(Path(path)))) is not None
    except _ZIP_ERRORS:
        return False


class BundleFiles:
    """Accesses the files of a bundle by their names inside the bundle.

    Attributes:
        path: path of the bundle, as the user gave it.
    """

    def __init__(self, path: str) -> None:
        """List the files of the bundle at *path*.

        An archive may contain the files of the bundle at the top level or in one folder.

        Raises:
            ModelError: *path* does not exist, or is not a bundle.
        """
        self.path = path
        self._place = Path(path)
        self._unpacked: Path | None = None
        try:
            self._names = set(_names(self._place))
        except _ZIP_ERRORS as error:
            raise ModelError(self._damaged(error)) from error
        prefix = _prefix(list(self._names))
        if prefix is None:
            msg = (
                f"{path} is not a MONAI bundle, because it contains no {METADATA}; give the folder "
                "or .zip of a bundle"
            )
            raise ModelError(msg)
        self._prefix = prefix

    def has(self, name: str) -> bool:
        """Return whether the bundle contains the file *name*."""
        return self._prefix + name in self._names

    def metadata(self) -> dict[str, Any]:
        """Return the content of ``configs/metadata.json``.

        Raises:
            ModelError: the file is missing, or is not a JSON object.
        """
        if not self.has(METADATA):
            msg = (
                f"MONAI bundle {self.path} contains no {METADATA}; add the metadata of the network"
            )
            raise ModelError(msg)
        return self._document(METADATA)

    def inference_config(self) -> tuple[str, dict[str, Any]]:
        """Return name and content of the inference config, which is JSON or YAML.

        Raises:
            ModelError: the bundle has no inference config, or the config cannot be parsed.
            MissingExtraError: the config is YAML, and PyYAML is not installed.
        """
        for name in CONFIGS:
            if self.has(name):
                return name, self._document(name)
        msg = (
            f"MONAI bundle {self.path} contains no {CONFIGS[0]} or .yaml, so patch size and "
            "transforms are unknown; add the inference config, or give only the file of the "
            "network as --convnet-model, and state patch size and normalisation by options"
        )
        raise ModelError(msg)

    def local(self, name: str) -> Path:
        """Return the path of a file of the bundle; if the bundle is an archive, unpack the file.

        Unpacked files are deleted when the process ends.

        Raises:
            ModelError: the archive is damaged, or the file is too large.
        """
        if self._place.is_dir():
            return self._place / name
        if self._unpacked is None:
            self._unpacked = temporary_folder("chunkflow_bundle_")
        # Never the name from the archive, which may lead out of the folder.
        file = self._unpacked / name.replace("/", "_")
        if not file.exists():
            part = file.with_suffix(".part")
            with part.open("wb") as target:
                for block in self._blocks(name, _MODEL_BYTES):
                    target.write(block)
            part.replace(file)
        return file

    def checksum(self, *names: str) -> str:
        """Return one SHA-256 of the files *names*, joined in this order; 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for name in names:
            for block in self._blocks(name, _MODEL_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def _document(self, name: str) -> dict[str, Any]:
        data = b"".join(self._blocks(name, _CONFIG_BYTES))
        try:
            found = parse_json(data) if name.endswith(".json") else self._yaml(data)
        except ValueError as error:
            reason = " ".join(str(error).split())
            kind = "JSON" if name.endswith(".json") else "YAML"
            msg = (
                f"{name} of MONAI bundle {self.path} is not valid {kind}: {reason}; "
                "correct the file"
            )
            raise ModelError(msg) from error
        if not isinstance(found, dict):
            msg = (
                f"{name} of MONAI bundle {self.path} contains a {type(found).__name__}, not an "
                "object with fields; correct the file"
            )
            raise ModelError(msg)
        return found

    def _yaml(self, data: bytes) -> Any:
        with needs_extra("monai", f"the YAML config of MONAI bundle {self.path}"):
            yaml: Any = import_module("yaml")
        try:
            # An alias repeats a value, so a few lines could stand for terabytes.
            if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(data)):
                msg = "aliases (*name) are not supported"
                raise ValueError(msg)
            return yaml.safe_load(data)
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error) or "values are nested too deeply") from error

    def _blocks(self, name: str, most: int) -> Iterator[bytes]:
        # Files larger than *most* bytes are refused.
        total = 0
        try:
            with self._open(name) as file:
                while block := file.read(_READ_BYTES):
                    total += len(block)
                    if total > most:
                        break
                    yield block
        except _ZIP_ERRORS as error:
            raise ModelError(self._damaged(error, name)) from error
        if total > most:
            msg = (
                f"{name} of MONAI bundle {self.path} is larger than the limit of {most} bytes; "
                "give only the file of the network as --convnet-model"
            )
            raise ModelError(msg)

    def _open(self, name: str) -> IO[bytes]:
        if self._place.is_dir():
            return (self._place / name).open("rb")
        with zipfile.ZipFile(self._place) as archive:
            return archive.open(self._prefix + name)

    def _damaged(self, error: Exception, name: str = "") -> str:
        where = f"{name} of MONAI bundle {self.path}" if name else f"MONAI bundle {self.path}"
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"{where} cannot be read: {reason}; copy or download the bundle again"


def _names(place: Path) -> Iterator[str]:
    if place.is_dir():
        for name in (METADATA, *CONFIGS, "models/model.pt", "models/model.ts"):
            if (place / name).is_file():
                yield name
    elif place.suffix == ".zip" and place.is_file():
        with zipfile.ZipFile(place) as archive:
            yield from archive.namelist()


def _prefix(names: list[str]) -> str | None:
    # The folder of the bundle inside an archive, "" for the top level, or None.
    found = {
        name.removesuffix(config)
        for name in names
        for config in (METADATA, *CONFIGS)
        if name.endswith(config)
    }
    nearest = sorted(p for p in found if p.count("/") <= 1 and (not p or p.endswith("/")))
    return nearest[0] if nearest else None
