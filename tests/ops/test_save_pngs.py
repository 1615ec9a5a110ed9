"""save-pngs in lines."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.ops.save_pngs import command, save_pngs
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import checksum_of


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_section_is_a_file_named_by_its_z():
    """The default folder is made, and names are global z with five digits."""
    assert run("create-chunk -s 3 4 5 -t 98 0 0 save-pngs").exit_code == 0
    assert sorted(p.name for p in Path("pngs").iterdir()) == ["00098.png", "00099.png", "00100.png"]
    with Image.open("pngs/00098.png") as image:
        assert image.size == (5, 4)


def test_sixteen_bits_are_kept():
    """--dtype uint16 writes 16-bit images; what does not fit into uint8 is an error."""
    np.save("deep.npy", np.arange(20, dtype=np.uint16).reshape(1, 4, 5) * 300)
    line = "load-npy -f deep.npy save-pngs"
    assert run(f"{line} -t uint16 -o deep/images").exit_code == 0
    with Image.open("deep/images/00000.png") as image:
        assert np.array(image).max() > 255
    result = run(line)
    assert result.exit_code == 1
    assert "do not fit into uint8" in result.stderr
    assert not Path("pngs").exists()


def test_floats_become_integers_by_fixed_rules():
    """Maps by 255·p, clamped, halves to even; images by rounding, halves to even; else an error."""
    probability = np.array([[[-0.2, 0.5, 0.5 / 255, 1.5 / 255, 1, 7]]], np.float32)
    save_pngs(Chunk(probability, kind="probability"), "map")
    with Image.open("map/00000.png") as image:
        assert np.array(image).tolist() == [[0, 128, 0, 2, 255, 255]]
    save_pngs(Chunk(probability[..., :2], kind="probability"), "map16", "uint16")
    with Image.open("map16/00000.png") as image:
        assert np.array(image).tolist() == [[0, 32768]]
    save_pngs(Chunk(np.array([[[0.5, 1.5, 254.4]]]), kind="image"), "image")
    with Image.open("image/00000.png") as image:
        assert np.array(image).tolist() == [[0, 2, 254]]
    for array in ([[[256.0]]], [[[np.nan]]], [[[-1.0]]]):
        with pytest.raises(ChunkError):
            save_pngs(Chunk(np.array(array), kind="image"), "image")
    affinity = np.array([10, 21, 99], np.uint8).reshape(3, 1, 1, 1)
    save_pngs(Chunk(affinity, kind="affinity"), "affinity")
    with Image.open("affinity/00000.png") as image:
        assert np.array(image).tolist() == [[16]]


def test_sections_go_to_any_store():
    """A URL is a place like a folder; what was stored is told with its checksum."""
    body = command.main(["-o", "mem://save-pngs/a"], standalone_mode=False).body
    task = body(Task(items={"chunk": Chunk(np.zeros((2, 3, 4), "uint8"), (7, 0, 0))}))
    store = open_store("mem://save-pngs/a")
    assert sorted(store.list()) == ["00007.png", "00008.png"]
    assert [each.url.rpartition("/")[2] for each in task.written] == ["00007.png", "00008.png"]
    assert task.written[0].checksum == checksum_of(store.get("00007.png"))
    result = run("create-chunk save-pngs -o nowhere://a")
    assert (result.exit_code, "Traceback" in result.stderr) == (1, False)
    assert "unknown scheme nowhere://" in result.stderr


def test_tasks_that_share_a_section_are_refused():
    """Two tasks side by side would overwrite each other's section; in z they do not."""
    tasks = (
        "generate-tasks --roi-start 0 0 0 --roi-stop {} -c 4 4 4 create-chunk -s 4 4 4 save-pngs"
    )
    result = run(tasks.format("4 4 8"))
    assert result.exit_code == 2
    assert "two of the 2 tasks share a section" in result.stderr
    assert "4 voxels along y and 8 along x" in result.stderr
    assert run(f"--dry-run {tasks.format('4 4 8')}").exit_code == 0
    assert not Path("pngs").exists()


def test_tasks_of_a_queue_that_share_a_section_are_refused_at_the_second():
    """Where the tasks are not known before, the second one does not replace the first's section."""
    body = command.main(["-o", "out"], standalone_mode=False).body
    for x, time in ((0, None), (0, None), (2, 1)):
        region = Region(BoundingBox.from_size((0, 0, x), (1, 2, 2)), time)
        body(Task(region, {"chunk": Chunk(np.zeros((1, 2, 2), "uint8"), (0, 0, x))}))
    assert sorted(p.name for p in Path("out").iterdir()) == ["00000.png", "t1_00000.png"]
    region = Region(BoundingBox.from_size((0, 0, 2), (1, 2, 2)))
    with pytest.raises(VolumeError, match="would replace section 0 in out, which task 0-1_0-2_0-2"):
        body(Task(region, {"chunk": Chunk(np.ones((1, 2, 2), "uint8"), (0, 0, 2))}))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-o file", 1, "file is a file, not a folder"),
        ("-t uint32", 2, "uint32"),
        ("-i other", 2, "reads 'other', which no operator before it makes"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("file").touch()
    result = run(f"create-chunk save-pngs -o early save-pngs {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early").exists()
