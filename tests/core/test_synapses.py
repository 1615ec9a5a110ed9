"""Synapses: their partners, and the files of this and of older tools."""

from __future__ import annotations

import io
import json

import h5py
import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError, VolumeError


def example() -> Synapses:
    """Return three T-bars, the first with two partners, the last with one."""
    return Synapses(
        pre=np.array([[0, 0, 0], [5, 5, 5], [9, 9, 9]]),
        post=np.array([[3, 4, 0], [0, 0, 2], [9, 9, 10]]),
        post_to_pre=np.array([0, 0, 2]),
        voxel_size_nm=(40, 4, 4),
        pre_confidence=np.array([0.5, 0.75, 1.0]),
        post_confidence=np.array([0.25, 0.5, 1.0]),
        users=("ada", "bob"),
        pre_users=np.array([0, -1, 1]),
        post_users=np.array([1, 1, 0]),
        object_ids=np.array([7, 0, 2**63], np.uint64),
    )


def same(a: Synapses, b: Synapses) -> bool:
    """Return whether all attributes are equal."""
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in vars(a))


def test_distances_and_box() -> None:
    """Distances are Euclidean, in voxels; the box holds all points."""
    assert example().pre_to_post_distances.tolist() == [5, 2, 1]
    assert str(example().bbox) == "0-10_0-10_0-11"
    assert example().post_nm[0].tolist() == [140, 18, 2]
    assert Synapses(np.zeros((0, 3), int)).bbox is None


def test_a_t_bar_goes_with_all_that_belongs_to_it() -> None:
    """Removing the first T-bar removes its partners; others get the new row of their T-bar."""
    kept = example().inside(BoundingBox.parse("1-10_0-10_0-10"))
    assert kept.pre.tolist() == [[5, 5, 5], [9, 9, 9]]
    assert (kept.post.tolist(), kept.post_to_pre.tolist()) == ([[9, 9, 10]], [1])
    assert kept.pre_confidence.tolist() == [0.75, 1.0]
    assert kept.object_ids.tolist() == [0, 2**63]
    assert (kept.pre_users.tolist(), kept.post_users.tolist()) == ([-1, 1], [0])
    assert len(example()) == 3


@pytest.mark.parametrize("encode", [Synapses.to_hdf5, Synapses.to_json])
def test_a_file_gives_back_what_was_written(encode) -> None:
    """Both formats keep all attributes, including absent ones."""
    assert same(Synapses.from_bytes(encode(example())), example())
    bare = Synapses(np.array([[1, 2, 3]]))
    assert same(Synapses.from_bytes(encode(bare)), bare)


@pytest.mark.parametrize("name", ["pre", "tbars"])
def test_an_older_hdf5_file_is_read(name) -> None:
    """Positions and resolution of chunkflow 1.x files are zyx, or xyz if the caller says so."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file[name] = np.array([[1, 2, 3]], np.int32)
        file["post"] = np.array([[0, 4, 5, 6]], np.int32)
        file["resolution"] = np.array([40, 4, 8], np.int32)
        file.attrs["users"] = "ada;bob"
    found = Synapses.from_bytes(buffer.getvalue())
    assert (found.pre.tolist(), found.post.tolist()) == ([[1, 2, 3]], [[4, 5, 6]])
    assert (found.voxel_size_nm, found.users) == ((40, 4, 8), ("ada", "bob"))
    found = Synapses.from_bytes(buffer.getvalue(), is_xyz=True)
    assert (found.pre.tolist(), found.post.tolist()) == ([[3, 2, 1]], [[6, 5, 4]])
    assert found.voxel_size_nm == (8, 4, 40)
    assert Synapses.from_bytes(buffer.getvalue(), "", (1, 2, 3), is_xyz=True).voxel_size_nm == (
        1,
        2,
        3,
    )


@pytest.mark.parametrize("order", ["zyx", "xyz"])
def test_an_older_json_file_is_read(order) -> None:
    """Synapses listed one by one; the file's order of axes overrides the argument."""
    step = 1 if order == "zyx" else -1
    content = {
        "order": list(order),
        "resolution": [40, 4, 8][::step],
        "3": {"coord": [1, 2, 3][::step]},
        "7": {"coord": [4, 5, 6][::step], "postsynapses": [[7, 8, 9][::step]]},
    }
    found = Synapses.from_bytes(json.dumps(content).encode(), is_xyz=order == "zyx")
    assert found.pre.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (found.post.tolist(), found.post_to_pre.tolist()) == ([[7, 8, 9]], [1])
    assert found.voxel_size_nm == (40, 4, 8)


def test_elements_of_dvid_are_read(caplog) -> None:
    """Positions are xyz; a postsynaptic element without its T-bar is left out, with a warning."""
    elements = [
        {"Kind": "PostSyn", "Pos": [9, 8, 7], "Prop": {"conf": "0.5", "user": "bob"},
         "Rels": [{"Rel": "PostSynTo", "To": [3, 2, 1]}]},
        {"Kind": "PreSyn", "Pos": [3, 2, 1], "Prop": {"conf": "0.9", "user": "ada"}, "Rels": []},
        {"Kind": "PostSyn", "Pos": [0, 0, 0], "Prop": {}, "Rels": []},
        {"Kind": "PostSyn", "Pos": [0, 0, 0], "Rels": [{"Rel": "PostSynTo", "To": [5, 5, 5]}]},
        {"Kind": "Note", "Pos": [0, 0, 0]},
    ]  # fmt: skip
    found = Synapses.from_bytes(json.dumps(elements).encode(), "dvid.json")
    assert found.pre.tolist() == [[1, 2, 3]]
    assert (found.post.tolist(), found.post_to_pre.tolist()) == ([[7, 8, 9]], [0])
    assert found.pre_confidence == pytest.approx([0.9])
    assert (found.users, found.pre_users[0], found.post_users[0]) == (("ada", "bob"), 0, 1)
    assert "dvid.json: left out 2 postsynaptic points that have no T-bar" in caplog.text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "neither an HDF5 nor a JSON file"),
        (b"{", "neither an HDF5 nor a JSON file"),
        (b"{}", "does not contain synapses"),
        (b"3", "does not contain synapses"),
        (b'[{"Pos": [1, 2, 3]}]', "does not contain synapses"),
        (b'{"pre": [[1, 2]]}', "does not contain synapses"),
        (b'{"pre": [[1, 2, 3]], "resolution": [0, 1, 1]}', "resolution"),
        (b'{"pre": [["a", 2, 3]]}', "does not contain synapses"),
    ],
)
def test_other_files_are_refused(data, says) -> None:
    """The message names a file without synapses."""
    with pytest.raises(VolumeError, match=says) as caught:
        Synapses.from_bytes(data, "s.json")
    assert "s.json" in str(caught.value)


def test_what_does_not_fit_together_is_refused() -> None:
    """The message names missing rows and arrays of a wrong length."""
    with pytest.raises(ChunkError, match=r"s\.json: .* rows 3 to 3 .* there are only 1 rows"):
        Synapses.from_bytes(b'{"pre": [[1, 2, 3]], "post": [[3, 1, 1, 1]]}', "s.json")
    with pytest.raises(ChunkError, match=r"pre_confidence .* \(2,\), but must have shape \(1,\)"):
        Synapses(np.array([[1, 2, 3]]), pre_confidence=np.ones(2))
    with pytest.raises(ChunkError, match="integer array"):
        Synapses(np.array([[0.5, 2, 3]]))
    with pytest.raises(ChunkError, match="named 'eve'.*ada, bob"):
        example().user_id("eve")
