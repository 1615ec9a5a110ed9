"""Replace older names of commands and options by their current names, and log each renaming."""

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


def modern_command(ctx: click.Context, name: str) -> str:
    """Return the current name of a command; *name* may be an older name.

    Raises:
        OptionError: the command was removed; the message names a replacement.
    """
    if name in INSTEAD:
        msg = f"{name} is not a command of this program; {INSTEAD[name]}"
        raise OptionError(msg)
    if name in COMMANDS:
        _log_renamed(ctx, name, COMMANDS[name])
    return COMMANDS.get(name, name)


def modern_options(ctx: click.Context, command: click.Command, argv: Sequence[str]) -> list[str]:
    """Return *argv* with older names of the options of *command* replaced by the current names.

    Args:
        ctx: context of the command line.
        command: command whose options *argv* begins with.
        argv: options of the command, followed by the rest of the command line, which is returned
            unchanged.

    Raises:
        OptionError: an option was removed; the message names a replacement.
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
            _log_renamed(ctx, " ".join((command.name or "", name, *needless[name])), None)
            del rest[: 1 + len(needless[name])]
            continue
        if name in instead and not ctx.resilient_parsing:
            msg = f"{command.name} no longer has an option {name}; {instead[name]}"
            raise OptionError(msg)
        if name in older:
            _log_renamed(ctx, f"{command.name} {name}", older[name])
            rest[0] = older[name] if value is None else f"{older[name]}={value}"
            name = split_argument(rest[0])[0]
        option = options.get(name)
        if option is None:
            break  # click reports it
        count = count_arguments(option, rest[0])
        read += rest[:count]
        del rest[:count]
    return read + rest


def near_commands(typed: str, names: Collection[str]) -> list[str]:
    """Return up to three commands of *names* whose current or older name resembles *typed*."""
    older = [COMMANDS[name] for name in get_close_matches(typed, COMMANDS, n=1, cutoff=0.8)]
    return list(dict.fromkeys([*older, *get_close_matches(typed, names, n=3, cutoff=0.6)]))[:3]


def near_options(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return *error* with a message that suggests options whose names resemble the unknown option.

    Older names of options are also compared, and the current names are suggested.
    """
    command = error.ctx.command.name if error.ctx else None
    older: Mapping[str, str] = OPTIONS.get(command or "", {})
    near = [older[name] for name in get_close_matches(error.option_name, older)]
    # The leading hyphens of both names do not count as a resemblance.
    typed = error.option_name.lstrip("-")
    alike = [p for p in error.possibilities or [] if get_close_matches(typed, [p.lstrip("-")])]
    options = " or ".join(dict.fromkeys(map(repr, [*near, *alike])))
    hint = f" Did you mean {options}?" if options else ""
    msg = f"No such option {error.option_name!r}.{hint}"
    return click.NoSuchOption(error.option_name, msg, ctx=error.ctx)


def _log_renamed(ctx: click.Context, old: str, new: str | None) -> None:
    logged: set[str] = ctx.meta.setdefault(_NOTICES, set())
    if old not in logged and not ctx.resilient_parsing:
        logged.add(old)
        message = f"{old} is now called {new}" if new else f"{old} is no longer needed"
        logger.info(message)
