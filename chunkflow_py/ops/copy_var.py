"""Copy an item of the task to a second name.

Example: chunkflow create-chunk copy-var --from-name chunk --to-name raw threshold --threshold 128
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task

SECTION = "items"


@dataclass
class Copier(OperatorBase):
    """Copies an item of every task to a second name.

    Attributes:
        from_name: name of the item to copy.
        to_name: name of the copy.
        deep_copy: whether to copy the voxels; if false, both names refer to the same object.
    """

    from_name: str
    to_name: str
    deep_copy: bool = True
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    is_local: bool = field(default=True, init=False, metadata=HOOK)

    def __call__(self, task: Task) -> Task:
        """Add the item to the task under the second name."""
        item = task[self.from_name]
        task[self.to_name] = deepcopy(item) if self.deep_copy else item
        return task


@operator("compute")
@input_option("--from-name", "-f", help="Name of the item to copy.")
@output_option("--to-name", "-t", help="Name of the copy.")
@click.option(
    "--deep-copy/--shallow-copy",
    default=True,
    show_default=True,
    help="Copy the voxels, or let both names share the same voxels.",
)
def command(from_name: str, to_name: str, deep_copy: bool) -> Copier:
    """Return the operator that copies one item to a second name."""
    return Copier(from_name, to_name, deep_copy)
