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
    """A subcommand whose options have been checked.

    Attributes:
        name: name as typed.
        act: carries out the subcommand. It prints results to stdout and logs everything else. It
            receives the parts of the pipeline if *takes_pipeline*, else no argument.
        takes_pipeline: whether a pipeline follows the subcommand.
    """

    name: str
    act: Callable[..., Any]
    takes_pipeline: bool = False


class ClickSubcommand(Command):
    """A click command that returns a subcommand instead of doing work."""

    takes_pipeline = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept options after arguments as well; click does not in a chain of commands."""
        if any(isinstance(param, click.Argument) for param in self.params):
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Subcommand:
        """Check the options; the returned subcommand acts later."""
        return Subcommand(str(ctx.info_name), super().invoke(ctx), self.takes_pipeline)


class ClickPipelineSubcommand(ClickSubcommand):
    """A subcommand that a pipeline follows, such as ``submit``."""

    takes_pipeline = True


def refuse_dry_run() -> None:
    """Refuse --dry-run for a subcommand that starts, carries out or repairs a run.

    Raises:
        OptionError: --dry-run was given.
    """
    if is_dry_run():
        name = click.get_current_context().info_name
        msg = (
            f"--dry-run cannot be combined with {name}, which changes a run that other workers "
            "share; leave --dry-run out, or use chunkflow plan to estimate a pipeline"
        )
        raise OptionError(msg)


def subcommand(function: Callable[..., Callable[[], None]]) -> ClickSubcommand:
    """Make a subcommand that no other command follows."""
    return _decorate(function, ClickSubcommand)


def pipeline_subcommand(
    function: Callable[..., Callable[[Sequence[Part]], None]],
) -> ClickSubcommand:
    """Make a subcommand that acts on the pipeline after it."""
    return _decorate(function, ClickPipelineSubcommand)


def _decorate(function: Callable[..., Any], cls: type[ClickSubcommand]) -> ClickSubcommand:
    module = inspect.getmodule(function)
    text = (inspect.getdoc(module) if module else None) or ""
    return click.command(
        function.__module__.rpartition(".")[2].replace("_", "-"),
        cls=cls,
        # click does not rewrap the paragraph after \b, so that an example can be pasted.
        help=text.replace("\nExample:", "\n\b\nExample:"),
    )(function)
