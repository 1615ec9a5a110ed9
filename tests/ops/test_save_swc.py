"""save-swc: one file a skeleton."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.task import Task
from chunkflow_py.errors import VolumeError
from chunkflow_py.ops.load_skeleton import load_skeleton
from chunkflow_py.ops.save_swc import save_swc
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder
from chunkflow_py.segmentation.skeleton_files import SwcSaver

LINE = Skeleton.of([(1, 2, 3.25), (4, 5, 6)], [(0, 1)], [7, 8], [2, 2])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("prefix", "name"), [("./", "9.swc"), ("there", "there/9.swc"), ("new/cell_", "new/cell_9.swc")]
)
def test_names_begin_with_the_prefix(prefix, name):
    """A folder that exists needs no slash; others are made."""
    Path("there").mkdir()
    save_swc({9: LINE}, prefix)
    (found,) = load_skeleton(name).values()
    assert np.array_equal(found.vertices_nm, LINE.vertices_nm)


def test_the_record_of_the_task_names_the_files():
    """Each file with length and checksum, in a store of any kind; bytes are the same again."""
    written = [SwcSaver("s", "mem://swc/a/")(Task(items={"s": {1: LINE, 2: LINE}})).written
               for _ in range(2)]  # fmt: skip
    assert written[0] == written[1]
    assert [stored.url for stored in written[0]] == ["mem://swc/a/1.swc", "mem://swc/a/2.swc"]
    data = ObjectFolder("mem://swc/a").get("1.swc")
    assert data is not None
    assert written[0][0].size == len(data)


def test_tasks_do_not_replace_each_others_files():
    """Of several tasks, each has its box in the names; of one, the id is enough."""
    array = np.zeros((4, 4, 12), np.uint8)
    array[1:3, 1:3] = 5
    np.save("rod.npy", array)
    line = "load-npy -f rod.npy skeletonize --dust-threshold 0 --const 1 save-swc -p swc/"
    for source in ("create-bbox -s 0 0 0 -z 4 4 12", "generate-tasks --roi-size 4 4 12 -c 4 4 6"):
        result = CliRunner().invoke(cli, f"--quiet {source} {line}".split())
        assert result.exit_code == 0, result.output
    names = sorted(path.name for path in Path("swc").iterdir())
    assert names == ["0-4_0-4_0-6_5.swc", "0-4_0-4_6-12_5.swc", "5.swc"]
    assert list(load_skeleton(f"swc/{names[1]}")) == [5]


def test_another_item_is_refused():
    """A chunk is no skeleton; the line says so with the name."""
    with pytest.raises(VolumeError, match="item 'skels' is a str, not a dictionary of skeletons"):
        SwcSaver()(Task(items={"skels": "x"}))
    result = CliRunner().invoke(cli, ["--quiet", "create-chunk", "save-swc", "-i", "chunk"])
    assert result.exit_code == 1
    assert "item 'chunk' is a Chunk, not a dictionary of skeletons" in result.stderr
