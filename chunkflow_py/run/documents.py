"""Metadata of outputs: whether it still says what it said when the run was made, and its repair.

Several writers share a document: whoever adds a level to a volume, or names its meshes, adds to
the info file that the run has written. So a document is sound if it *contains* what was recorded:

* of an object every field that was recorded, with a value that contains what was recorded;
* of a list of objects each one that was recorded, in their order, others before, between, behind;
* anything else unchanged.
"""

from __future__ import annotations

import json
from typing import Any

# What tells the objects of a list apart, in metadata of the formats that are written.
_NAMES = ("key", "path", "name", "id")


def parsed(content: bytes | None) -> Any:
    """Return what a document says; ``None`` if there is none, or if it is no JSON."""
    try:
        return json.loads(content or b"")
    except (ValueError, RecursionError):
        return None


def difference(recorded: Any, found: Any, place: str = "") -> str | None:
    """Return where *found* does not contain what was *recorded*, in one phrase, or ``None``."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for name, value in recorded.items():
            where = f"{place}.{name}" if place else name
            if name not in found:
                return f"{where} is gone"
            if (different := difference(value, found[name], where)) is not None:
                return different
        return None
    if _is_list_of_objects(recorded) and isinstance(found, list):
        rest = iter(found)
        for index, value in enumerate(recorded):
            if not any(difference(value, other) is None for other in rest):
                return _first_difference(value, found, f"{place}[{index}]")
        return None
    is_same = type(recorded) is type(found) and recorded == found
    return None if is_same else f"{place or 'it'} is {_short(found)}, not {_short(recorded)}"


def restored(recorded: Any, found: Any) -> Any:
    """Return *found* with what was *recorded* put back; what others have added stays."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        changed = {name: restored(value, found.get(name)) for name, value in recorded.items()}
        return {**found, **changed}
    if _is_list_of_objects(recorded) and isinstance(found, list):
        mended, rest = [], list(found)
        for value in recorded:
            index = _counterpart(value, rest)
            mended.append(restored(value, None if index is None else rest.pop(index)))
        return mended + rest
    return recorded


def _first_difference(recorded: Any, found: list[Any], place: str) -> str:
    index = _counterpart(recorded, found)
    if index is None:
        return f"{place} is gone"
    return difference(recorded, found[index], place) or f"{place} is in another place"


def _counterpart(recorded: Any, found: list[Any]) -> int | None:
    """Return the position of the object that has the same name, or else of an equal one."""
    for name in _NAMES:
        if name in recorded:
            for index, other in enumerate(found):
                if isinstance(other, dict) and other.get(name) == recorded[name]:
                    return index
            return None
    return next((i for i, other in enumerate(found) if difference(recorded, other) is None), None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
