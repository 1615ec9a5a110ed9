"""Compare the metadata of outputs with recorded copies, and restore changed metadata.

Other programs may add values to the metadata of an output: for example, a resolution level, or the
location of meshes in an info file. Metadata is therefore valid if all recorded values are unchanged
and only these harmless values were added:

* fields at the top level of a document, and fields in the attributes of a zarr node;
* resolution levels (objects with the field ``key`` or ``path``) after the recorded levels.

Any other addition, such as a codec or a transformation, would change the voxels and is an error.
"""

from __future__ import annotations

import json
from typing import Any

from chunkflow_py.core.decoding import parse_json

_LEVELS = ("key", "path")  # fields that identify a level in precomputed and OME-Zarr metadata
_COPIES = "consolidated_metadata"  # zarr's copies of the documents below a group


def parsed(content: bytes | None) -> Any:
    """Return the value of a JSON document; ``None`` if the document is missing or invalid."""
    try:
        return parse_json(content or b"")
    except ValueError:
        return None


def difference(recorded: Any, current: Any, place: str = "", *, is_open: bool = True) -> str | None:
    """Return a phrase about the first forbidden change of a document; ``None`` if there is none.

    Args:
        recorded: value from the recorded document.
        current: value of the same field in the stored document.
        place: path of the field in the document, for the phrase; empty for the whole document.
        is_open: whether other programs may add fields to this value, if it is an object.
    """
    if isinstance(recorded, dict) and isinstance(current, dict):
        if added := _forbidden_fields(recorded, current, is_open=is_open):
            return f"{_joined(place, added[0])} was added"
        for name, value in recorded.items():
            where = _joined(place, name)
            if name not in current:
                return f"{where} is missing"
            inner = _is_open(recorded, name, is_open=is_open)
            if (different := difference(value, current[name], where, is_open=inner)) is not None:
                return different
        return None
    if _is_list_of_objects(recorded) and isinstance(current, list):
        if len(current) < len(recorded):
            return f"{place} has {len(current)} items, not {len(recorded)}"
        for index, value in enumerate(recorded):
            where = f"{place}[{index}]"
            if (different := difference(value, current[index], where, is_open=False)) is not None:
                return different
        name = _level_name(recorded)
        for index, value in enumerate(current[len(recorded) :], len(recorded)):
            if name is None or not isinstance(value, dict) or name not in value:
                return f"{place}[{index}] was added"
        return None
    is_same = type(recorded) is type(current) and recorded == current
    return (
        None if is_same else f"{place or 'the file'} is {_short(current)}, not {_short(recorded)}"
    )


def restored(recorded: Any, current: Any, *, is_open: bool = True) -> Any:
    """Return *recorded* with those additional values of *current* that are allowed.

    *is_open* is whether other programs may add fields to *recorded*, if *recorded* is an object.
    """
    if isinstance(recorded, dict) and isinstance(current, dict):
        forbidden = _forbidden_fields(recorded, current, is_open=is_open)
        changed = {}
        for name, value in recorded.items():
            inner = _is_open(recorded, name, is_open=is_open)
            changed[name] = restored(value, current.get(name), is_open=inner)
        return {**{key: value for key, value in current.items() if key not in forbidden}, **changed}
    if _is_list_of_objects(recorded) and isinstance(current, list):
        name = _level_name(recorded)
        if name is None:
            remaining = iter(current)
            return [restored(value, next(remaining, None), is_open=False) for value in recorded]
        names = [value[name] for value in recorded]
        levels = [value for value in current if isinstance(value, dict) and name in value]
        result = [
            restored(value, next((each for each in levels if each[name] == value[name]), None),
                     is_open=False)
            for value in recorded
        ]  # fmt: skip
        return result + [each for each in levels if each[name] not in names]
    return recorded


def _is_open(recorded: dict[str, Any], name: str, *, is_open: bool) -> bool:
    return name == "attributes" if "zarr_format" in recorded else is_open


def _forbidden_fields(
    recorded: dict[str, Any], current: dict[str, Any], *, is_open: bool
) -> list[str]:
    if is_open and "zarr_format" not in recorded:
        return []
    return [name for name in current if name not in recorded and name != _COPIES]


def _level_name(recorded: list[dict[str, Any]]) -> str | None:
    return next((name for name in _LEVELS if all(name in each for each in recorded)), None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
