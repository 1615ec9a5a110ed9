"""Text that others wrote, made safe for a terminal, a page, a queue and a file.

A ledger, a queue or the metadata of a volume may hold anything: sequences that steer a terminal,
characters that reverse or hide what stands beside them (`Trojan Source
<https://trojansource.codes>`_), and lone surrogates, which no encoding takes.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"  # by its number: to look up a name imports unicodedata


class _Table(dict[int, str]):
    """Code point -> replacement; filled on demand."""

    def __missing__(self, code: int) -> str:
        each = chr(code)
        if not (each.isprintable() or each in "\n\t"):
            from unicodedata import category  # not at every start

            each = " " if category(each) == "Zs" else REPLACEMENT
        self[code] = each
        return each


_TABLE = _Table()


def plain(text: str) -> str:
    """Return *text* with U+FFFD for each character that is not shown as itself.

    Those are control and format characters but line feed and tab, line and paragraph separators,
    surrogates, and code points without a character. Spaces of other widths become a space.
    """
    return text if text.isprintable() else text.translate(_TABLE)


def is_digits(text: str) -> bool:
    """Return whether *text* consists of the digits 0 to 9, and not of digits of other scripts."""
    return text.isascii() and text.isdecimal()


def bounded(text: str, most: int) -> str:
    """Return *text*, or its first *most* characters and an ellipsis.

    No address is cut in two: its password could not be recognised any more.
    """
    if len(text) <= most:
        return text
    cut = text[:most]
    word = max(map(cut.rfind, " \n\t")) + 1
    if (address := cut.find("://", word)) >= 0:
        cut = cut[:address]
    return f"{cut}…"


def tail(text: str, most: int) -> str:
    """Return *text*, or at most its last *most* characters, from the start of a line."""
    return text if len(text) <= most else text[-most:].partition("\n")[2]
