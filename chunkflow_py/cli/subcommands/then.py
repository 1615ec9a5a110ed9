"""Begin the next step of a run that submit sends.

A stage opens when all tasks of the one before it are done.

Example: chunkflow then --stage label
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.subcommands import pipeline_subcommand
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


@pipeline_subcommand
@click.option("--stage", help="Name of the stage.  [default: that of its main operator]")
def command(stage: str | None) -> Callable[..., Any]:
    """Keep the name; `submit` divides its line here."""

    def act(parts: Any = None) -> str | None:
        if parts is not None:
            msg = "then divides the stages of a run: chunkflow submit generate-tasks … then …"
            raise OptionError(msg)
        return stage

    return act
