"""detect-duplicate-post."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.ops.detect_duplicate_post import detect_duplicate_post
from chunkflow_py.ops.save_h5 import save_h5

# Segment 1 up to x = 20, then segment 2.
SEGMENTS = Chunk(np.repeat(np.array([1, 2], np.uint32), 20).reshape(1, 1, 40), kind="segmentation")
SYNAPSES = Synapses(
    np.array([[0, 0, 0]]),
    np.array([[0, 0, x] for x in (5, 10, 18, 22, 30, 90)]),
    np.zeros(6, int),
    post_confidence=np.array([1, 1, 1, 0.1, 1, 1]),
    users=("ada", "bob"),
    post_users=np.array([0, 0, 1, 1, 1, 0]),
)


@pytest.mark.parametrize(
    ("options", "stay"),
    [
        ({"distance_threshold": 5}, [5, 18, 22, 30, 90]),  # 10 is 5 from 5
        ({"distance_threshold": 4}, [5, 10, 18, 22, 30, 90]),  # 18 and 22 are on two segments
        ({"distance_threshold": 8}, [5, 18, 22, 90]),  # 18 is near to 10, which goes
        ({"distance_threshold": 8, "user": "bob"}, [5, 10, 22, 90]),  # 10 stays, so 18 goes
        ({"distance_threshold": 0, "max_distance": 25}, [5, 10, 18, 22]),
        ({"distance_threshold": 0, "max_distance": 25, "user": "bob"}, [5, 10, 18, 22, 90]),
        # cost: 5, 10, 18, 220, 30, 90
        ({"distance_threshold": 0, "max_post_num": 4}, [5, 10, 18, 30]),
        ({"distance_threshold": 5, "max_post_num": 3}, [5, 18, 30]),
        ({"distance_threshold": 0, "max_post_num": 4, "user": "bob"}, [5, 10, 18, 90]),
    ],
)
def test_what_stays(options, stay):
    """By hand, along one axis."""
    found = detect_duplicate_post(SYNAPSES, SEGMENTS, **options)
    assert found.post[:, 2].tolist() == stay
    assert len(found.post_confidence) == len(stay)
    assert len(SYNAPSES.post) == 6


def test_in_a_line(tmp_path):
    """What is taken out has a name of its own; an unknown user is told."""
    save_h5(SEGMENTS, tmp_path / "seg.h5")
    (tmp_path / "syns.h5").write_bytes(SYNAPSES.to_hdf5())
    line = (
        f"load-synapses -f {tmp_path}/syns.h5 load-h5 -f {tmp_path}/seg.h5 "
        f"detect-duplicate-post --distance-threshold 8 -d double save-synapses -i double "
        f"-f {tmp_path}/double.h5 save-synapses -f {tmp_path}/out.h5"
    )
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    posts = [
        Synapses.from_bytes((tmp_path / name).read_bytes()).post[:, 2].tolist()
        for name in ("double.h5", "out.h5")
    ]
    assert posts == [[10, 30], [5, 18, 22, 90]]
    result = CliRunner().invoke(cli, line.replace("-d double", "-d double --user eve").split())
    assert (result.exit_code, "named 'eve'" in result.output) == (1, True)
