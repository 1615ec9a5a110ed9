"""Subcommands, which act on a whole pipeline or run; each file defines one subcommand.

A file has the name of its subcommand. A subcommand comes first on its command line. The function
``command`` of the file receives and checks the options, and returns a function that is called after
the whole command line was parsed without errors:

    @subcommand
    @click.option(...)
    def command(**options) -> Callable[[], None]: ...

A ``@pipeline_subcommand``, such as ``submit``, is followed by a pipeline on the command line. The
function that ``command`` returns then receives the commands of the pipeline.
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

    from chunkflow_py.cli.command_parts import CommandPart


@dataclass(frozen=True)
class Subcommand:
    """A subcommand whose options have been checked.

    Attributes:
        name: name of the subcommand.
        act: function that carries out the subcommand. The function prints results to stdout and
            logs everything else. If *takes_pipeline* is true, the argument of *act* is the list
            of the commands of the pipeline; if false, *act* has no argument.
        takes_pipeline: whether a pipeline follows the subcommand on the command line.
    """

    name: str
    act: Callable[..., Any]
    takes_pipeline: bool = False


class ClickSubcommand(Command):
    """A click command that returns a `Subcommand`, which is carried out later."""

    takes_pipeline = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; accept options also after positional arguments."""
        if any(isinstance(param, click.Argument) for param in self.params):
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Subcommand:
        """Check the options, and return the subcommand without carrying it out."""
        return Subcommand(str(ctx.info_name), super().invoke(ctx), self.takes_pipeline)


class ClickPipelineSubcommand(ClickSubcommand):
    """A click command that is followed by a pipeline, such as ``submit``."""

    takes_pipeline = True


def refuse_dry_run() -> None:
    """Refuse the global option --dry-run, for a subcommand that submits, executes or repairs a run.

    Raises:
        OptionError: --dry-run was given.
    """
    if is_dry_run():
        name = click.get_current_context().info_name
        msg = (
            f"--dry-run cannot be combined with {name}, because {name} changes a run that several "
            "workers share; leave --dry-run out, or use chunkflow plan to estimate a pipeline"
        )
        raise OptionError(msg)


def subcommand(function: Callable[..., Callable[[], None]]) -> ClickSubcommand:
    """Decorate the function ``command`` of a subcommand that no other command follows."""
    return _decorate(function, ClickSubcommand)


def pipeline_subcommand(
    function: Callable[..., Callable[[Sequence[CommandPart]], None]],
) -> ClickSubcommand:
    """Decorate the function ``command`` of a subcommand that is followed by a pipeline."""
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
