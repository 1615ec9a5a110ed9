"""The part of a page of the documentation that is written from recorded results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- results: written by --write-docs -->\n", "<!-- end of results -->\n"


def write_between(page: Path, text: str) -> None:
    """Write *text* between the two comments of *page*."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + text + END + after, encoding="utf-8")


def written_between(page: Path) -> str:
    """Return what stands between the two comments of *page*.

    Raises:
        ValueError: a comment is missing.
    """
    _, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text, end, _ = rest.partition(END)
    if not (begin and end):
        msg = f"{page} lacks {BEGIN.strip()} or {END.strip()}"
        raise ValueError(msg)
    return text
