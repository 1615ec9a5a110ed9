"""Metadata of outputs: whether it still says what it said when the run was made, and its repair.

Several writers share a document: whoever adds a level to a volume, or names its meshes, adds to
the info file that the run has written. So a document is sound if it says what was recorded, and
no more than what can change the meaning of none of it:

* other fields may be added at the top of a document, and to the attributes of a zarr node;
* levels (objects with a key or a path) may be added behind those that were recorded;
* anything else is unchanged: one codec or one transformation more makes other voxels.
"""

from __future__ import annotations

import json
from typing import Any

from chunkflow_py.core.decoding import parse_json

_LEVELS = ("key", "path")  # what levels have, one or the other
_COPIES = "consolidated_metadata"  # that zarr keeps of documents below a group


def parsed(content: bytes | None) -> Any:
    """Return what a document says; ``None`` if there is none, or if it is no JSON."""
    try:
        return parse_json(content or b"")
    except ValueError:
        return None


def difference(recorded: Any, found: Any, place: str = "", *, is_open: bool = True) -> str | None:
    """Return where *found* does not say what was *recorded*, in one phrase, or ``None``.

    Args:
        recorded: a part of a document.
        found: what is there now.
        place: of the part in the document.
        is_open: whether others may add fields to objects.
    """
    if isinstance(recorded, dict) and isinstance(found, dict):
        if added := _closed_to(recorded, found, is_open=is_open):
            return f"{_joined(place, added[0])} was added"
        for name, value in recorded.items():
            where = _joined(place, name)
            if name not in found:
                return f"{where} is gone"
            inner = _is_open(recorded, name, is_open=is_open)
            if (different := difference(value, found[name], where, is_open=inner)) is not None:
                return different
        return None
    if _is_list_of_objects(recorded) and isinstance(found, list):
        if len(found) < len(recorded):
            return f"{place} has {len(found)} items, not {len(recorded)}"
        for index, value in enumerate(recorded):
            where = f"{place}[{index}]"
            if (different := difference(value, found[index], where, is_open=False)) is not None:
                return different
        name = _level_name(recorded)
        for index, value in enumerate(found[len(recorded) :], len(recorded)):
            if name is None or not isinstance(value, dict) or name not in value:
                return f"{place}[{index}] was added"
        return None
    is_same = type(recorded) is type(found) and recorded == found
    return None if is_same else f"{place or 'it'} is {_short(found)}, not {_short(recorded)}"


def restored(recorded: Any, found: Any, *, is_open: bool = True) -> Any:
    """Return *found* with what was *recorded* put back; what others may have added stays."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        refused = _closed_to(recorded, found, is_open=is_open)
        changed = {}
        for name, value in recorded.items():
            inner = _is_open(recorded, name, is_open=is_open)
            changed[name] = restored(value, found.get(name), is_open=inner)
        return {**{key: value for key, value in found.items() if key not in refused}, **changed}
    if _is_list_of_objects(recorded) and isinstance(found, list):
        name = _level_name(recorded)
        if name is None:
            rest = iter(found)
            return [restored(value, next(rest, None), is_open=False) for value in recorded]
        names = [value[name] for value in recorded]
        levels = [value for value in found if isinstance(value, dict) and name in value]
        mended = [
            restored(value, next((each for each in levels if each[name] == value[name]), None),
                     is_open=False)
            for value in recorded
        ]  # fmt: skip
        return mended + [each for each in levels if each[name] not in names]
    return recorded


def _is_open(recorded: dict[str, Any], name: str, *, is_open: bool) -> bool:
    """Tell whether others may add fields to the objects in a field."""
    return name == "attributes" if "zarr_format" in recorded else is_open


def _closed_to(recorded: dict[str, Any], found: dict[str, Any], *, is_open: bool) -> list[str]:
    """Return the fields that were added where nobody may add any."""
    if is_open and "zarr_format" not in recorded:
        return []
    return [name for name in found if name not in recorded and name != _COPIES]


def _level_name(recorded: list[dict[str, Any]]) -> str | None:
    """Return the field that tells the objects of a list of levels apart; of others ``None``."""
    return next((name for name in _LEVELS if all(name in each for each in recorded)), None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
