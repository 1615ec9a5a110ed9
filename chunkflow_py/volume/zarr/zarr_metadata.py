"""The JSON documents of zarr arrays and groups in a store: fetched, parsed, and written.

What they mean is zarr-python's to say: it is given the documents in its memory store, and asked for
the array. Only named documents are fetched, never a listing: it works on a web server too.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkflowError, VolumeError, needs_extra
from chunkflow_py.volume import ZARR_ENCODINGS

with needs_extra("zarr", "a zarr volume"):
    import zarr
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync
    from zarr.storage import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.store.protocol import Store

_UNCOMPRESSED = {"bytes", "crc32c", "sharding_indexed", "transpose"}
# written in this order: whoever sees the last one sees what it speaks of
_ORDER = (".zattrs", ".zarray", ".zgroup", "zarr.json")
# of a document that there is already, these may differ
_FREE = ("attributes", "storage_transformers", "consolidated_metadata", "must_understand")


@dataclass(frozen=True)
class GroupNode:
    """A group.

    Attributes:
        attributes: of the group.
        key: of the document that holds them.
    """

    attributes: Mapping[str, Any]
    key: str


@dataclass(frozen=True)
class ArrayNode:
    """An array.

    Attributes:
        attributes: of the array.
        document: its ``.zarray`` or ``zarr.json``.
        array: what zarr-python makes of it; no voxel is read through it.
    """

    attributes: Mapping[str, Any]
    document: Mapping[str, Any]
    array: zarr.Array[Any]


def read_node(store: Store, prefix: str = "") -> GroupNode | ArrayNode | None:
    """Return the group or array whose documents begin with *prefix*, or ``None``.

    Raises:
        VolumeError: a document is damaged; names it.
    """
    document = _document(store, f"{prefix}zarr.json", 3)
    if document is not None:
        with damage(store.url, f"{prefix}zarr.json"):
            attributes = _object(document.get("attributes", {}), "its attributes")
            if document["node_type"] == "array":
                return _array(document, attributes, "zarr.json", 3)
            if document["node_type"] != "group":
                msg = f"its node_type is {document['node_type']!r}, not array or group"
                raise ValueError(msg)
            return GroupNode(attributes, f"{prefix}zarr.json")
    old = _document(store, f"{prefix}.zarray", 2)
    beside = _document(store, f"{prefix}.zattrs")
    if old is not None:
        with damage(store.url, f"{prefix}.zarray"):
            return _array(old, beside or {}, ".zarray", 2)
    if _document(store, f"{prefix}.zgroup", 2) is None and beside is None:
        return None
    return GroupNode(beside or {}, f"{prefix}.zattrs")


@contextmanager
def damage(url: str, key: str) -> Iterator[None]:
    """Translate whatever a damaged document makes the block stumble on.

    Args:
        url: of the store.
        key: of the document.

    Raises:
        VolumeError: names the document, and what is wrong with it.
    """
    try:
        yield
    except ChunkflowError:
        raise
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"it has no {reason}"
        elif isinstance(error, (TypeError, AttributeError, IndexError)):
            reason = f"it is not built as it should be: {reason}"
        msg = f"cannot open {url}: its {key} is damaged: {reason}; restore it, or create it again"
        raise VolumeError(msg) from error


def _document(store: Store, key: str, version: int | None = None) -> dict[str, Any] | None:
    """Return the content of a document, if there is one, of this version of the format."""
    content = store.get(key, DOCUMENT_BYTES)
    if content is None:
        return None
    with damage(store.url, key):
        found = _object(parse_json(content), "it")
        if version is not None and found["zarr_format"] != version:
            msg = f"its zarr_format is {found['zarr_format']!r}, not {version}"
            raise ValueError(msg)
    return found


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        msg = f"{what} holds a {type(found).__name__}, not an object"
        raise ValueError(msg)  # noqa: TRY004  (one kind of damage)
    return found


def _array(
    document: Mapping[str, Any],
    attributes: Mapping[str, Any],
    key: str,
    version: Literal[2, 3],
) -> ArrayNode:
    for name in _codec_names(document):
        # zarr-python says no more of a codec that it does not know than its name
        if version == 3 and not _is_known(name):
            msg = f"its blocks are encoded by {name!r}, which is not known"
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
    """Return the name of the compression of an array's blocks, if it is one of `ZARR_ENCODINGS`."""
    compressor = document.get("compressor")
    names = _codec_names(document) if compressor is None else [compressor.get("id")]
    known = [name for name in names if name in ZARR_ENCODINGS]
    if known:
        return str(known[0])
    return "raw" if {*names} <= _UNCOMPRESSED else None


