"""Make untrusted text safe for a terminal, a web page, a queue and a file.

A ledger, a queue or the metadata of a volume may contain anything: terminal escape sequences,
characters that reverse or hide the text beside them (`Trojan Source
<https://trojansource.codes>`_), and lone surrogates, which cannot be encoded.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"  # a name would import unicodedata


class _Table(dict[int, str]):
    """Replacement of each code point, computed when the code point is first looked up."""

    def __missing__(self, code: int) -> str:
        each = chr(code)
        if not (each.isprintable() or each in "\n\t"):
            from unicodedata import category  # not at every start

            each = " " if category(each) == "Zs" else REPLACEMENT
        self[code] = each
        return each


_TABLE = _Table()


def plain(text: str) -> str:
    """Return *text* with U+FFFD in place of each unprintable character.

    These characters are unprintable: control characters other than line feed and tab, format
    characters, line and paragraph separators, surrogates, and unassigned code points. Other kinds
    of spaces become a plain space.
    """
    return text if text.isprintable() else text.translate(_TABLE)


def is_digits(text: str) -> bool:
    """Return whether *text* consists only of the digits 0 to 9, not of digits of other scripts."""
    return text.isascii() and text.isdecimal()


def bounded(text: str, limit: int) -> str:
    """Shorten *text* to its first *limit* characters and an ellipsis, if the text is longer.

    If the cut falls inside a URL, the whole URL is removed. A later function removes passwords from
    URLs, but cannot recognise a password in an incomplete URL.
    """
    if len(text) <= limit:
        return text
    cut = text[:limit]
    word = max(map(cut.rfind, " \n\t")) + 1
    if (address := cut.find("://", word)) >= 0:
        cut = cut[:address]
    return f"{cut}…"


def tail(text: str, limit: int) -> str:
    """Return as many whole lines from the end of *text* as fit into *limit* characters."""
    return text if len(text) <= limit else text[-limit:].partition("\n")[2]
