"""Record the source of a copied volume in the copy, so that blocks of two sources do not mix.

In a folder or bucket, the record is the object ``chunkflow_convert.json``. In an HDF5 file, the
record is the attribute ``chunkflow_convert`` of the dataset. The record is JSON and never evaluated
as code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.hdf5_io import attribute
from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.store.store_protocol import Access
    from chunkflow_py.volume.location import Location

OBJECT = "chunkflow_convert.json"
_ATTRIBUTE = "chunkflow_convert"
_OVERWRITING = "overwriting"  # in a record: blocks of another source may remain
# objects that describe volumes; every other object holds a part of a volume
_DOCUMENTS = {
    OBJECT, "info", "provenance", "attributes.json", "zarr.json", ".zarray", ".zattrs", ".zgroup",
    ".zmetadata",
}  # fmt: skip


@dataclass(frozen=True)
class CopyRecord:
    """Record of the source of a copied volume, stored inside the copy.

    Attributes:
        place: location of the copy.
        dataset: name of the dataset if the copy is in an HDF5 file, else ``None``.
        access: credentials and options of the store.
    """

    place: Location
    dataset: str | None
    access: Access

    def begin(self, copied: Mapping[str, Any], *, overwrite: bool, dry_run: bool = False) -> None:
        """Record the source of a copy; if a record exists, check that it names this source.

        Call this method before the first block is written.

        Args:
            copied: description of the source and of the copied part, as JSON values.
            overwrite: whether this copy replaces all blocks, whatever their source. If true, an
                existing record of another source is replaced.
            dry_run: whether to only check the record, without writing.

        Raises:
            VolumeError: the volume has blocks of another source, and *overwrite* is false.
        """
        record = self.read()
        if overwrite:
            if record != copied and not dry_run:
                self._put({**copied, _OVERWRITING: True})
            return
        if record is None and not self._is_empty():
            record = self.read()  # another process may have begun the same copy meanwhile
            if record is None:
                msg = (
                    f"{self.place} contains blocks that this copy did not write; replace these "
                    "blocks with --overwrite, or convert to another address"
                )
                raise VolumeError(msg)
        if record is None:
            if dry_run or self._put_if_absent(copied):
                return
            record = self.read()
        self._check(record or {}, copied)

    def end(self, copied: Mapping[str, Any]) -> None:
        """Record that all blocks are copied."""
        if self.read() != copied:
            self._put(copied)

    def read(self) -> dict[str, Any] | None:
        """Return the stored record, or ``None`` if the volume has none.

        Raises:
            VolumeError: the record is damaged.
        """
        if self.dataset is not None:
            from chunkflow_py.volume.files.hdf5_file import reading

            with reading(self.place.folder) as file:
                data = attribute(self._found_in(file), _ATTRIBUTE, str(self.place))
        else:
            data = self._store.get(OBJECT, DOCUMENT_BYTES)
        try:
            record: Any = {} if data is None else parse_json(data)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            msg = f"{OBJECT} of {self.place} is damaged; copy all blocks again with --overwrite"
            raise VolumeError(msg)
        return record or None

    def _check(self, record: Mapping[str, Any], copied: Mapping[str, Any]) -> None:
        if record.get(_OVERWRITING):
            msg = (
                f"{self.place} was being overwritten by a copy that did not finish, and may "
                "contain blocks of two volumes; run the copy with --overwrite again"
            )
            raise VolumeError(msg)
        for name, wanted in copied.items():
            if record.get(name) != wanted:
                msg = (
                    f"{self.place} contains a different copy, with {name} "
                    f"{_shown(record.get(name))}, but this copy has {name} {_shown(wanted)}; "
                    "replace all blocks with --overwrite, or convert to another address"
                )
                raise VolumeError(msg)

    @property
    def _store(self) -> Any:
        return open_store(self.place.store_url, self.access)

    def _is_empty(self) -> bool:
        if self.dataset is not None:
            from chunkflow_py.volume.files.hdf5_file import reading

            with reading(self.place.folder) as file:
                return int(self._found_in(file).id.get_storage_size()) == 0
        return all(key.rpartition("/")[2] in _DOCUMENTS for key in self._store.list())

    def _found_in(self, file: Any) -> Any:
        from chunkflow_py.volume.files.hdf5 import find_dataset

        return find_dataset(file, self.place.folder, self.dataset)

    def _put(self, record: Mapping[str, Any]) -> None:
        if self.dataset is not None:
            from chunkflow_py.volume.files.hdf5_file import writing

            with writing(self.place.folder) as (file, _):
                self._found_in(file).attrs[_ATTRIBUTE] = _encoded(record).decode()
        else:
            self._store.put(OBJECT, _encoded(record), content_type="application/json")

    def _put_if_absent(self, record: Mapping[str, Any]) -> bool:
        if self.dataset is None:
            return bool(self._store.put_if_absent(OBJECT, _encoded(record)))
        from chunkflow_py.volume.files.hdf5_file import writing

        with writing(self.place.folder) as (file, _):
            attributes = self._found_in(file).attrs
            if is_new := _ATTRIBUTE not in attributes:
                attributes[_ATTRIBUTE] = _encoded(record).decode()
        return is_new


def _encoded(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=2).encode() + b"\n"


def _shown(value: object) -> str:
    return "not recorded" if value is None else str(value)
