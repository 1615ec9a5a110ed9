"""find-tbar-object."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.find_tbar_object import ObjectFinder, find_tbar_object
from chunkflow_py.ops.save_h5 import save_h5

SEGMENTS = Chunk(
    np.array([2**63, 0, 5, 6], np.uint64).reshape(1, 2, 2), (3, 4, 5), kind="segmentation"
)
SYNAPSES = Synapses(np.array([[3, 4, 5], [3, 4, 6], [3, 5, 6], [2, 4, 5]]))


def test_ids_are_read_by_global_position():
    """Outside of the chunk there is none, or what was known before."""
    found = find_tbar_object(SYNAPSES, SEGMENTS)
    assert found.object_ids.tolist() == [2**63, 0, 6, 0]
    assert SYNAPSES.object_ids is None
    known = Synapses(SYNAPSES.pre, object_ids=np.array([1, 2, 3, 4], np.uint64))
    assert find_tbar_object(known, SEGMENTS).object_ids.tolist() == [2**63, 0, 6, 4]


def test_in_a_line(tmp_path):
    """The ids are kept with the synapses; an image has none; a task without synapses has None."""
    save_h5(SEGMENTS, tmp_path / "seg.h5")
    (tmp_path / "syns.json").write_bytes(SYNAPSES.to_json())
    line = f"load-synapses -f {tmp_path}/syns.json load-h5 -f {tmp_path}/seg.h5 find-tbar-object"
    result = CliRunner().invoke(cli, f"{line} save-synapses -f {tmp_path}/out.h5".split())
    assert result.exit_code == 0, result.output
    found = Synapses.from_bytes((tmp_path / "out.h5").read_bytes())
    assert found.object_ids.tolist() == [2**63, 0, 6, 0]
    assert ObjectFinder()(Task(items={"syns": None}))["syns"] is None
    with pytest.raises(ChunkError, match="has 1 channels of float32, but labels are integers"):
        find_tbar_object(SYNAPSES, Chunk(np.zeros((1, 2, 2), np.float32)))
