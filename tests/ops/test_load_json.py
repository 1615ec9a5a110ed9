"""load-json."""

import json

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import VolumeError
from chunkflow_py.ops.load_json import JsonLoader, parse_json
from chunkflow_py.store.task_files import TaskFiles


@pytest.mark.parametrize("scheme", ["", "mem://"])
def test_a_file_of_a_task(tmp_path, scheme):
    """The box of the task is part of the name, in a folder and in a store."""
    files = TaskFiles(f"{scheme}{tmp_path}/", ".json", (".json",))
    region = Region.parse("0-1_0-1_0-1")
    files.write(region, json.dumps({"a": [1, None]}).encode())
    assert JsonLoader(files, "info")(Task(region))["info"] == {"a": [1, None]}


def test_in_a_line(tmp_path):
    """The item has its name; what is no JSON fails with the place where it goes wrong."""
    file = tmp_path / "a.json"
    file.write_text("[1]")
    line = ["load-json", "-f", str(file), "delete-var", "-v", "dict"]
    assert CliRunner().invoke(cli, line).exit_code == 0
    with pytest.raises(VolumeError, match=r"x is not a JSON file: .* line 1 column 2"):
        parse_json(b"[", "x")
    file.write_bytes(b"\xff")
    result = CliRunner().invoke(cli, line)
    assert (result.exit_code, "a.json is not a JSON file" in result.output) == (1, True)
