"""Older names in a line: read as what they are called now, with one line of notice."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.older_names import COMMANDS, INSTEAD, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

logger = logging.getLogger(__name__)

_SAID = "chunkflow_py.older_names_said"


def modern_command(ctx: click.Context, word: str) -> str:
    """Return what command *word* is called now.

    Raises:
        OptionError: there is no such command any more; says what to do instead.
    """
    if word in INSTEAD:
        msg = f"{word} is not part of this program; {INSTEAD[word]}"
        raise OptionError(msg)
    if word in COMMANDS:
        _say(ctx, word, COMMANDS[word])
    return COMMANDS.get(word, word)


def modern_options(ctx: click.Context, command: click.Command, words: Sequence[str]) -> list[str]:
    """Return *words* with the options of *command* as they are called now.

    Args:
        ctx: of the line.
        command: the line goes on with.
        words: its options, then the commands that follow, which are left alone.
    """
    older = OPTIONS.get(command.name or "", {})
    options = {
        name: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
    read: list[str] = []
    rest = list(words) if older else []
    while rest and rest[0].startswith("-"):
        name, value = _split(rest[0])
        if name in older and name not in options:
            _say(ctx, f"{command.name} {name}", older[name])
            rest[0] = f"{older[name]}={value}" if value is not None else older[name]
            name = older[name]
        option = options.get(name)
        if option is None:
            break  # click says what is wrong with it
        count = 1 if option.is_flag else 1 + option.nargs - (value is not None)
        read += rest[:count]
        del rest[:count]
    return read + rest if older else list(words)


def near_commands(word: str, names: Collection[str]) -> list[str]:
    """Return which of *names* a mistyped *word* may mean, be it by their older names."""
    near = get_close_matches(word, [*names, *COMMANDS], n=3, cutoff=0.6)
    return list(dict.fromkeys(COMMANDS.get(name, name) for name in near))


def near_options(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return *error* with what older options may have been meant."""
    command = error.ctx.command.name if error.ctx else None
    older: Mapping[str, str] = OPTIONS.get(command or "", {})
    near = [older[name] for name in get_close_matches(error.option_name, older)]
    if not near:
        return error
    found = dict.fromkeys(map(repr, [*near, *(error.possibilities or [])]))
    msg = f"No such option {error.option_name!r}. Did you mean {' or '.join(found)}?"
    return click.NoSuchOption(error.option_name, msg, ctx=error.ctx)


def _split(word: str) -> tuple[str, str | None]:
    """Return an option's name, and its value if that is joined to it."""
    if word.startswith("--"):
        name, joined, value = word.partition("=")
        return name, value if joined else None
    return word[:2], word[2:] or None


def _say(ctx: click.Context, old: str, new: str) -> None:
    """Say once a line that *old* is called *new*."""
    said: set[str] = ctx.meta.setdefault(_SAID, set())
    if old not in said and not ctx.resilient_parsing:
        said.add(old)
        logger.info("%s is now called %s", old, new)
