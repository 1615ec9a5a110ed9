"""The one way to print: what others wrote cannot steer the terminal."""

from __future__ import annotations

from typing import IO, Any

import click

from chunkflow_py.core.plain_text import plain


def echo(message: object = "", *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print *message* and a line end.

    Args:
        message: anything that has a text; characters that are not shown as themselves are
            replaced, see `chunkflow_py.core.plain_text.plain`.
        err: to stderr instead of stdout.
        file: to this stream instead.
    """
    click.echo(plain(str(message)), file=file, err=err)  # noqa: TID251 this is the one place
