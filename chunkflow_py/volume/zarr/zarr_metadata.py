"""Read, check, merge and write the JSON documents of zarr arrays and groups.

zarr-python interprets the documents: this module copies the documents to a memory store, from which
zarr-python opens the array. Documents are fetched by name and never listed, so that volumes on web
servers can also be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError, needs_extra
from chunkflow_py.volume import ZARR_ENCODINGS
from chunkflow_py.volume.foreign_errors import reason_of, translated_errors

with needs_extra("zarr", "a zarr volume"):
    import zarr
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync
    from zarr.storage import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from chunkflow_py.store.store_protocol import Store

_UNCOMPRESSED = {"bytes", "crc32c", "sharding_indexed", "transpose"}
# the order of writing: a reader that sees a document also sees those that it refers to
_ORDER = (".zattrs", ".zarray", ".zgroup", "zarr.json")
# fields that may differ in an existing document
_MAY_DIFFER = ("attributes", "storage_transformers", "consolidated_metadata", "must_understand")


@dataclass(frozen=True)
class GroupNode:
    """A zarr group.

    Attributes:
        attributes: attributes of the group.
        key: key of the document with the attributes.
    """

    attributes: Mapping[str, Any]
    key: str


@dataclass(frozen=True)
class ArrayNode:
    """A zarr array.

    Attributes:
        attributes: attributes of the array.
        document: content of the ``.zarray`` or ``zarr.json`` of the array.
        array: array of zarr-python, which provides the metadata but does not read voxels.
    """

    attributes: Mapping[str, Any]
    document: Mapping[str, Any]
    array: zarr.Array[Any]


def read_node(store: Store, prefix: str = "") -> GroupNode | ArrayNode | None:
    """Return the group or array at key prefix *prefix*, or ``None`` if there is neither.

    Raises:
        VolumeError: a document is damaged.
    """
    document = _document(store, f"{prefix}zarr.json", 3)
    if document is not None:
        with damage(store.url, f"{prefix}zarr.json"):
            attributes = _object(document.get("attributes", {}), "the field attributes")
            if document["node_type"] == "array":
                return _array(document, attributes, "zarr.json", 3)
            if document["node_type"] != "group":
                msg = f"node_type is {document['node_type']!r}, but must be array or group"
                raise ValueError(msg)
            return GroupNode(attributes, f"{prefix}zarr.json")
    array = _document(store, f"{prefix}.zarray", 2)
    attributes_v2 = _document(store, f"{prefix}.zattrs")
    if array is not None:
        with damage(store.url, f"{prefix}.zarray"):
            return _array(array, attributes_v2 or {}, ".zarray", 2)
    if _document(store, f"{prefix}.zgroup", 2) is None and attributes_v2 is None:
        return None
    return GroupNode(attributes_v2 or {}, f"{prefix}.zattrs")


def damage(url: str, key: str) -> AbstractContextManager[None]:
    """Turn any exception in a ``with`` block into an error that says which document is damaged.

    Args:
        url: address of the store.
        key: key of the document.
    """
    return translated_errors(
        f"cannot open {url}: {key} is damaged",
        f"; restore {key}, or create the volume again",
        _problem,
    )


def _problem(error: Exception) -> str:
    reason = reason_of(error)
    if isinstance(error, KeyError):
        return f"the field {reason} is missing"
    if isinstance(error, (TypeError, AttributeError, IndexError)):
        return f"the document has an unexpected structure: {reason}"
    return reason


def _document(store: Store, key: str, version: int | None = None) -> dict[str, Any] | None:
    """Return a document, or ``None`` if it does not exist.

    Raises:
        VolumeError: the document is damaged, or is of another zarr version than *version*.
    """
    content = store.get(key, DOCUMENT_BYTES)
    if content is None:
        return None
    with damage(store.url, key):
        document = _object(parse_json(content), "the document")
        if version is not None and document["zarr_format"] != version:
            msg = f"zarr_format is {document['zarr_format']!r}, but must be {version}"
            raise ValueError(msg)
    return document


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{what} contains a {type(value).__name__}, not a JSON object"
        raise ValueError(msg)  # noqa: TRY004  (one kind of damage)
    return value


def _array(
    document: Mapping[str, Any],
    attributes: Mapping[str, Any],
    key: str,
    version: Literal[2, 3],
) -> ArrayNode:
    for name in _codec_names(document):
        # the error of zarr-python for an unknown codec is only its name
        if version == 3 and not _is_known(name):
            msg = f"the array has the codec {name!r}, which zarr-python does not support"
            raise ValueError(msg)
    buffer = default_buffer_prototype().buffer
    memory = MemoryStore({key: buffer.from_bytes(json.dumps(document).encode())})
    return ArrayNode(attributes, document, zarr.open_array(memory, mode="r", zarr_format=version))


def _codec_names(document: Any) -> list[str]:
    names = []
    for codec in document.get("codecs") or ():
        names += [codec["name"], *_codec_names(codec.get("configuration") or {})]
    return names


def encoding_of(document: Mapping[str, Any]) -> str | None:
    """Return the name of an array's compression in `ZARR_ENCODINGS`.

    If `ZARR_ENCODINGS` has no name for the compression, the result is ``None``.
    """
    compressor = document.get("compressor")
    names = _codec_names(document) if compressor is None else [compressor.get("id")]
    encodings = [name for name in names if name in ZARR_ENCODINGS]
    if encodings:
        return str(encodings[0])
    return "raw" if {*names} <= _UNCOMPRESSED else None


def _is_known(name: str) -> bool:
    from zarr.registry import get_codec_class

    try:
        get_codec_class(name)
    except KeyError:
        return False
    return True


def documents_of(memory: MemoryStore) -> dict[str, bytes]:
    """Return the documents that zarr-python has written to its store: key -> content."""

    async def collect() -> dict[str, bytes]:
        prototype = default_buffer_prototype()
        documents: dict[str, bytes] = {}
        async for key in memory.list():
            value = await memory.get(key, prototype)
            if value is not None:
                documents[key] = value.to_bytes()
        return documents

    return sync(collect())


def document_keys(*prefixes: str) -> tuple[str, ...]:
    """Return the keys that documents of groups and arrays at *prefixes* may have, v2 and v3."""
    return tuple(dict.fromkeys(f"{prefix}{name}" for prefix in prefixes for name in _ORDER))


def write_documents(
    store: Store, documents: Mapping[str, bytes], url: str, *, overwrite: bool = False
) -> None:
    """Write documents of arrays first, then the document of the group that contains the arrays.

    An existing document of the same volume is kept. Missing levels are added to the document of an
    existing group.

    Args:
        store: store of the volume.
        documents: key -> content.
        url: address of the volume, for messages.
        overwrite: whether to replace documents of another volume.

    Raises:
        VolumeError: another volume exists; nothing is written, and the message names the
            difference.
    """
    old, new = ((".zarray", ".zgroup"), ("zarr.json",))
    others = new if any(key.endswith(old) for key in documents) else old
    if existing := next((key for key in others if store.size(key) is not None), None):
        msg = (
            f"{url} already contains a zarr volume of another zarr version ({existing}); write to "
            "another address"
        )
        raise VolumeError(msg)
    changes = {}
    for key in sorted(documents, key=_rank):
        merge = partial(_merged, new=documents[key], key=key, url=url, overwrite=overwrite)
        content = store.get(key, DOCUMENT_BYTES)
        if content is None or merge(content) != content:
            changes[key] = merge
    for key, merge in changes.items():
        store.update(key, merge)


def _rank(key: str) -> tuple[int, int]:
    return -key.count("/"), _ORDER.index(key.rpartition("/")[2])


def _merged(existing: bytes | None, *, new: bytes, key: str, url: str, overwrite: bool) -> bytes:
    """Return an existing document with the additions of *new*.

    Raises:
        VolumeError: the documents describe different volumes.
    """
    if existing is None:
        return new
    try:
        old, wanted = parse_json(existing), json.loads(new)
        if key.endswith(".zattrs"):
            merged = _merged_attributes(old, wanted, key, url)
        else:
            for field in wanted:
                if field not in _MAY_DIFFER and old.get(field) != wanted[field]:
                    _refuse(url, field, key, old.get(field), wanted[field])
            merged = dict(old)
            if "attributes" in wanted:
                attributes = old.get("attributes", {})
                merged["attributes"] = _merged_attributes(
                    attributes, wanted["attributes"], key, url
                )
    except VolumeError:
        if overwrite:
            return new
        raise
    except (ValueError, AttributeError, TypeError, LookupError) as error:
        if overwrite:
            return new
        msg = f"{key} of {url} is damaged ({error!r}); replace {key} with --overwrite"
        raise VolumeError(msg) from error
    return existing if merged == old else json.dumps(merged, indent=2).encode()


def _merged_attributes(old: Any, new: Any, key: str, url: str) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        if name == "ome":
            merged[name] = _merged_attributes(old.get(name, {}), value, key, url)
        elif name == "multiscales":
            merged[name] = _merged_images(old.get(name), value, key, url)
        elif name not in old or name in ("omero", "image-label"):
            merged.setdefault(name, value)
        elif old[name] != value:
            _refuse(url, name, key, old[name], value)
    return merged


def _merged_images(old: Any, new: Any, key: str, url: str) -> list[Any]:
    if not old:
        return list(new)
    (image, *more), (wanted,) = old, new
    for field in ("axes", "coordinateSystems"):
        if image.get(field) != wanted.get(field):
            _refuse(url, field, key, image.get(field), wanted.get(field))
    by_path = {str(dataset["path"]): dataset for dataset in image["datasets"]}
    for dataset in wanted["datasets"]:
        path, new_transform = dataset["path"], dataset["coordinateTransformations"]
        old_transform = by_path.setdefault(path, dataset).get("coordinateTransformations")
        if old_transform != new_transform:
            field = f"scale and translation at mip {path}"
            _refuse(url, field, key, old_transform, new_transform)
    datasets = list(by_path.values())
    if all(is_digits(path) for path in by_path):
        datasets.sort(key=lambda dataset: int(dataset["path"]))
    return [{**image, "datasets": datasets}, *more]


def _refuse(url: str, field: str, key: str, old: Any, new: Any) -> None:
    if field == "dtype":  # uint8 rather than |u1
        old, new = np.dtype(old).name, np.dtype(new).name
    msg = (
        f"{url} already contains another volume, where {field} ({key}) is {old}, but the new "
        f"volume has {new}; write to another address, or replace the metadata with --overwrite "
        "(then stored blocks of the other volume can no longer be read)"
    )
    raise VolumeError(msg)
