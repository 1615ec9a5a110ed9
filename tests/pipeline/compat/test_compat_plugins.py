"""Plugins that import ``chunkflow`` run in our lines, and nothing else can import it."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.ops.plugin import Plugin
from chunkflow_py.pipeline.compat.imports import importable, is_imported_by

IMAGE = Chunk(np.arange(120, dtype=np.uint8).reshape(4, 5, 6), (10, 20, 30), (40, 4, 4), "image")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return what a plugin makes of items: its outputs and the task."""
    monkeypatch.chdir(tmp_path)

    def call(source, items, outputs=("out",), **keywords):
        (tmp_path / "older.py").write_text(source)
        task = Task(items=dict(items))
        body = Plugin("older.py", tmp_path / "older.py", tuple(items), outputs, keywords)
        task = body(task)
        return [task[name] for name in outputs], task

    return call


CHUNKS = """
import numpy as np
from chunkflow.chunk import Chunk
from chunkflow.lib.cartesian_coordinate import BoundingBox, Cartesian

def execute(chunk: Chunk):
    assert isinstance(chunk, Chunk) and chunk.is_image and not chunk.is_segmentation
    assert chunk.voxel_offset == (10, 20, 30) and chunk.voxel_size == Cartesian(40, 4, 4)
    assert chunk.layer_type == "image" and chunk.bbox.string == "10-14_20-25_30-36"
    assert (chunk.max(), chunk.min(), chunk.mean(), chunk.size) == (119, 0, 59.5, 120)
    assert chunk.slices == chunk.bbox.slices == (slice(10, 14), slice(20, 25), slice(30, 36))
    part = chunk.cutout(BoundingBox(Cartesian(11, 21, 31), Cartesian(13, 24, 35)))
    assert part.voxel_offset == (11, 21, 31) and part.shape == (2, 3, 4)
    copy = chunk.clone()
    copy.array[:] = 7
    copy.save(part)
    assert (copy.array != 7).sum() == 24 and chunk.array[0, 0, 0] == 0
    half = chunk.astype(np.float32) / 2
    half += 1
    assert isinstance(half, Chunk) and half.dtype == np.float32
    mask = chunk.threshold(100)
    ids = Chunk((chunk.array > 3).astype(np.uint32), voxel_offset=(0, 1, 2, 3))
    assert ids.voxel_offset == (1, 2, 3) and ids.is_segmentation
    ids.set_properties(chunk.properties)
    return half, mask, chunk.crop_margin((1, 1, 1)), ids, chunk.array[:, 1:-1]
"""


def test_chunks_of_older_plugins(call):
    """They have the methods of 1.x; what comes back has place, voxel size, domain and kind."""
    (half, mask, cropped, ids, array), _ = call(CHUNKS, {"in": IMAGE}, tuple("abcde"))
    assert np.array_equal(half.array, IMAGE.array.astype(np.float32) / 2 + 1)
    for made in (half, mask, ids):
        assert type(made) is Chunk
        assert (made.bbox, made.voxel_size_nm) == (IMAGE.bbox, IMAGE.voxel_size_nm)
    assert (str(cropped.bbox), cropped.domain) == ("11-13_21-24_31-35", IMAGE.domain)
    assert np.array_equal(cropped.array, IMAGE[cropped.bbox].array)
    assert str(array.bbox) == "10-14_21-24_30-36"
    assert (mask.dtype, cropped.kind) == (np.uint8, "image")


KINDS = """
from chunkflow.chunk import Chunk

def execute(chunk: Chunk):
    labels = Chunk((chunk.array[0] > 0).astype("uint64"))
    labels.set_properties(chunk.properties)
    return chunk.clone(), labels
"""


@pytest.mark.parametrize("kind", ["affinity", "probability", "logit", "vector", None])
def test_kinds_survive_an_older_plugin(call, kind):
    """Those that 1.x has no name for as well; labels with the properties of a map are labels."""
    chunk = Chunk(np.ones((3, 4, 5, 6), np.float32), kind=kind)
    (same, labels), _ = call(KINDS, {"in": chunk}, ("same", "labels"))
    assert same.kind == kind
    assert labels.kind == (None if kind in ("logit", "vector", None) else "segmentation")


