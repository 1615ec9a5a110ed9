r"""Show a view on a terminal: a few lines that are updated in place, below all other output.

```
INFO: what was printed before
                                  <- the cursor rests here, at the start of an empty line
####....  38 %  3 of 8 tasks      <- the view
compute  inference  31 of 68
```

A line that this or another process prints appears at the cursor, and the view is drawn again below
that line. To erase the view, everything below the cursor is erased, including lines that a resized
terminal has wrapped. If the process dies without erasing the view, the shell's prompt appears above
the view. The view is drawn with a single write. Newer terminals show this write atomically (mode
2026), so the view does not flicker.

The control sequences are those of ECMA-48. ``?7`` (wrap lines) and ``?2026`` (atomic updates) are
private modes; terminals without these modes ignore the sequences.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

PERIOD_S = 0.2
_BEGIN, _END = "\x1b[?2026h\x1b[?7l", "\x1b[?7h\x1b[?2026l"
_ERASE, _TO_THE_END = "\r\x1b[J", "\x1b[K"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m"}

_shown: list[Screen] = []  # at most one


class Row(NamedTuple):
    """One line of a view.

    Attributes:
        text: text of the line, which is cut to the width of the terminal.
        style: ``bold``, ``dim``, ``red``, or empty for plain text.
    """

    text: str
    style: str = ""


class Screen:
    """View on a terminal that a background thread redraws every `PERIOD_S` seconds.

    Args:
        stream: output stream that writes to the terminal.
        rows: thread-safe function that returns the lines to show.
    """

    def __init__(self, stream: TextIO, rows: Callable[[], Sequence[Row]]) -> None:
        self._stream, self._rows = stream, rows
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)
        self._is_styled = not os.environ.get("NO_COLOR")

    def __enter__(self) -> Screen:
        """Show the view and start the thread that redraws it."""
        _shown.append(self)
        self.draw()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Erase the view and stop the thread that redraws it."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            self._write(_ERASE)
            _shown.remove(self)
        self._thread.join(1)

    def draw(self) -> None:
        """Draw the view with its current rows, unless the view was already erased."""
        rows = self._rows()
        with self._lock:
            if not self._ended.is_set():
                self._write(self._drawn(rows))

    @contextmanager
    def above(self) -> Iterator[None]:
        """Return a context in which printed text appears above the view."""
        with self._lock:
            self._write("" if self._ended.is_set() else _ERASE)
            yield
        self.draw()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self.draw()

    def _drawn(self, rows: Sequence[Row]) -> str:
        columns, height = _size(self._stream)
        most = height - 2
        if len(rows) > most:
            hidden = len(rows) - most + 1
            rows = [*rows[: max(0, most - 1)], Row(f"… and {hidden} more")][: max(0, most)]
        lines = [self._line(row, columns - 1) for row in rows]
        back = f"\x1b[{len(lines)}A" if lines else ""
        below = "".join(f"\n{line}{_TO_THE_END}" for line in lines)
        # Printed text may have moved the cursor into the view: erase the rest of that line.
        return f"{_BEGIN}{_TO_THE_END}{below}\x1b[J{back}\r{_END}"

    def _line(self, row: Row, columns: int) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        text = clipped(row.text, columns).encode(encoding, "replace").decode(encoding)
        style = _STYLES.get(row.style, "") if self._is_styled else ""
        return f"{style}{text}\x1b[m" if style else text

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone, or the stream is closed
            self._stream.write(text)
            self._stream.flush()


def clipped(text: str, columns: int) -> str:
    """Return *text* without control characters, shortened with ``…`` to fit into *columns*."""
    from unicodedata import category, combining, east_asian_width

    kept: list[str] = []
    width = 0
    for each in text:
        if category(each).startswith("C") or each in "\u2028\u2029":
            continue
        wide = 0 if combining(each) else 1
        wide += east_asian_width(each) in ("W", "F")
        if width + wide > columns:
            return "".join(kept[:-1]) + "…" if kept else ""
        kept.append(each)
        width += wide
    return "".join(kept)


def above_view() -> AbstractContextManager[None]:
    """Return a context in which printed text appears above the view, if a view is shown."""
    return _shown[-1].above() if _shown else nullcontext()


def erase_view() -> None:
    """Erase the view, if one is shown, because the process exits.

    The function acquires no lock, so it cannot delay the exit.
    """
    if _shown:
        with suppress(OSError):
            os.write(2, _ERASE.encode())


def is_terminal(stream: TextIO) -> bool:
    """Return whether *stream* is a terminal that can show a view."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _size(stream: TextIO) -> os.terminal_size:
    with suppress(OSError, ValueError, AttributeError):
        size = os.get_terminal_size(stream.fileno())
        if size.columns and size.lines:
            return size
    return shutil.get_terminal_size()
