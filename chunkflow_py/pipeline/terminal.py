"""Printing, and help pages: all commands use these. Imports next to nothing, for `--help`."""

from __future__ import annotations

from typing import IO, Any

import click

from chunkflow_py.core.plain_text import plain


class Command(click.Command):
    """A command whose help is shown by --help and by -h, in every context.

    click takes the names from the first context that a command meets and keeps them. That context
    may be one of completion, of a reference page, or of another program's group.
    """

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return --help and -h, less what the command's own options are called."""
        taken = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return [name for name in ("--help", "-h") if name not in taken]


def echo(message: object = "", *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print *message* and a line end; text of others cannot control the terminal.

    Args:
        message: anything that has a text; characters that are not shown as themselves are
            replaced, see `chunkflow_py.core.plain_text.plain`.
        err: to stderr instead of stdout.
        file: to this stream instead.
    """
    click.echo(plain(str(message)), file=file, err=err)  # noqa: TID251 this is the one place
