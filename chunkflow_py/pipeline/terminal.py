"""Printing and help pages of all commands; imports very little, to keep `--help` fast."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from chunkflow_py.core.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable


class Command(click.Command):
    """A command whose help is shown by --help and -h in every context.

    `click.Command` takes the names of the help option from the context of its first use, and keeps
    these names. That context can be shell completion, a reference page, or another program's group.
    """

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return --help and -h, but omit a name that another option of the command has."""
        taken = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return [name for name in ("--help", "-h") if name not in taken]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write first the options that have no heading, then each heading with its options."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


def option_headings(
    headings: dict[str, tuple[str, ...]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Group the options of a command under headings in the help.

    Place this decorator above the decorators of the options.

    Args:
        headings: names of parameters by heading, such as ``{"Blending": ("bump", "grid")}``.

    Raises:
        ValueError: a name is not a parameter of the command.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        params = {param.name: param for param in getattr(function, "__click_params__", [])}
        for heading, names in headings.items():
            for name in names:
                if name not in params:
                    msg = (
                        f"no option {name} to show below {heading!r}; options: {', '.join(params)}"
                    )
                    raise ValueError(msg)
                params[name].heading = heading
        return function

    return decorate


def echo(message: object = "", *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print *message* and a line end, without control characters that could affect the terminal.

    Args:
        message: object to convert to text; control characters are replaced, see
            `chunkflow_py.core.plain_text.plain`.
        err: write to stderr instead of stdout.
        file: stream to write to; if given, *err* has no effect.
    """
    click.echo(plain(str(message)), file=file, err=err)  # noqa: TID251 this is the one place
