"""Delete items and free their memory.

Example: chunkflow create-chunk copy-var --to-name raw delete-var --var-names raw
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook_value
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemNames

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task

SECTION = "items"


@dataclass
class Deleter(OperatorBase):
    """Deletes items of every task."""

    removes: tuple[str, ...] = field(metadata=HOOK)
    any_voxel_size: ClassVar[bool] = hook_value(True)

    def __call__(self, task: Task) -> Task:
        """Remove the items from the task.

        Raises:
            MissingChunkError: the task lacks one of the items.
        """
        for name in self.removes:
            task[name]  # raises an error that lists the items, if this one is missing
            del task.items[name]
        return task


@operator("compute")
@click.option(
    "--var-names",
    "-v",
    type=ItemNames("in"),
    required=True,
    help="Names of the items to delete, separated by commas.",
)
def command(var_names: tuple[str, ...]) -> Deleter:
    """Return the operator, which removes each named item once, even if its name is repeated."""
    return Deleter(tuple(dict.fromkeys(var_names)))
