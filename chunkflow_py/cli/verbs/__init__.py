"""Verbs: what acts on a whole line or run. One file a verb; the file name is the verb's name.

A verb comes first. Its function ``command`` receives the options once, checks them, and returns
what is called when the whole line has been accepted, as that of an operator does:

    @verb
    @click.option(...)
    def command(**options) -> Callable[[], None]: ...

One that acts on the line after it (``submit``) is a ``@line_verb`` and is given its parts.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import Command, is_dry_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.line import Part


@dataclass(frozen=True)
class Verb:
    """A verb with its options, ready to act.

    Attributes:
        name: as it was typed.
        act: does it all; results go to stdout, everything else to the log. Takes the parts of the
            line after it if *takes_line*, else nothing.
        takes_line: whether a line comes after it.
    """

    name: str
    act: Callable[..., Any]
    takes_line: bool = False


class VerbCommand(Command):
    """A click command that returns a verb instead of doing work."""

    takes_line = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take options after arguments, too, which no chain of commands does."""
        if any(isinstance(param, click.Argument) for param in self.params):
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Verb:
        """Call the command with its options; what it returns runs later."""
        return Verb(str(ctx.info_name), super().invoke(ctx), self.takes_line)


class LineVerbCommand(VerbCommand):
    """A verb that is followed by a line."""

    takes_line = True


def refuse_dry_run() -> None:
    """Refuse the global option --dry-run for a verb that begins, does or mends a run.

    Raises:
        OptionError: it was given; what the verb does others would rely on.
    """
    if is_dry_run():
        name = click.get_current_context().info_name
        msg = (
            f"--dry-run leaves out commands that save, and {name} works on a run, which others "
            "see; leave one of them out, or see with chunkflow plan what a line would take"
        )
        raise OptionError(msg)


def verb(function: Callable[..., Callable[[], None]]) -> VerbCommand:
    """Make a verb that stands alone on its line."""
    return _decorate(function, VerbCommand)


def line_verb(function: Callable[..., Callable[[Sequence[Part]], None]]) -> VerbCommand:
    """Make a verb that acts on the line after it."""
    return _decorate(function, LineVerbCommand)


def _decorate(function: Callable[..., Any], cls: type[VerbCommand]) -> VerbCommand:
    module = inspect.getmodule(function)
    text = (inspect.getdoc(module) if module else None) or ""
    return click.command(
        function.__module__.rpartition(".")[2].replace("_", "-"),
        cls=cls,
        # After \b click leaves lines as they are: an example can be pasted.
        help=text.replace("\nExample:", "\n\b\nExample:"),
    )(function)
