"""Begin the next step of a run.

Write `then` between the pipelines of two steps, after submit, run or plan. The tasks of the second
step start when the first step is complete.

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
@click.option("--stage",
              help="Name of the step that follows.  [default: its last operator that runs a "
                   "network, else its last operator that computes]")  # fmt: skip
def command(stage: str | None) -> Callable[..., Any]:
    """Return a function that returns *stage*, the name of the step."""

    def act(parts: Any = None) -> str | None:
        if parts is not None:
            msg = (
                "'then' separates two steps of a run, so a command line cannot begin with 'then'; "
                "write chunkflow submit generate-tasks … then …"
            )
            raise OptionError(msg)
        return stage

    return act
