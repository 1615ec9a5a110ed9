"""copy-var and delete-var."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import MissingChunkError
from chunkflow_py.ops.copy_var import Copier
from chunkflow_py.ops.delete_var import Deleter


def task():
    """Return a task with one chunk."""
    chunk = Chunk(np.ones((2, 2, 2)), (1, 2, 3), (4, 5, 6), "image")
    return Task(items={"chunk": chunk})


def test_a_deep_copy_has_its_own_voxels():
    """The copy equals the original in everything, and shares no memory with it."""
    result = Copier("chunk", "copy")(task())
    first, second = result["chunk"], result["copy"]
    assert not np.shares_memory(first.array, second.array)
    assert repr(first) == repr(second)
    assert first.domain == second.domain
    assert np.array_equal(first.array, second.array)


def test_a_shallow_copy_is_the_same_item():
    """Without --deep-copy it is a second name."""
    result = Copier("chunk", "copy", deep_copy=False)(task())
    assert result["chunk"] is result["copy"]


def test_deleted_items_are_gone():
    """A deleted name is free; the others stay."""
    result = Deleter(("a", "b"))(Task(items={"a": 1, "b": 2, "c": 3}))
    assert result.items == {"c": 3}
    with pytest.raises(MissingChunkError, match="so far: c"):
        Deleter(("a",))(result)


def test_in_a_line():
    """Copy and delete work together; an unknown name is refused before the first task."""
    line = "create-chunk -s 2 2 2 copy-var -f chunk -t a --shallow-copy delete-var -v chunk,a"
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    result = CliRunner().invoke(cli, ["create-chunk", "delete-var", "-v", "chunk,nothing"])
    assert result.exit_code == 2
    assert "reads 'nothing'" in result.output
    result = CliRunner().invoke(cli, ["create-chunk", "delete-var", "-v", "a,,b"])
    assert result.exit_code == 2
    result = CliRunner().invoke(cli, ["create-chunk", "delete-var", "-v", "chunk", "threshold"])
    assert result.exit_code == 2
    assert "threshold reads 'chunk', which no operator before it makes" in result.output
