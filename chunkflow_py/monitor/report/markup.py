"""HTML in which everything is escaped that was not made here, and nothing secret is said."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from chunkflow_py.store.address import public

if TYPE_CHECKING:
    from collections.abc import Iterable

# Elements without content.
_VOID = frozenset({"img", "meta"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


class Html(str):
    """Text that is HTML already; any other text is escaped when it becomes part of a page."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return *value* as HTML: as it is if it is HTML, else escaped and without secrets."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(public(str(value))))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: of the element.
        content: of the element, in order.
        attributes: by name; ``_`` stands for ``-``, and one at the end is left out (``class_``).
            ``None`` leaves an attribute out.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is no name of an element"
        raise ValueError(msg)
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(content)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Return all *parts*, one after the other."""
    return Html(between.join(escaped(part) for part in parts))


def table(head: Iterable[object], rows: Iterable[Iterable[object]], class_: str = "") -> Html:
    """Return a table; without *rows* nothing."""
    lines = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    if not lines:
        return Html("")
    titles = tag("tr", *(tag("th", cell) for cell in head))
    whole = tag("table", tag("thead", titles), tag("tbody", *lines), class_=class_ or None)
    return tag("div", whole, class_="wide")


def facts(pairs: Iterable[tuple[object, object]]) -> Html:
    """Return a list of names and values; those without a value are left out."""
    rows = [joined((tag("dt", name), tag("dd", value))) for name, value in pairs if value != ""]
    return tag("dl", *rows)
