"""Subcommands act on a whole pipeline or run; one file each, and the file name is the command name.

A subcommand comes first on its command line. Its function ``command`` receives the options once,
checks them, and returns what is called after the whole command line has been accepted:

    @subcommand
    @click.option(...)
    def command(**options) -> Callable[[], None]: ...

A ``@pipeline_subcommand`` such as ``submit`` is followed by a pipeline, whose parts it receives.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import is_dry_run
from chunkflow_py.pipeline.terminal import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import Part


@dataclass(frozen=True)
class Subcommand:
    """A subcommand with its options, ready to act.

    Attributes:
        name: as it was typed.
        act: does it all; results go to stdout, everything else to the log. Takes the parts of the
            line after it if *takes_line*, else nothing.
        takes_line: whether a line comes after it.
    """

    name: str
    act: Callable[..., Any]
    takes_line: bool = False


class ClickSubcommand(Command):
    """A click command that returns a subcommand instead of doing work."""

    takes_line = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take options after arguments, too, which no chain of commands does."""
        if any(isinstance(param, click.Argument) for param in self.params):
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Subcommand:
        """Call the command with its options; what it returns runs later."""
        return Subcommand(str(ctx.info_name), super().invoke(ctx), self.takes_line)


class ClickPipelineSubcommand(ClickSubcommand):
    """A subcommand that is followed by a line."""

    takes_line = True


def refuse_dry_run() -> None:
    """Refuse --dry-run for a subcommand that starts, carries out or repairs a run.

    Raises:
        OptionError: It was given, although others rely on what the subcommand does.
    """
    if is_dry_run():
        name = click.get_current_context().info_name
        msg = (
            f"--dry-run leaves out commands that save, and {name} works on a run, which others "
            "see; leave one of them out, or see with chunkflow plan what a pipeline would take"
        )
        raise OptionError(msg)


def subcommand(function: Callable[..., Callable[[], None]]) -> ClickSubcommand:
    """Make a subcommand that stands alone on its line."""
    return _decorate(function, ClickSubcommand)


def pipeline_subcommand(
    function: Callable[..., Callable[[Sequence[Part]], None]],
) -> ClickSubcommand:
    """Make a subcommand that acts on the line after it."""
    return _decorate(function, ClickPipelineSubcommand)


def _decorate(function: Callable[..., Any], cls: type[ClickSubcommand]) -> ClickSubcommand:
    module = inspect.getmodule(function)
    text = (inspect.getdoc(module) if module else None) or ""
    return click.command(
        function.__module__.rpartition(".")[2].replace("_", "-"),
        cls=cls,
        # After \b click leaves lines as they are: an example can be pasted.
        help=text.replace("\nExample:", "\n\b\nExample:"),
    )(function)
