"""Read strict JSON: raise an error for documents that other parsers might read differently."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_DIGITS = 32  # of a whole number; SHA-256 and the like are strings


def loads(text: str | bytes) -> Any:
    """Return the content of a JSON document.

    Raises:
        ValueError: the document is not JSON in UTF-8, repeats a name in an object, contains a
            number that is not finite or an integer of more than 32 digits, or is nested too deeply
            for Python's parser.
    """
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            object_pairs_hook=_once,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError:
        msg = "the JSON is nested too deeply"
        raise ValueError(msg) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        msg = f"the JSON contains the name {twice[:80]!r} twice in one object"
        raise ValueError(msg)
    return found


def _int(digits: str) -> int:
    if len(digits) > _DIGITS:
        msg = f"the JSON has an integer of {len(digits)} digits, more than the {_DIGITS} allowed"
        raise ValueError(msg)
    return int(digits)


def _float(digits: str) -> float:
    found = float(digits)
    return found if math.isfinite(found) else _constant(digits)


def _constant(name: str) -> NoReturn:
    msg = f"the JSON contains the number {name[:80]}, which is not finite"
    raise ValueError(msg)
