"""The words of a line as its options: how many belong to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def options_by_name(params: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """Return the options among *params* by every name they have."""
    return {
        name: param
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def split_word(word: str) -> tuple[str, str | None]:
    """Return the name of the option that *word* begins with, and its value if that is joined."""
    if word.startswith("--"):
        name, joined, value = word.partition("=")
        return name, value if joined else None
    return word[:2], word[2:] or None


def count_words(option: click.Option, word: str) -> int:
    """Return how many words *option* takes that begins with *word*."""
    if option.is_flag or option.count:
        return 1
    return option.nargs + (split_word(word)[1] is None)


def divide(
    words: Sequence[str],
    own: Mapping[str, click.Option],
    others: Mapping[str, click.Option],
    ctx: click.Context,
) -> tuple[list[str], list[str], list[str]]:
    """Return the words of *own* options, those of *others*, and the rest of the line.

    Args:
        words: of the line.
        own: options by their names.
        others: likewise.
        ctx: of the command, for messages.

    Raises:
        click.NoSuchOption: an option is neither.
    """
    found: tuple[list[str], list[str]] = [], []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name = split_word(rest[0])[0]
        option = own.get(name) or others.get(name)
        if option is None:
            raise click.NoSuchOption(name, possibilities=[*own, *others], ctx=ctx)
        count = count_words(option, rest[0])
        found[name not in own].extend(rest[:count])
        del rest[:count]
    return *found, rest
