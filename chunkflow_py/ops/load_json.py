"""Load a JSON file as an item of the task.

Example: chunkflow load-json --file-path settings.json --output-name settings

A name without .json is a prefix or a folder: with the task 0-64_0-512_0-512, `-f info_` reads
info_0-64_0-512_0-512.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.decoding import parse_json as parse_document
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import VolumeError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import output_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.task_files import TaskFiles


def parse_json(data: bytes, what: str) -> Any:
    """Parse a JSON file into dictionaries, lists, numbers and strings.

    Args:
        data: the whole file.
        what: its name, for messages.

    Raises:
        VolumeError: it is not JSON; the message gives the position of the error.
    """
    try:
        return parse_document(data, None)
    except ValueError as error:
        msg = f"{what} is not a JSON file: {error}"
        raise VolumeError(msg) from error


@dataclass
class JsonLoader(OperatorBase):
    """Puts the content of a JSON file into every task."""

    files: TaskFiles
    output_name: str = "dict"
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origin(self) -> str:
        """The input files, which no other operator may overwrite."""
        return self.files.place

    def __call__(self, task: Task) -> Task:
        """Read the file."""
        content = parse_json(self.files.read(task.region), self.files.url(task.region))
        task[self.output_name] = content
        return task


@operator("read")
@click.option(
    "--file-path", "-f", required=True, help="File or URL, or prefix for one file per task."
)
@output_option("--output-name", "-o", default="dict", help="Name of the content.")
def command(file_path: str, output_name: str) -> JsonLoader:
    """Return the operator for the file."""
    from chunkflow_py.store.task_files import TaskFiles

    return JsonLoader(TaskFiles(file_path, ".json", (".json",), "--file-path"), output_name)
