"""Print the completion script of a shell.

Example: chunkflow completion bash

For good: eval "$(chunkflow completion bash)" as a line of ~/.bashrc, the same with zsh of ~/.zshrc
after compinit; chunkflow completion fish > ~/.config/fish/completions/chunkflow.fish for fish. In a
line of several commands, options are those of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


@subcommand
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> Callable[[], None]:
    """Take the shell; the script is printed when the subcommand acts."""

    def act() -> None:
        from chunkflow_py.cli.completing import script
        from chunkflow_py.cli.main import COMPLETE, cli

        echo(script(cli, shell, COMPLETE).removesuffix("\n"))

    return act