def _is_known(name: str) -> bool:
    from zarr.registry import get_codec_class

    try:
        get_codec_class(name)
    except KeyError:
        return False
    return True


def documents_of(memory: MemoryStore) -> dict[str, bytes]:
    """Return what zarr-python has written into its memory store."""

    async def collect() -> dict[str, bytes]:
        prototype = default_buffer_prototype()
        found: dict[str, bytes] = {}
        async for key in memory.list():
            value = await memory.get(key, prototype)
            if value is not None:
                found[key] = value.to_bytes()
        return found

    return sync(collect())


def document_keys(*prefixes: str) -> tuple[str, ...]:
    """Return the keys that documents of nodes may have, of either version of the format."""
    return tuple(dict.fromkeys(f"{prefix}{name}" for prefix in prefixes for name in _ORDER))


def write_documents(
    store: Store, documents: Mapping[str, bytes], url: str, *, overwrite: bool = False
) -> None:
    """Write documents, arrays before their group; what is there already is kept.

    A group gets the levels that it does not have.

    Args:
        store: below the volume.
        documents: content by key.
        url: for messages.
        overwrite: replace documents of another volume.

    Raises:
        VolumeError: there is another volume already; says what differs. Nothing is written then.
    """
    old, new = ((".zarray", ".zgroup"), ("zarr.json",))
    others = new if any(key.endswith(old) for key in documents) else old
    if found := next((key for key in others if store.size(key) is not None), None):
        msg = f"{url} holds a zarr volume of another version already ({found}); write elsewhere"
        raise VolumeError(msg)
    missing = {}
    for key in sorted(documents, key=_rank):
        merge = partial(_merged, new=documents[key], key=key, url=url, overwrite=overwrite)
        found_content = store.get(key, DOCUMENT_BYTES)
        if found_content is None or merge(found_content) != found_content:
            missing[key] = merge
    for key, merge in missing.items():
        store.update(key, merge)


def _rank(key: str) -> tuple[int, int]:
    return -key.count("/"), _ORDER.index(key.rpartition("/")[2])


def _merged(found: bytes | None, *, new: bytes, key: str, url: str, overwrite: bool) -> bytes:
    """Return a document with what *new* adds to it.

    Raises:
        VolumeError: they differ.
    """
    if found is None:
        return new
    try:
        old, wanted = parse_json(found), json.loads(new)
        if key.endswith(".zattrs"):
            merged = _merged_attributes(old, wanted, key, url)
        else:
            for field in wanted:
                if field not in _FREE and old.get(field) != wanted[field]:
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
        msg = f"{key} of {url} is damaged ({error!r}); --overwrite replaces it"
        raise VolumeError(msg) from error
    return found if merged == old else json.dumps(merged, indent=2).encode()


def _merged_attributes(old: Any, new: Any, key: str, url: str) -> dict[str, Any]:
    """Return *old* with what it lacks of *new*; images also get the levels that they lack."""
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
    if image.get("axes") != wanted["axes"]:
        _refuse(url, "axes", key, image.get("axes"), wanted["axes"])
    there = {str(dataset["path"]): dataset for dataset in image["datasets"]}
    for dataset in wanted["datasets"]:
        path, steps = dataset["path"], dataset["coordinateTransformations"]
        is_ = there.setdefault(path, dataset).get("coordinateTransformations")
        if is_ != steps:
            _refuse(url, f"scale and translation at mip {path}", key, is_, steps)
    datasets = list(there.values())
    if all(is_digits(path) for path in there):
        datasets.sort(key=lambda dataset: int(dataset["path"]))
    return [{**image, "datasets": datasets}, *more]


def _refuse(url: str, field: str, key: str, old: Any, new: Any) -> None:
    if field == "dtype":  # uint8 rather than |u1
        old, new = np.dtype(old).name, np.dtype(new).name
    msg = (
        f"{url} holds another volume already: its {field} ({key}) is {old}, not {new}; write to "
        "another place, or have --overwrite replace it, after which blocks of the old layout can "
        "no longer be read"
    )
    raise VolumeError(msg)
