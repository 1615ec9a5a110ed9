"""Older names in a line: read as what they are called now, with one line of notice."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.older_names import (
    COMMANDS,
    INSTEAD,
    OPTIONS,
    OPTIONS_INSTEAD,
    OPTIONS_NEEDLESS,
)
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.option_arguments import count_arguments, options_by_name, split_argument

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

logger = logging.getLogger(__name__)

_NOTICES = "chunkflow_py.older_spellings"


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


def modern_options(ctx: click.Context, command: click.Command, argv: Sequence[str]) -> list[str]:
    """Return *argv* with the options of *command* as they are called now.

    Args:
        ctx: of the line.
        command: the line goes on with.
        argv: its options, then the commands that follow, which are left alone.

    Raises:
        OptionError: there is no such option any more; says what to do instead.
    """
    older = OPTIONS.get(command.name or "", {})
    needless = OPTIONS_NEEDLESS.get(command.name or "", {})
    instead = OPTIONS_INSTEAD.get(command.name or "", {})
    options = options_by_name(command.params)
    read: list[str] = []
    rest = list(argv)
    while (older or needless or instead) and rest and rest[0].startswith("-"):
        name, value = split_argument(rest[0])
        if name in needless and tuple(rest[1 : 1 + len(needless[name])]) == needless[name]:
            _say(ctx, " ".join((command.name or "", name, *needless[name])), None)
            del rest[: 1 + len(needless[name])]
            continue
        if name in instead and not ctx.resilient_parsing:
            msg = f"{command.name} has no option {name} any more; {instead[name]}"
            raise OptionError(msg)
        if name in older:
            _say(ctx, f"{command.name} {name}", older[name])
            rest[0] = older[name] if value is None else f"{older[name]}={value}"
            name = split_argument(rest[0])[0]
        option = options.get(name)
        if option is None:
            break  # click says what is wrong with it
        count = count_arguments(option, rest[0])
        read += rest[:count]
        del rest[:count]
    return read + rest


def near_commands(word: str, names: Collection[str]) -> list[str]:
    """Return which of *names* a mistyped *word* may mean, be it by their older names."""
    older = [COMMANDS[name] for name in get_close_matches(word, COMMANDS, n=1, cutoff=0.8)]
    return list(dict.fromkeys([*older, *get_close_matches(word, names, n=3, cutoff=0.6)]))[:3]


def near_options(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return *error* with what older options may have been meant."""
    command = error.ctx.command.name if error.ctx else None
    older: Mapping[str, str] = OPTIONS.get(command or "", {})
    near = [older[name] for name in get_close_matches(error.option_name, older)]
    # Hyphens, which all of them begin with, make no two alike.
    word = error.option_name.lstrip("-")
    alike = [p for p in error.possibilities or [] if get_close_matches(word, [p.lstrip("-")])]
    found = " or ".join(dict.fromkeys(map(repr, [*near, *alike])))
    msg = f"No such option {error.option_name!r}." + (f" Did you mean {found}?" if found else "")
    return click.NoSuchOption(error.option_name, msg, ctx=error.ctx)


def _say(ctx: click.Context, old: str, new: str | None) -> None:
    """Log, once per command line, that *old* is now called *new* or (``None``) is not needed."""
    logged: set[str] = ctx.meta.setdefault(_NOTICES, set())
    if old not in logged and not ctx.resilient_parsing:
        logged.add(old)
        message = f"{old} is now called {new}" if new else f"{old} is not needed any more"
        logger.info(message)
