"""Completion of command lines in bash, zsh and fish.

A shell calls the program with the command line typed so far; the program prints the possible
completions at the cursor. Only commands that are already in the command line are imported: click's
own completion would import all commands, and read several commands as one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click import shell_completion
from click.shell_completion import CompletionItem

from chunkflow_py.cli import catalog
from chunkflow_py.cli.subcommands import ClickPipelineSubcommand, ClickSubcommand
from chunkflow_py.core.older_names import COMMANDS, OPTIONS
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.option_arguments import count_arguments, options_by_name, split_argument
from chunkflow_py.pipeline.params import MarginOption

if TYPE_CHECKING:
    from collections.abc import Sequence

SHELLS = "bash", "zsh", "fish"


@dataclass
class Place:
    """Position of the cursor in a command line.

    Attributes:
        command: the last of the line; the program itself before the first.
        argv: of arguments that the command has already.
        given: its options that are there already.
        awaiting: option whose value comes next.
        follows: the command before was an operator, so that no subcommand can come.
        in_run: the line is one of `submit`.
    """

    command: click.Command
    argv: int = 0
    given: list[click.Parameter] = field(default_factory=list)
    awaiting: click.Option | None = None
    follows: bool = False
    in_run: bool = False

    @property
    def arguments(self) -> list[click.Argument]:
        """Arguments of the command that have no value yet."""
        found = [each for each in self.command.params if isinstance(each, click.Argument)]
        return [each for n, each in enumerate(found) if n >= self.argv or each.nargs < 0]


def place_after(program: click.Command, argv: Sequence[str]) -> Place | None:
    """Return the position of the cursor after *argv*; ``None`` if a command is unknown.

    Args:
        program: the group of all commands.
        argv: arguments of the program.
    """
    place, rest = Place(program), list(argv)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            _take_option(place, word, rest)
            if place.awaiting is not None:
                return place
        elif place.arguments:
            place.argv += 1
        else:
            command = _command(word)
            if command is None:
                return None
            is_subcommand = isinstance(command, ClickSubcommand)
            in_run = place.in_run or isinstance(command, ClickPipelineSubcommand)
            place = Place(command, follows=not is_subcommand or in_run, in_run=in_run)
    return place


def _take_option(place: Place, word: str, rest: list[str]) -> None:
    """Take an option and its values from the front of *rest*."""
    older = OPTIONS.get(place.command.name or "", {})
    name, value = split_argument(word)
    option = _options(place.command).get(older.get(name, name))
    if option is None:
        return  # mistyped, or of a newer version: the line goes on
    count = count_arguments(option, word) - 1
    if isinstance(option, MarginOption) and "auto" in (value, *rest[:1]):
        count = 0 if value else 1
    if count > len(rest):
        place.awaiting = option
    place.given.append(option)
    del rest[:count]


def _options(command: click.Command) -> dict[str, click.Option]:
    return options_by_name(command.get_params(click.Context(command)))


def _command(word: str) -> click.Command | None:
    name = COMMANDS.get(word, word)
    try:
        return catalog.load(name) if catalog.is_known(name) else None
    except ChunkflowError:  # of another package, and broken
        return None


def candidates(
    program: click.Command, argv: Sequence[str], incomplete: str
) -> list[CompletionItem]:
    """Return the possible completions at the cursor.

    Args:
        program: the group of all commands.
        argv: arguments of the program before the cursor.
        incomplete: the part of the argument at the cursor that is already typed.
    """
    place = place_after(program, argv)
    if place is None:
        return []
    if place.awaiting is None and incomplete.startswith("--") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        place.awaiting = _options(place.command).get(name)
        if place.awaiting is None:
            return []
    if place.awaiting is not None:
        return _values(place, place.awaiting, incomplete)
    if incomplete.startswith("-"):
        return [
            CompletionItem(name, help=option.help)
            for name, option in _options(place.command).items()
            if name.startswith(incomplete) and not option.hidden
            if option.multiple or option not in place.given
        ]
    if place.arguments:
        return _values(place, place.arguments[0], incomplete)
    return _commands(place, incomplete)


def _values(place: Place, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return values of an option or argument; text may always be the name of a file."""
    found = param.shell_complete(click.Context(place.command), incomplete)
    if not found and isinstance(param.type, click.types.StringParamType):
        return [CompletionItem(incomplete, type="file")]
    return found


def _commands(place: Place, incomplete: str) -> list[CompletionItem]:
    if isinstance(place.command, ClickSubcommand) and not place.in_run:
        return []  # it stands alone
    entries = [
        catalog.describe(name)
        for name in [*catalog.commands(), *catalog.more()]
        if name.startswith(incomplete)
    ]
    return [
        CompletionItem(entry.name, help=entry.summary)
        for entry in entries
        if not place.follows
        or entry.kind != "subcommand"
        or (place.in_run and entry.name == "then")
    ]


# --- shells ---------------------------------------------------------------------------------------


class _Zsh(shell_completion.ZshComplete):
    """Completion for this shell, with the candidates of this module."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what may stand at the cursor; it takes the place of the whole word."""
        return _whole(candidates(self.cli, args, incomplete), incomplete)


class _Fish(shell_completion.FishComplete):
    """Completion for this shell, with the candidates of this module."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what may stand at the cursor; it takes the place of the whole word."""
        return _whole(candidates(self.cli, args, incomplete), incomplete)


def _whole(found: list[CompletionItem], incomplete: str) -> list[CompletionItem]:
    name, joined, _ = incomplete.partition("=")
    if not (joined and name.startswith("--")):
        return found
    return [CompletionItem(f"{name}={each.value}", each.type, each.help) for each in found]


class _Bash(shell_completion.BashComplete):
    """Reads the line as it was typed: bash would divide it at ``=`` and ``:`` as well."""

    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local type value line="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(COMP_WORDS=$line %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """Return the script; which version of bash reads it is not asked, as click does."""
        template: str = self.source_template
        return template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the cursor, without the program, and the one at it."""
        line = os.environ["COMP_WORDS"]
        argv = shell_completion.split_arg_string(line)[1:]
        at_word = bool(argv) and not line[-1:].isspace()
        return (argv[:-1], argv[-1]) if at_word else (argv, "")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what may stand at the cursor, or after the last ``=`` or ``:`` before it."""
        return candidates(self.cli, args, incomplete)


def register() -> None:
    """Register the completion classes of this module with click."""
    for name, shell in zip(SHELLS, (_Bash, _Zsh, _Fish), strict=True):
        shell_completion.add_completion_class(shell, name)


def script(program: click.Command, shell: str, variable: str) -> str:
    """Return the shell script that turns on completion.

    Args:
        program: the group of all commands.
        shell: one of `SHELLS`.
        variable: environment variable by which the shell asks for completions.
    """
    register()
    shell_class: Any = shell_completion.get_completion_class(shell)
    text: str = shell_class(program, {}, "chunkflow", variable).source()
    return text
