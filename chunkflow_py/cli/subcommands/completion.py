"""Print the completion script of a shell.

Example: chunkflow completion bash

To load the script in every bash shell, add eval "$(chunkflow completion bash)" to ~/.bashrc. For
zsh, add eval "$(chunkflow completion zsh)" to ~/.zshrc after compinit. For fish, run chunkflow
completion fish > ~/.config/fish/completions/chunkflow.fish. In a pipeline, the script completes the
options of the command before the cursor.
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
    """Return the function that prints the completion script of *shell*."""

    def act() -> None:
        from chunkflow_py.cli.completing import script
        from chunkflow_py.cli.main import COMPLETE, cli

        echo(script(cli, shell, COMPLETE).removesuffix("\n"))

    return act
