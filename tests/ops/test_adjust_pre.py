"""adjust-pre."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.adjust_pre import Adjuster, adjust_pre
from chunkflow_py.ops.save_h5 import save_h5

OFFSET = (10, 20, 30)


def spot(*centres, radius=2, size=(24, 24, 24), size_nm=(8, 8, 8)):
    """Return a bright image with dark balls."""
    image = np.full(size, 200, np.uint8)
    for centre in centres:
        offset = np.indices(size) - np.reshape(centre, (3, 1, 1, 1))
        image[np.square(offset).sum(axis=0) <= radius**2] = 30
    return Chunk(image, OFFSET, size_nm, "image")


def moved(image, *points, **options):
    """Return where points of the image, counted from its first voxel, go."""
    synapses = Synapses(np.array(points) + OFFSET)
    return (adjust_pre(synapses, image, **options).pre - OFFSET).tolist()


def test_a_t_bar_moves_to_the_middle():
    """From wherever near it; one in the middle stays, and one with nothing dark around it."""
    image = spot((8, 8, 8))
    assert moved(image, (8, 8, 8), (6, 9, 8), (11, 8, 12), (18, 18, 18)) == [
        [8, 8, 8], [8, 8, 8], [8, 8, 8], [18, 18, 18],
    ]  # fmt: skip
    assert moved(image, (8, 8, 11), radius=1) == [[8, 8, 10]]
    assert moved(image, (8, 8, 9), img_threshold=20) == [[8, 8, 9]]


def test_of_equals_the_nearest_counts():
    """In a dark region all that is deep enough is equal."""
    dark = Chunk(np.zeros((24, 24, 24), np.uint8), OFFSET)
    assert moved(dark, (3, 12, 20), (0, 0, 0)) == [[3, 12, 20], [0, 0, 0]]
    assert moved(spot((8, 8, 6), (8, 8, 14)), (8, 8, 11)) == [[8, 8, 14]]


def test_depth_is_measured_in_nanometres():
    """A plate that is thick in voxels of z only is no deeper in thin voxels."""
    image = np.full((24, 24, 24), 200, np.uint8)
    image[6:11, 8, 8] = 0  # 5 voxels in z, 1 in y and x
    image[8, 7:10, 7:10] = 0  # and a plate of 3 × 3
    thick = Chunk(image, OFFSET, (40, 4, 4))
    assert moved(thick, (9, 8, 8)) == [[8, 8, 8]]


def test_outside_of_the_chunk_nothing_moves():
    """At its face what is inside decides."""
    image = spot((0, 12, 12))
    assert moved(image, (1, 12, 13), (-1, 12, 12), (24, 0, 0)) == [
        [0, 12, 12], [-1, 12, 12], [24, 0, 0],
    ]  # fmt: skip


def test_a_part_with_margin_is_the_whole():
    """What is moved in a task's box depends on twice the radius around it."""
    rng = np.random.default_rng(0)
    image = Chunk(rng.integers(0, 256, (30, 40, 40)).astype(np.uint8), OFFSET, (8, 8, 8))
    box = BoundingBox.from_size((20, 30, 40), (8, 12, 12))
    points = rng.integers(box.start, box.stop, (300, 3))
    whole = adjust_pre(Synapses(points), image, 120, 3)
    part = image.cut(Adjuster(radius=3).required_input(box, image.domain))
    assert np.array_equal(adjust_pre(Synapses(points), part, 120, 3).pre, whole.pre)
    assert not np.array_equal(whole.pre, points)


def test_in_a_line(tmp_path):
    """T-bars keep what is known of them; None stays None; channels are refused."""
    save_h5(spot((8, 8, 8)), tmp_path / "em.h5")
    synapses = Synapses(np.array([[19, 28, 38]]), pre_confidence=np.array([0.5]))
    (tmp_path / "syns.h5").write_bytes(synapses.to_hdf5())
    line = f"load-synapses -f {tmp_path}/syns.h5 load-h5 -f {tmp_path}/em.h5 adjust-pre"
    result = CliRunner().invoke(cli, f"{line} save-synapses -f {tmp_path}/out.h5".split())
    assert result.exit_code == 0, result.output
    found = Synapses.from_bytes((tmp_path / "out.h5").read_bytes())
    assert (found.pre.tolist(), found.pre_confidence.tolist()) == ([[18, 28, 38]], [0.5])
    assert Adjuster()(Task(items={"syns": None}))["syns"] is None
    with pytest.raises(ChunkError, match="has 2"):
        adjust_pre(synapses, Chunk(np.zeros((2, 1, 1, 1))))
