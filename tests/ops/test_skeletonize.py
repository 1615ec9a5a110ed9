"""skeletonize: centre lines that meet at the faces of tasks."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import ChunkError, MissingExtraError
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.ops.skeletonize import skeletonize

SETTINGS = {"dust_threshold": 20, "const": 60.0}


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def rods() -> Chunk:
    """Return two bent rods of 5 by 5 voxels, 20 nm a voxel, that go through the whole chunk."""
    array = np.zeros((12, 30, 48), np.uint64)
    array[3:8, 4:9, :] = 7
    array[3:8, 4:, 20:25] = 7
    array[9:12, 20:23, :] = 2**40
    return Chunk(array, (100, 200, 300), (20, 20, 20), "segmentation")


def test_the_line_lies_in_the_middle():
    """Of a straight rod: through the middles of its voxels, in nanometres, from end to end."""
    array = np.zeros((5, 7, 40), np.uint16)
    array[1:4, 2:5, :] = 3
    chunk = Chunk(array, (10, 0, -5), (10, 10, 10), "segmentation")
    before = array.copy()
    (line,) = skeletonize(chunk, **SETTINGS).values()
    inside = line.vertices_nm[(line.vertices_nm[:, 2] > 0) & (line.vertices_nm[:, 2] < 300)]
    assert set(map(tuple, inside[:, :2].tolist())) == {(125, 35)}
    assert line.vertices_nm[:, 2].min() == -45
    assert line.vertices_nm[:, 2].max() == 345
    assert np.array_equal(array, before)


def test_another_voxel_size_may_be_said():
    """--voxel-size is taken instead of the chunk's."""
    chunk = rods()
    other = Chunk(chunk.array, chunk.voxel_offset, (1, 1, 1), "segmentation")
    said = skeletonize(other, voxel_size_nm=(20.0, 20.0, 20.0), **SETTINGS)
    for label, line in skeletonize(chunk, **SETTINGS).items():
        np.testing.assert_array_equal(said[label].vertices_nm, line.vertices_nm)


def test_neighbours_meet_at_the_same_point():
    """Fragments of two tasks share exactly one vertex of an object, on the plane of both."""
    chunk = rods()
    first, second = chunk.bbox.grow((0, 0, 0), (0, 0, -22)), BoundingBox.parse(
        "100-112_200-230_326-348"
    )  # fmt: skip
    a, b = (skeletonize(chunk, box=box, **SETTINGS) for box in (first, second))
    assert sorted(a) == sorted(b) == [7, 2**40]
    for label in a:
        shared = set(map(tuple, a[label].vertices_nm)) & set(map(tuple, b[label].vertices_nm))
        assert {point[2] for point in shared} == {326.5 * 20}
    assert list(skeletonize(chunk, ids=[7], **SETTINGS)) == [7]


def test_maps_are_refused():
    """A chunk that holds no labels is one sentence."""
    with pytest.raises(ChunkError, match="2 channels of uint8"):
        skeletonize(Chunk(np.zeros((2, 4, 4, 4), np.uint8)))


def test_without_kimimaro_the_pip_line_is_told(monkeypatch):
    """The extra is optional, for its licence."""
    monkeypatch.setitem(sys.modules, "kimimaro", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chunkflow_py\[skeleton\]'"):
        skeletonize(rods())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with seg.h5 and the volume seg."""
    monkeypatch.chdir(tmp_path)
    save_h5(rods(), "seg.h5")
    line = "load-h5 -f seg.h5 save-precomputed -v seg --create --block-size 12 15 16"
    assert run(f"{line} --encoding raw").exit_code == 0
    return tmp_path


TASKS = (
    "generate-tasks -v seg -c 12 15 16 load-precomputed -v seg --expand-margin-size auto "
    "skeletonize --output-path seg --dust-threshold 20 --const 60"
)


def test_fragments_of_tasks_become_skeletons(folder):
    """cloud-volume reads one tree an object, as long as its lines; any order, the same bytes."""
    from cloudvolume import CloudVolume

    assert run(TASKS).exit_code == 0
    place = folder / "seg" / "skeletons_mip_0"
    fragments = sorted(path.name for path in place.iterdir() if path.name.startswith("7:"))
    assert fragments[0] == "7:300-316_200-215_100-112.gz"
    line = "aggregate-skeleton-fragments -f seg --dust-threshold 50 --tick-threshold 50"
    assert run(line).exit_code == 0
    volume = CloudVolume(f"file://{folder}/seg", progress=False)
    found = volume.skeleton.get(7)
    assert len(found.components()) == 1
    assert len(found.edges) == len(found.vertices) - 1
    # 48 voxels along x, and 24 along y from the middle of the rod
    assert found.cable_length() == pytest.approx((47 + 23.5) * 20, rel=0.05)
    assert len(volume.skeleton.get(2**40).components()) == 1

    first = {path.name: path.read_bytes() for path in place.iterdir()}
    for name in first:
        (place / name).unlink()
    for k in (5, 2, 4, 0, 3, 1):
        assert run(TASKS.replace(" -c ", f" -i {k} -p {k + 1} -c ")).exit_code == 0
    assert run(line).exit_code == 0
    assert {path.name: path.read_bytes() for path in place.iterdir()} == first


def test_skeletons_flow_down_the_line(folder):
    """Without --output-path they are an item alone; a dry run writes nothing."""
    line = "load-h5 -f seg.h5 skeletonize --dust-threshold 20 --const 60"
    assert run(f"{line} save-swc -p swc/").exit_code == 0
    assert sorted(path.name for path in Path("swc").iterdir()) == ["1099511627776.swc", "7.swc"]
    assert CliRunner().invoke(cli, ["--quiet", "--dry-run", *TASKS.split()]).exit_code == 0
    assert "skeletons" not in json.loads(Path("seg/info").read_text())


@pytest.mark.parametrize(("length", "expected"), [(1, {}), (4, {3: 4})])
def test_a_line_of_voxels(length, expected):
    """A chunk of one voxel in two axes, at which kimimaro breaks off, has its line or none."""
    chunk = Chunk(np.full((1, length, 1), 3, np.uint8), (-5, 0, 2), (40, 4, 4))
    found = skeletonize(chunk, dust_threshold=0)
    assert {label: len(line.vertices_nm) for label, line in found.items()} == expected
