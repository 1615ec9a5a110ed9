"""Load a JSON file as an item of the task.

Example: chunkflow load-json --file-path settings.json --output-name settings

A name without .json is a prefix or a folder: for the task 0-64_0-512_0-512, `--file-path info_`
reads info_0-64_0-512_0-512.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import parse_json as parse_document
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import VolumeError
from chunkflow_py.ops.options.file_options import file_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import output_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.task_files import TaskFiles


def parse_json(data: bytes, what: str) -> Any:
    """Return the content of a JSON file as dictionaries, lists, numbers and strings.

    Args:
        data: content of the whole file.
        what: name of the file, for messages.

    Raises:
        VolumeError: *data* is not JSON; the message gives the position of the error.
    """
    try:
        return parse_document(data, None)
    except ValueError as error:
        msg = f"{what} is not a JSON file: {error}"
        raise VolumeError(msg) from error


@dataclass
class JsonLoader(OperatorBase):
    """Adds the content of a JSON file to every task, as an item."""

    files: TaskFiles
    output_name: str = "dict"
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origin(self) -> str:
        """Path or prefix of the input files, which no other operator may overwrite."""
        return self.files.place

    def __call__(self, task: Task) -> Task:
        """Add the content of the file to the task."""
        content = parse_json(self.files.read(task.region), self.files.url(task.region))
        task[self.output_name] = content
        return task


@operator("read")
@file_path_option()
@output_option("--output-name", "-o", default="dict", help="Name of the item for the content.")
def command(file_path: str, output_name: str) -> JsonLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.store.task_files import TaskFiles

    return JsonLoader(TaskFiles(file_path, ".json", (".json",), "--file-path"), output_name)
