"""Completion of command lines in bash, zsh and fish.

A shell calls `chunkflow` with the command line typed so far, and `chunkflow` prints the possible
completions at the cursor. Only commands that are already on the command line are imported. click's
own completion is not used, because it would import all commands and does not support several
commands on one line.
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
class CursorPosition:
    """What may be typed at the cursor of a command line.

    Attributes:
        command: last command before the cursor; the program itself if there is none.
        values: number of positional arguments that the command has before the cursor.
        given: options that the command has before the cursor.
        awaiting: option that needs a value at the cursor; ``None`` if no option does.
        follows: whether the next command belongs to a pipeline. If so, the next command is an
            operator, or ``then`` if *in_run* is true.
        in_run: whether the command follows `submit`, `run` or `plan`.
    """

    command: click.Command
    values: int = 0
    given: list[click.Parameter] = field(default_factory=list)
    awaiting: click.Option | None = None
    follows: bool = False
    in_run: bool = False

    @property
    def arguments(self) -> list[click.Argument]:
        """Positional arguments to which the word at the cursor may belong."""
        arguments = [each for each in self.command.params if isinstance(each, click.Argument)]
        return [each for n, each in enumerate(arguments) if n >= self.values or each.nargs < 0]


def place_after(program: click.Command, argv: Sequence[str]) -> CursorPosition | None:
    """Return the `CursorPosition` directly after *argv*.

    Return ``None`` if *argv* contains an unknown command.

    Args:
        program: the group of all commands.
        argv: arguments of the program before the cursor.
    """
    place, rest = CursorPosition(program), list(argv)
    while rest:
        argument = rest.pop(0)
        if argument.startswith("-"):
            _take_option(place, argument, rest)
            if place.awaiting is not None:
                return place
        elif place.arguments:
            place.values += 1
        else:
            command = _command(argument)
            if command is None:
                return None
            is_subcommand = isinstance(command, ClickSubcommand)
            in_run = place.in_run or isinstance(command, ClickPipelineSubcommand)
            place = CursorPosition(command, follows=not is_subcommand or in_run, in_run=in_run)
    return place


def _take_option(place: CursorPosition, argument: str, rest: list[str]) -> None:
    older = OPTIONS.get(place.command.name or "", {})
    name, value = split_argument(argument)
    option = _options(place.command).get(older.get(name, name))
    if option is None:
        return  # mistyped, or an option of a newer version: ignore it
    count = count_arguments(option, argument) - 1
    if isinstance(option, MarginOption) and "auto" in (value, *rest[:1]):
        count = 0 if value else 1
    if count > len(rest):
        place.awaiting = option
    place.given.append(option)
    del rest[:count]


def _options(command: click.Command) -> dict[str, click.Option]:
    return options_by_name(command.get_params(click.Context(command)))


def _command(spelling: str) -> click.Command | None:
    name = COMMANDS.get(spelling, spelling)
    try:
        return catalog.load(name) if catalog.is_known(name) else None
    except ChunkflowError:  # an operator of another package that cannot be imported
        return None


def candidates(
    program: click.Command, argv: Sequence[str], incomplete: str
) -> list[CompletionItem]:
    """Return the possible completions at the cursor.

    Args:
        program: the group of all commands.
        argv: arguments of the program before the cursor.
        incomplete: the typed part of the argument at the cursor.
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


def _values(place: CursorPosition, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    values = param.shell_complete(click.Context(place.command), incomplete)
    if not values and isinstance(param.type, click.types.StringParamType):
        return [CompletionItem(incomplete, type="file")]
    return values


def _commands(place: CursorPosition, incomplete: str) -> list[CompletionItem]:
    if isinstance(place.command, ClickSubcommand) and not place.in_run:
        return []  # no command follows this subcommand
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
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        return _whole_arguments(candidates(self.cli, args, incomplete), incomplete)


class _Fish(shell_completion.FishComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        return _whole_arguments(candidates(self.cli, args, incomplete), incomplete)


def _whole_arguments(items: list[CompletionItem], incomplete: str) -> list[CompletionItem]:
    # zsh and fish replace the whole argument at the cursor, not only the text after ``=``.
    name, joined, _ = incomplete.partition("=")
    if not (joined and name.startswith("--")):
        return items
    return [CompletionItem(f"{name}={each.value}", each.type, each.help) for each in items]


class _Bash(shell_completion.BashComplete):
    # This class splits the typed line, because bash would also split it at ``=`` and ``:``.

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
        # click would start bash to check its version.
        template: str = self.source_template
        return template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the cursor, and the incomplete argument at the cursor."""
        line = os.environ["COMP_WORDS"]
        argv = shell_completion.split_arg_string(line)[1:]
        is_in_argument = bool(argv) and not line[-1:].isspace()
        return (argv[:-1], argv[-1]) if is_in_argument else (argv, "")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        # No _whole_arguments: bash replaces only the text after the last = or :.
        return candidates(self.cli, args, incomplete)


def register() -> None:
    """Register the completion classes of this module with click."""
    for name, shell in zip(SHELLS, (_Bash, _Zsh, _Fish), strict=True):
        shell_completion.add_completion_class(shell, name)


def script(program: click.Command, shell: str, variable: str) -> str:
    """Return the shell script that enables completion.

    Args:
        program: the group of all commands.
        shell: one of `SHELLS`.
        variable: environment variable that the script sets to request completions from the program.
    """
    register()
    shell_class: Any = shell_completion.get_completion_class(shell)
    text: str = shell_class(program, {}, "chunkflow", variable).source()
    return text