def test_what_an_older_plugin_changes_is_changed(call):
    """A chunk whose array it replaces is replaced in the task, as it was in 1.x; others are not."""
    source = "import chunkflow.chunk\ndef execute(chunk):\n    chunk.array = chunk.array[:2] + 1\n"
    _, task = call(source, {"in": IMAGE}, ())
    assert task["in"].shape == (2, 5, 6)
    assert task["in"].array[0, 0, 0] == 1
    source = (
        "import chunkflow.chunk\ndef execute(chunk, bbox):\n    assert bbox.slices[0].stop == 2\n"
    )
    box = BoundingBox((0, 0, 0), (2, 2, 2))
    _, task = call(source, {"in": IMAGE, "box": box}, ())
    assert task["in"] is IMAGE
    assert task["box"] is box


SYNAPSES = """
from copy import deepcopy
from chunkflow.synapses import Synapses
from chunkflow.point_cloud import PointCloud
from chunkflow.lib.cartesian_coordinate import BoundingBox

def execute(syns: Synapses, points: PointCloud):
    assert (syns.pre_num, syns.post_num, points.point_num) == (3, 3, 2)
    assert syns.pre_index2post_indices == [[0], [2], [1]]
    assert syns.post_indices_from_user("b") == {1}
    before = deepcopy(syns)
    syns.remove_synapses_outside_bounding_box(BoundingBox.from_string("0-5_0-5_0-5"))
    assert before.pre_num == 3
    return before, PointCloud(points.points + 1, points.voxel_size)
"""


def test_synapses_and_points_of_older_plugins(call):
    """They have the methods of 1.x, and come back as ours; what is changed in place is changed."""
    rows = np.arange(3)
    before = Synapses(
        np.array([[1, 1, 1], [9, 9, 9], [5, 5, 5]]), np.array([[2, 2, 2], [6, 6, 6], [8, 8, 8]]),
        np.array([0, 2, 1]), (40.0, 4.5, 4.0), rows / 10, rows / 5, ("a", "b"), rows % 2, rows % 2,
        rows + 7,
    )  # fmt: skip
    points = Points(np.array([[1, 2, 3], [4, 5, 6]]), (40.0, 4.5, 4.0), np.array([0.5, 1]))
    (same, moved), task = call(SYNAPSES, {"s": before, "p": points}, ("same", "moved"))
    for name, value in vars(before).items():
        assert np.array_equal(getattr(same, name), value), name
    assert moved.positions.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert moved.voxel_size_nm == points.voxel_size_nm
    kept = task["s"]
    assert kept.pre.tolist() == [[1, 1, 1], [5, 5, 5]]
    assert (kept.post_to_pre.tolist(), kept.users) == ([0, 1], ("a", "b"))
    assert kept.post_confidence.tolist() == [0.0, 0.2]
    assert task["p"] is points


LATE = """
import threading

def helper():
    from chunkflow.lib.cartesian_coordinate import Cartesian
    return Cartesian

def execute(chunk):
    from chunkflow.chunk import Chunk
    import chunkflow.chunk.probability_map as maps
    import chunkflow.synapses
    assert isinstance(chunk, Chunk) and issubclass(maps.ProbabilityMap, Chunk)
    assert isinstance(chunk.voxel_offset, helper())
    return chunk
"""


def test_late_imports_of_a_plugin_work_and_leave_nothing(call):
    """Imports inside functions find the same classes; before and after, nobody can import it."""
    for _ in range(2):
        (out,), _ = call(LATE, {"in": IMAGE})
        assert out.bbox == IMAGE.bbox
        assert not [name for name in sys.modules if name.partition(".")[0] == "chunkflow"]
        with pytest.raises(ModuleNotFoundError):
            import chunkflow.chunk
    with pytest.raises(ZeroDivisionError):
        call("import chunkflow\ndef execute(chunk):\n    1 / 0\n", {"in": IMAGE})
    with pytest.raises(ModuleNotFoundError):
        import chunkflow  # noqa: F401


