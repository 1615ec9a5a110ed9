"""detect-points, detect-pre-synapses and detect-post-synapses, in lines with tasks."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.ops.detect_points import detect_points
from chunkflow_py.ops.detect_post_synapses import PostDetector, detect_post_synapses
from chunkflow_py.ops.detect_pre_synapses import detect_pre_synapses
from chunkflow_py.ops.save_h5 import save_h5

SIZE = (16, 48, 48)
# Of few heights, so that many tops are flat or equal.
MAP = Chunk(
    np.random.default_rng(1).integers(0, 256, SIZE).astype(np.uint8) // 8 * 8, (0, 0, 0), (8, 8, 8)
)


@pytest.fixture
def file(tmp_path):
    """Write the map, and return the beginning of a line over its tasks."""
    save_h5(MAP, tmp_path / "map.h5")
    tasks = "generate-tasks -c 8 16 16 -s 0 0 0 -z 16 48 48"
    return f"{tasks} load-h5 -f {tmp_path}/map.h5 --expand-margin-size auto"


def run(line):
    """Run a line."""
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    return result


def in_order(*arrays):
    """Return rows of arrays next to each other, sorted."""
    return sorted(np.column_stack(arrays).tolist())


def test_points_of_tasks_are_those_of_the_whole(file, tmp_path):
    """Each peak belongs to one task; the answer does not depend on the cut."""
    run(f"{file} detect-points --min-distance 3 save-points -i point_cloud -f {tmp_path}/p_")
    parts = [Points.from_hdf5(path.read_bytes()) for path in tmp_path.glob("p_*.h5")]
    assert len(parts) == 18
    whole = detect_points(MAP, 3)
    found = in_order(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.confidences for part in parts]),
    )
    assert found == in_order(whole.positions, whole.confidences)
    assert len(found) > 50


def test_synapses_of_tasks_are_those_of_the_whole(file, tmp_path):
    """T-bars and their partners, found task by task, are those found at once."""
    run(f"{file} detect-pre-synapses --min-distance 7 save-synapses -f {tmp_path}/pre_")
    parts = [path.read_bytes() for path in tmp_path.glob("pre_*.h5")]
    pres = [Synapses.from_bytes(data).pre for data in parts if data]
    whole = detect_pre_synapses(MAP, 7)
    assert in_order(np.concatenate(pres)) == in_order(whole.pre)
    assert len(whole) > 5
    (tmp_path / "pre.h5").write_bytes(whole.to_hdf5())
    options = "--min-distance 2 --threshold-rel 0.9 --max-distance 9 --max-post-num 3"
    run(
        f"{file} load-synapses -f {tmp_path}/pre.h5 detect-post-synapses {options} "
        f"save-synapses -f {tmp_path}/syn_"
    )
    parts = [path.read_bytes() for path in tmp_path.glob("syn_*.h5")]
    found = [Synapses.from_bytes(data) for data in parts if data]
    whole = detect_post_synapses(MAP, whole, 2, 0.9, 9, 3)
    pairs = [np.column_stack([part.pre[part.post_to_pre], part.post]) for part in found]
    assert in_order(np.concatenate(pairs)) == in_order(whole.pre[whole.post_to_pre], whole.post)
    assert max(np.bincount(whole.post_to_pre)) == 3
    assert whole.pre_to_post_distances.max() <= 9


def test_nothing_to_find():
    """A map without peaks has no points, and no synapses; a task without a map has None."""
    flat = Chunk(np.zeros((2, 4, 4), np.uint8))
    assert len(detect_points(flat)) == 0
    assert detect_pre_synapses(flat) is None
    for items in ({"chunk": None, "syns": 1}, {"chunk": flat, "syns": None}):
        assert PostDetector()(Task(items=items))["syns"] is None
    run("create-chunk -s 4 4 4 plugin -f detect-points -o p --min-distance 2")


def test_a_missing_margin_is_told_of_once(file):
    """With one the faces of tasks decide nothing; without, peaks near them are doubtful."""
    for line, count in ((file, 0), (file.replace(" --expand-margin-size auto", ""), 1)):
        result = run(f"{line} detect-points --min-distance 3")
        assert result.stderr.count("may be detected twice or not at all") == count
