"""Add the correct spelling to the messages about a missing option or missing numbers.

For example, after ``--task-size 64``, the message asks for three numbers, for z, y and x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.cli import catalog
from chunkflow_py.pipeline.option_arguments import options_by_name, split_argument
from chunkflow_py.pipeline.params import AxisType, three_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def explained(
    error: click.MissingParameter | click.BadOptionUsage, tail: Sequence[str]
) -> click.UsageError:
    """Return *error*; if the correct spelling is known, the message of the error suggests it.

    Args:
        error: error of click: a required option is missing, or an option has too few values.
        tail: arguments from the command with the error to the end of the command line.
    """
    if isinstance(error, click.MissingParameter):
        value = next(iter(tail[1:]), "-")
        if error.param and not value.startswith("-") and not catalog.is_known(value):
            hint = f"Write {error.param.opts[0]} {value}"
            return click.MissingParameter(hint, error.ctx, error.param)
        return error
    option = None
    if tail and catalog.is_known(tail[0]):  # click's error does not name the command
        option = options_by_name(catalog.load(tail[0]).params).get(error.option_name)
    if option is None or not isinstance(option.type, AxisType):
        return error
    split = [split_argument(argument) for argument in tail]
    names = [name for name, _ in split]
    if error.option_name not in names:
        return error
    place = names.index(error.option_name)
    given = split[place][1] or (tail[place + 1] if len(tail) > place + 1 else "")
    msg = f"{error.message} {three_of(f'{error.option_name} ', given)}"
    return click.BadOptionUsage(error.option_name, msg, error.ctx)
