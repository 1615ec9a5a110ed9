"""Draw the pictures of docs/concepts.md from the code that they explain.

python docs/figures/concepts.py

``grid.svg``: the patches of a domain and what one task needs, by `PatchGrid`. ``window.svg``: the
weights of two patches that overlap, by `create_window`. ``lease.svg``: how a task is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py import BoundingBox, Zyx
from chunkflow_py.inference.blend import create_window
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
BLUE, RED, GREEN, GREY = "#3366aa", "#cc3311", "#228833", "#777777"


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """Return a drawing of *parts* on white, so that it can be read on a dark page, too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join(
        [head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>\n"]
    )


def words(x: float, y: float, text: str, colour: str = "black", anchor: str = "start") -> str:
    """Return a line of text whose foot is at (x, y)."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 2) -> str:
    """Return a straight line."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def grid() -> str:
    """Draw a section through the patches of a domain, the tasks, and the input of one of them."""
    size = 24, 36  # of the domain along y and x, voxels
    geometry = PatchGeometry(Zyx(1, 12, 12), Zyx(1, 8, 8), Zyx(0, 2, 2))
    patches = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (1, *size)))
    task = BoundingBox.from_size((0, 12, 12), (1, 12, 12))
    scale, left, top = 16, 30, 40

    def box(bbox: BoundingBox, style: str) -> str:
        (_, y, x), (_, height, width) = bbox.start, bbox.size
        numbers = (left + x * scale, top + y * scale, width * scale, height * scale)
        return '<rect x="{}" y="{}" width="{}" height="{}" {}/>'.format(*numbers, style)

    parts = [
        box(patches.required_input(task), f'fill="{RED}" fill-opacity="0.12" stroke="none"'),
        box(task, f'fill="{RED}" fill-opacity="0.30" stroke="none"'),
    ]
    touched = list(patches.patches(task))
    for patch in patches.patches(patches.domain):
        opacity = 1 if patch in touched else 0.3
        inset = f'fill="none" stroke="{BLUE}" stroke-opacity="{opacity}" stroke-width="1.5"'
        parts.append(box(patch, inset))
    for y in range(0, size[0], 12):
        for x in range(0, size[1], 12):
            dashes = f'fill="none" stroke="{GREY}" stroke-width="1" stroke-dasharray="6 4"'
            parts.append(box(BoundingBox.from_size((0, y, x), (1, 12, 12)), dashes))
    parts.append(box(patches.domain, 'fill="none" stroke="black" stroke-width="2.5"'))
    right, row = left + size[1] * scale + 20, top + 14
    legend = [
        ("black", "domain: the bounds of the volume"),
        (BLUE, "output patches; strong: those that"),
        (BLUE, "touch the task. They overlap, and the"),
        (BLUE, "last ones are moved back to the end."),
        (GREY, "dashed: boxes of the tasks"),
        (RED, "dark: the box of one task"),
        (RED, "light: its halo. What it has to read"),
        (RED, "around: all input patches of its"),
        (RED, "output patches, inside of the domain."),
    ]
    parts += [
        words(right, row + 22 * number, text, colour)
        for number, (colour, text) in enumerate(legend)
    ]
    parts.append(words(left, 24, "A section of a volume: y down, x to the right"))
    return svg(right + 250, top + size[0] * scale + 20, parts)


def window() -> str:
    """Draw the weights along x of two patches of 32 that overlap by 12, and their shares."""
    size, overlap, scale, left, height = 32, 12, 11, 40, 150
    weights = create_window(Zyx(size, size, size), "wu")[size // 2, size // 2]
    weights = weights / weights.max()
    shift = size - overlap
    total = [
        (weights[k] if k < size else 0) + (weights[k - shift] if 0 <= k - shift < size else 0)
        for k in range(size + shift)
    ]

    def curve(first: int, value: Callable[[int], float], base: float, colour: str) -> str:
        points = " ".join(
            f"{left + (first + k + 0.5) * scale:.1f},{base - height * value(k):.1f}"
            for k in range(size)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'

    parts = []
    for base, text in (
        (190, "weight of a patch: most in its middle, next to nothing at its faces"),
        (400, "its share of the output: weight by the sum of all weights; the shares add up to 1"),
    ):
        parts += [
            words(left, base - height - 12, text),
            line(left, base, left + 52 * scale, base, GREY, 1),
        ]
    for first, colour in ((0, BLUE), (shift, RED)):
        parts.append(curve(first, lambda k: float(weights[k]), 190, colour))
        parts.append(curve(first, lambda k, f=first: float(weights[k] / total[f + k]), 400, colour))
        parts.append(line(left + first * scale, 420, left + (first + size) * scale, 420, colour, 4))
    parts.append(words(left, 440, "first patch", BLUE))
    parts.append(words(left + 52 * scale, 440, "second patch", RED, "end"))
    parts.append(words(left + 26 * scale, 440, "overlap", GREY, "middle"))
    return svg(left * 2 + 52 * scale, 455, parts)


def lease() -> str:
    """Draw a task whose first worker dies."""
    second = 6  # pixels of 2 seconds
    left, rows = 110, {"queue": 60, "worker A": 110, "worker B": 160, "storage": 210, "ledger": 260}
    parts = [words(10, y + 5, name) for name, y in rows.items()]
    parts += [line(left, y, left + 110 * second, y, "#dddddd", 1) for y in rows.values()]

    def span(row: str, first: int, last: int, colour: str, text: str) -> None:
        y = rows[row]
        parts.append(line(left + first * second, y, left + last * second, y, colour, 8))
        parts.append(words(left + first * second, y - 10, text, colour))

    span("queue", 0, 6, GREY, "waits")
    span("worker A", 6, 22, BLUE, "computes, renews")
    parts.append(words(left + 23 * second, rows["worker A"] + 5, "✕ killed", RED))
    span("queue", 6, 54, BLUE, "leased to A, until 120 s after the last renewal")
    span("queue", 54, 60, GREY, "")
    span("worker B", 60, 92, GREEN, "computes, renews the lease")
    span("queue", 60, 104, GREEN, "leased to B")
    span("storage", 84, 92, GREEN, "output, durable")
    span("ledger", 93, 97, GREEN, "record, once")
    parts.append(words(left + 105 * second, rows["queue"] + 5, "acknowledged", GREEN))
    parts.append(
        words(
            10,
            24,
            "A task in time, left to right. It is done when its record is written, and not before.",
        )
    )
    return svg(left + 110 * second + 70, 285, parts)


DRAWINGS = {"grid.svg": grid, "window.svg": window, "lease.svg": lease}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