def test_plugins_in_two_threads_do_not_take_it_from_each_other():
    """The modules stay until the last plugin that is at work has ended."""
    entered, leave, failures = threading.Event(), threading.Event(), []

    def other():
        with importable():
            entered.set()
            leave.wait(10)
            try:
                import chunkflow.synapses  # noqa: F401
            except ImportError as error:
                failures.append(error)

    thread = threading.Thread(target=other)
    with importable():
        thread.start()
        entered.wait(10)
    leave.set()
    thread.join()
    assert not failures
    assert "chunkflow" not in sys.modules


def test_chunkflow_itself_goes_first(tmp_path, monkeypatch):
    """Where it is installed, plugins get it; a mere folder of this name is not it."""
    (tmp_path / "plugin.py").write_text("def execute(c):\n    from chunkflow.chunk import Chunk\n")
    (tmp_path / "chunkflow").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert is_imported_by(tmp_path / "plugin.py")
    with importable():
        from chunkflow.chunk import Chunk as Ours

        assert Ours.__module__ == "chunkflow_py.pipeline.compat.chunks"
    (tmp_path / "chunkflow/__init__.py").touch()
    (tmp_path / "chunkflow/chunk.py").write_text("Chunk = 'the real one'")
    program = (
        "from pathlib import Path\nfrom chunkflow_py.pipeline.compat.imports import *\n"
        "with importable():\n    from chunkflow.chunk import Chunk\n"
        "assert Chunk == 'the real one'\nfrom chunkflow.chunk import Chunk\n"
        f"assert not is_imported_by(Path({str(tmp_path / 'plugin.py')!r}))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(tmp_path)}, timeout=60
    )


def test_only_files_that_import_chunkflow_get_the_older_classes(tmp_path):
    """Anywhere in the file; its name in another one, or in a text, does not count."""
    for source, expected in (
        ("import chunkflow", True),
        ("def f():\n    from chunkflow.chunk import Chunk", True),
        ("import chunkflow.synapses as s", True),
        ("import chunkflow_py\nfrom .chunkflow import x", False),
        ("'''from chunkflow.chunk import Chunk'''", False),
        ("not Python", False),
    ):
        (tmp_path / "a.py").write_text(source)
        assert is_imported_by(tmp_path / "a.py") == expected, source


def test_a_line_with_an_older_plugin(tmp_path, monkeypatch):
    """With None and bbox as inputs, and a result that no name keeps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "older.py").write_text(
        "from chunkflow.lib.bounding_boxes import BoundingBox\n"
        "def execute(nothing, bbox: BoundingBox, voxel_size: tuple = None):\n"
        "    assert nothing is None and voxel_size == (40, 4, 4)\n"
        "    print('box', bbox.adjust(1).string, bbox.contains((0, 1, 2)))\n"
        "    return {'a': 1}, bbox\n"
    )
    line = "create-bbox -s 0 0 0 -z 4 5 6 plugin -f older -i None,bbox --voxel-size 40,4,4"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    assert "box -1-5_-1-6_-1-7 True" in result.output


def test_a_method_that_is_not_here_is_named(call):
    """With the page that says what to write instead."""
    source = "import chunkflow\ndef execute(chunk):\n    chunk.normalize_shang()\n"
    with pytest.raises(AttributeError, match=r"no attribute 'normalize_shang'.*from-chunkflow"):
        call(source, {"in": IMAGE})


def test_plugins_that_treat_a_chunk_as_an_array(call):
    """Without an import they get our chunk, which converts, and has its extremes, as an array."""
    source = "def execute(chunk):\n    assert chunk.min() == 0 and chunk.max() == 119\n"
    (out,), _ = call(source + "    return chunk.astype('float32') / 255\n", {"in": IMAGE})
    assert (out.dtype, out.bbox) == (np.float32, IMAGE.bbox)
