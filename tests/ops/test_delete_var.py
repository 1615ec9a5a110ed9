"""delete-var."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.task import Task
from chunkflow_py.errors import MissingChunkError
from chunkflow_py.ops.delete_var import Deleter


def test_items_are_gone():
    """The others stay; a name that there is not is told with those that there are."""
    assert list(Deleter(("a", "c"))(Task(items={"a": 1, "b": 2, "c": 3})).items) == ["b"]
    with pytest.raises(MissingChunkError, match=r"no chunk named 'a' \(chunks so far: b\)"):
        Deleter(("a",))(Task(items={"b": 1}))


def test_in_a_line():
    """What reads an item that is gone is a usage error, before anything is done."""
    line = ["create-chunk", "copy-var", "-t", "raw", "delete-var", "-v", "raw,chunk"]
    assert CliRunner().invoke(cli, line).exit_code == 0
    result = CliRunner().invoke(cli, [*line, "threshold"])
    assert (result.exit_code, "reads 'chunk', which no operator" in result.output) == (2, True)
