"""save-annotations, merge-annotations and load-annotations on the command line."""

import numpy as np
import pytest
from rigs.command_line import say

from chunkflow_py.core.annotations import Annotations
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.load_annotations import load_annotations
from chunkflow_py.ops.save_annotations import related_to
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.volume.precomputed.annotation_reader import open_annotations

SIZE = (8, 16, 24)
TASKS = "generate-tasks --roi-size 8 16 24 --chunk-size 8 16 12"
ONE = "generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1"
MERGE = f"{ONE} merge-annotations --parts-path parts --annotations-path all"
DETECT = "load-h5 --file-name map.h5 detect-points --min-distance 1"
SAVE = "save-annotations --parts-path parts"


@pytest.fixture
def points(tmp_path, monkeypatch):
    """Store a map with five points and their labels in an empty folder; return the points."""
    monkeypatch.chdir(tmp_path)
    places = np.array([[1, 2, 3], [6, 13, 3], [4, 4, 20], [4, 8, 11], [2, 12, 13]])
    array = np.zeros(SIZE, np.float32)
    array[tuple(places.T)] = [0.9, 0.8, 0.75, 0.7, 0.65]
    save_h5(Chunk(array, (0, 0, 0), (40, 8, 8), "probability"), "map.h5")
    labels = np.zeros(SIZE, np.uint32)
    labels[:, 8:, :] = 5
    labels[:, 8:, 12:] = 7
    save_h5(Chunk(labels, (0, 0, 0), (40, 8, 8), "segmentation"), "labels.h5")
    return places


def places_of(annotations):
    """Return the voxels of all positions, sorted."""
    return sorted(map(tuple, np.floor(annotations.geometry[:, 0]).astype(int).tolist()))


def test_points_of_tasks_are_merged_and_loaded(points):
    """Confidences are a property; the voxel size and the bounds come from the map."""
    say(f"{TASKS} {DETECT} {SAVE}")
    say(MERGE)
    collection = open_annotations("all")
    assert collection.schema.voxel_size_nm == (40, 8, 8)
    assert collection.info.lower == (0, 0, 0)
    everything = load_annotations("all", BoundingBox.parse("0-8_0-16_0-24"))
    assert places_of(everything) == sorted(map(tuple, points.tolist()))
    assert sorted(everything.properties[0].values.round(2).tolist()) == pytest.approx(
        [0.65, 0.7, 0.75, 0.8, 0.9]
    )
    say(f"{TASKS} load-annotations --annotations-path all "
        "save-annotations --input-name annotations --parts-path parts2")  # fmt: skip
    say(f"{ONE} merge-annotations --parts-path parts2 --annotations-path all2")
    assert open_annotations("all2").ids().tolist() == collection.ids().tolist()


def test_points_are_related_to_segments(points):
    """0 is no segment."""
    say(f"{TASKS} load-h5 --file-name labels.h5 --output-name labels {DETECT} "
        f"{SAVE} --segmentation-name labels")  # fmt: skip
    say(MERGE)
    collection = open_annotations("all")
    assert places_of(collection.related("segment", 5)) == [(4, 8, 11), (6, 13, 3)]
    assert places_of(collection.related("segment", 7)) == [(2, 12, 13)]
    loaded = load_annotations("all", BoundingBox.parse("0-8_0-16_0-24"))
    assert sorted(each.tolist() for each in loaded.relations[0].lists()) == [[], [], [5], [5], [7]]


def test_synapses_become_lines_between_segments(points, tmp_path):
    """Each postsynaptic point gives a line with both segments."""
    synapses = Synapses(
        np.array([[1, 2, 3], [1, 9, 3]]), np.array([[1, 10, 5], [2, 9, 20]]), np.array([0, 1])
    )
    (tmp_path / "syns.h5").write_bytes(synapses.to_hdf5())
    say("create-bbox --start 0 0 0 --size 8 16 24 load-h5 --file-name labels.h5 "
        "load-synapses --file-path syns.h5 save-annotations --input-name syns --parts-path parts "
        "--segmentation-name chunk --voxel-size 40 8 8")  # fmt: skip
    say(MERGE)
    collection = open_annotations("all")
    assert collection.schema.kind == "line"
    assert collection.schema.voxel_size_nm == (40, 8, 8)
    pre, post = collection.related("pre_segment", 5), collection.related("post_segment", 5)
    assert pre.geometry.tolist() == [[[1.5, 9.5, 3.5], [2.5, 9.5, 20.5]]]
    assert post.geometry.tolist() == [[[1.5, 2.5, 3.5], [1.5, 10.5, 5.5]]]
    assert len(collection.related("post_segment", 7)) == 1


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (f"{DETECT} {SAVE}", 2, "save-annotations names files after the boxes of tasks"),
        (f"{TASKS} {DETECT} {SAVE} --bounds 0-8_0-16_0-20", 1, "is outside the bounds"),
        (f"{TASKS} {DETECT} {SAVE} --input-name chunk", 1, "is a chunk, not Annotations"),
        ("load-annotations --annotations-path all", 2, "no task has a box"),
        (f"{TASKS} load-annotations --annotations-path no", 1, "no has no info file"),
        (f"{TASKS} merge-annotations --parts-path p --annotations-path a", 2, "one task, but this"),
        (MERGE, 1, "parts has no annotations of tasks; run save-annotations first"),
        (f"{MERGE} --limit 0", 2, "--limit"),
    ],
)
def test_wrong_lines(points, line, code, message):
    """One sentence says what to change."""
    import re

    output = say(line, code)
    assert re.search(message, output), output


def test_a_missing_task(points, tmp_path):
    """It is named; --allow-missing merges what is there."""
    say(f"{TASKS} {DETECT} {SAVE}")
    (tmp_path / "parts" / "0-8_0-16_12-24.npz").unlink()
    assert "of 1 of 2 tasks; run the missing tasks" in say(MERGE, 1)
    say(f"{MERGE} --allow-missing")
    assert len(open_annotations("all").ids()) == 3


def test_positions_outside_the_labels_are_refused():
    """The segments of annotations would otherwise depend on the division into tasks."""
    points = Annotations.of_points(Points(np.array([[1, 1, 9]])))
    labels = Chunk(np.ones((4, 4, 4), np.uint32))
    with pytest.raises(ChunkError, match=r"at \(1, 1, 9\) lies outside the chunk of labels"):
        related_to(points, labels)
    box = Annotations("axis_aligned_bounding_box", np.ones((1, 2, 3)))
    with pytest.raises(ChunkError, match="looks up the segments of points and lines"):
        related_to(box, labels)
