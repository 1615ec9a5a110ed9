"""Create HTML elements and SVG plots; text from the run is escaped, and secrets are removed."""

from __future__ import annotations

import html
import math
import re
from typing import TYPE_CHECKING

from chunkflow_py.store.store_address import public

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Elements without content.
_VOID = frozenset({"img", "meta"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")

# Sizes of plots, in units of their view box: pixels, unless the window is narrow.
WIDTH = 760
ROW = 20
LEFT = 190  # space for names
RIGHT = 120  # space for values
HEIGHT = 150  # height of a plot over time
_TICKS = 4


class Html(str):
    """Text that is already HTML; `escaped` and `tag` escape text of any other type."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return *value* as HTML: unchanged if it is `Html`, else escaped and without secrets."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(public(str(value))))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return the HTML of an element.

    Args:
        name: name of the element, such as ``table``.
        content: content of the element, in order.
        attributes: attributes of the element. In their names, ``_`` stands for ``-``, and a final
            ``_`` is removed (``class_``). Attributes with the value ``None`` are omitted.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is not the name of an HTML element"
        raise ValueError(msg)
    attribute_markup = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{attribute_markup}>")
    return Html(f"<{name}{attribute_markup}>{joined(content)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Return the HTML of *parts*, separated by the text *between*."""
    return Html(between.join(escaped(part) for part in parts))


def table(head: Iterable[object], rows: Iterable[Iterable[object]], class_: str = "") -> Html:
    """Return a table with the header row *head*; empty HTML if there are no *rows*."""
    lines = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    if not lines:
        return Html("")
    titles = tag("tr", *(tag("th", cell) for cell in head))
    whole = tag("table", tag("thead", titles), tag("tbody", *lines), class_=class_ or None)
    return tag("div", whole, class_="wide")


def facts(pairs: Iterable[tuple[object, object]]) -> Html:
    """Return a list of (name, value) *pairs* as HTML, without pairs that have an empty value."""
    rows = [joined((tag("dt", name), tag("dd", value))) for name, value in pairs if value != ""]
    return tag("dl", *rows)


# --- plots as SVG ---------------------------------------------------------------------------------


def number(value: float) -> str:
    """Format a number with three significant digits, or as in ``4,560`` if it is 1000 or more."""
    if not math.isfinite(value):
        return "infinite" if value > 0 else "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit, such as ``12.3 s``, ``4.5 min`` or ``6.7 h``."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds:.3g} s"


def bars(rows: Sequence[tuple[str, float, str]], title: str) -> Html:
    """Return a plot of horizontal bars.

    Args:
        rows: name, length (0 or more) and label of each bar. The label is written to the right of
            the bar.
        title: description of the plot, for screen readers.
    """
    most = max((length for _, length, _ in rows), default=0.0) or 1.0
    room = WIDTH - LEFT - RIGHT
    parts = []
    for index, (name, length, label) in enumerate(rows):
        top, long = index * ROW, room * length / most
        parts += [
            _text(LEFT - 6, top + 14, name, "end"),
            _rect(LEFT, top + 3, long, ROW - 6),
            _text(LEFT + long + 6, top + 14, label),
        ]
    return _svg(len(rows) * ROW + 4, title, *parts)


def over_time(bins: Sequence[tuple[float, float, float]], unit: str, title: str) -> Html:
    """Return a plot of vertical bars over time.

    Args:
        bins: start, stop and height of each bar; start and stop are seconds from the start of the
            time axis.
        unit: unit of the height.
        title: description of the plot, for screen readers.
    """
    end, most = bins[-1][1], max(height for _, _, height in bins) or 1.0
    step = _round_step(most / _TICKS)
    top = step * math.ceil(most / step)
    left, base, room = 60.0, HEIGHT - 24.0, WIDTH - 80.0
    parts = []
    for tick in range(round(top / step) + 1):
        y = base - (base - 22) * tick * step / top
        parts += [
            _line(left, y, left + room, y),
            _text(left - 6, y + 4, number(tick * step), "end"),
        ]
    for start, stop, height in bins:
        x, wide = left + room * start / end, room * (stop - start) / end
        tall = (base - 22) * height / top
        parts.append(_rect(x, base - tall, max(wide - 0.5, 0.5), tall))
    parts += _time_ticks(left, room, base, end)
    parts.append(_text(left, 12, unit))
    return _svg(HEIGHT, title, *parts)


def spans(rows: Sequence[tuple[str, float, float, str]], end: float, title: str) -> Html:
    """Return a plot with one horizontal bar per row, from its start time to its stop time.

    Args:
        rows: name, start, stop and label of each bar; start and stop are seconds from the start of
            the time axis.
        end: length of the time axis, in seconds.
        title: description of the plot, for screen readers.
    """
    room, base = WIDTH - LEFT - RIGHT, len(rows) * ROW + 4.0
    parts = _time_ticks(LEFT, room, base, end)
    for index, (name, start, stop, label) in enumerate(rows):
        top = index * ROW
        parts += [
            _text(LEFT - 6, top + 14, name, "end"),
            _rect(LEFT + room * start / end, top + 3, max(room * (stop - start) / end, 1), ROW - 6),
            _text(LEFT + room + 6, top + 14, label),
        ]
    return _svg(base + 24, title, *parts)


def _time_ticks(left: float, room: float, base: float, end: float) -> list[Html]:
    """Return the ticks of a time axis that is *end* seconds long, in a suitable unit."""
    unit, factor = next(
        ((name, each) for name, each in (("d", 86400.0), ("h", 3600.0), ("min", 60.0))
         if end >= 2 * each),
        ("s", 1.0),
    )  # fmt: skip
    step = _round_step(end / factor / 8)
    parts = []
    for tick in range(int(end / factor / step + 1e-9) + 1):
        x = left + room * tick * step * factor / end
        label = f"{number(tick * step)} {unit}"
        parts += [_line(x, base, x, base + 5), _text(x, base + 18, label, "middle")]
    return parts


def _round_step(least: float) -> float:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and at least *least*."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _svg(height: float, title: str, *parts: Html) -> Html:
    box = f"0 0 {WIDTH} {height:g}"
    # SVG inside HTML needs no XML namespace.
    return tag("svg", tag("title", title), *parts, viewBox=box, role="img", width=WIDTH)


def _rect(x: float, y: float, width: float, height: float) -> Html:
    return tag("rect", x=_place(x), y=_place(y), width=_place(width), height=_place(height))


def _line(x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", x1=_place(x1), y1=_place(y1), x2=_place(x2), y2=_place(y2))


def _text(x: float, y: float, label: str, anchor: str = "start") -> Html:
    most = 30 if anchor == "end" else 60
    shown = label if len(label) <= most else f"{label[: most - 1]}…"
    return tag("text", shown, x=_place(x), y=_place(y), text_anchor=anchor)


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
