"""Show or change the budget of a run.

When the workers of the run have spent AMOUNT together, all workers finish the tasks that they have
begun, and stop with the exit code 75. The cost of a worker is the time from its start to its end,
multiplied by its --cost-per-hour. Running workers use a new budget within two minutes. Workers that
have stopped must be started again. Without AMOUNT, the command changes nothing. To remove the
budget, give the word none as AMOUNT.

Example: chunkflow budget s3://bucket/affinity.run 800
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.subcommands import refuse_dry_run, subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


class _Amount(click.ParamType["float | str"]):
    name = "amount"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        return value if value == "none" else float(click.FLOAT.convert(value, param, ctx))


@subcommand
@click.argument("run")
@click.argument("amount", required=False, type=_Amount(), metavar="[AMOUNT|none]")
def command(run: str, amount: float | str | None) -> Callable[[], None]:
    """Return the function that changes the budget if *amount* is given, and prints the budget."""
    if amount is not None:
        refuse_dry_run()

    def act() -> None:
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.spending import set_budget, spending_text

        run_directory = RunDirectory.parse(run)
        if not run_directory.spec.queue and amount is not None:
            msg = (
                f"run {run_directory.shown} was submitted for Dask, and Dask workers support no "
                "budget; watch the cost, and stop the run yourself"
            )
            raise OptionError(msg)
        if amount is not None:
            set_budget(run_directory.store, None if isinstance(amount, str) else amount)
        echo(f"{run_directory.shown}: {spending_text(run_directory) or 'no budget, and no costs'}")

    return act
