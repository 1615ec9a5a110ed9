"""Tests of chunkflow_py.run.metadata_documents."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.run.metadata_documents import difference, parsed, restored

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abk"), inner, max_size=3)
    ),
    max_leaves=12,
)
named = st.fixed_dictionaries({"key": st.sampled_from("pqrs")}, optional={"size": values})
documents = st.dictionaries(
    st.sampled_from(["type", "scales", "mesh"]),
    values | st.lists(named, max_size=3, unique_by=lambda each: each["key"]),
    max_size=3,
)


@given(documents)
def test_the_same_contains_itself(document):
    """An unchanged document has no difference, whatever its whitespace."""
    assert difference(document, parsed(json.dumps(document, indent=3).encode())) is None


@given(documents, documents)
def test_restored(recorded, found):
    """A restored document has all recorded values, whatever it contained before."""
    mended = restored(recorded, copy.deepcopy(found))
    assert difference(recorded, mended) is None


@given(documents, documents)
def test_what_others_add_stays(recorded, more):
    """Fields that other programs added are no difference, and are kept."""
    found = {**{f"other_{name}": value for name, value in more.items()}, **recorded}
    assert difference(recorded, found) is None
    assert restored(recorded, found) == found


def test_levels_that_others_add():
    """Other programs may add levels after those of the run."""
    recorded = {"scales": [{"key": "8", "size": [9, 9, 9]}, {"key": "16", "size": [5, 5, 5]}]}
    found = copy.deepcopy(recorded) | {"mesh": "mesh"}
    found["scales"].append({"key": "32", "size": [2, 2, 2]})
    assert difference(recorded, found) is None
    found["scales"][0]["size"] = [9, 9, 8]
    assert difference(recorded, found) == "scales[0].size is [9, 9, 8], not [9, 9, 9]"
    mended = restored(recorded, found)
    assert difference(recorded, mended) is None
    assert [scale["key"] for scale in mended["scales"]] == ["8", "16", "32"]
    assert mended["mesh"] == "mesh"


def test_a_level_in_front():
    """Levels are identified by their index: a level in front is a difference."""
    recorded = {"scales": [{"key": "8"}]}
    found = {"scales": [{"key": "4"}, {"key": "8"}]}
    assert difference(recorded, found) == 'scales[0].key is "4", not "8"'
    assert restored(recorded, found) == {"scales": [{"key": "8"}, {"key": "4"}]}


ARRAY = {
    "zarr_format": 3,
    "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3}}],
    "attributes": {"ome": {"multiscales": [
        {"axes": [{"name": "z"}], "datasets": [{"path": "0", "scale": [40, 4, 4]}]}
    ]}},
}  # fmt: skip
ADDED = {
    "codecs[2]": lambda said: said["codecs"].append({"name": "crc32c"}),
    "codecs[1].configuration.checksum":
        lambda said: said["codecs"][1]["configuration"].update(checksum=True),
    "note": lambda said: said.update(note=1),
    "attributes.ome.multiscales[1]":
        lambda said: said["attributes"]["ome"]["multiscales"].append(1),
    "attributes.ome.multiscales[0].axes[1]":
        lambda said: said["attributes"]["ome"]["multiscales"][0]["axes"].append({"name": "y"}),
    "attributes.ome.multiscales[0].datasets[1]":
        lambda said: said["attributes"]["ome"]["multiscales"][0]["datasets"].append("1"),
    "attributes.ome.multiscales[0].coordinateTransformations":
        lambda said: said["attributes"]["ome"]["multiscales"][0].update(
            coordinateTransformations=[]),
}  # fmt: skip


@pytest.mark.parametrize("place", ADDED)
def test_what_may_not_be_added(place):
    """Additions that change the meaning of the data are a difference, and are removed."""
    found = copy.deepcopy(ARRAY)
    ADDED[place](found)
    assert difference(ARRAY, found) == f"{place} was added"
    assert restored(ARRAY, found) == ARRAY


def test_what_may_be_added_to_a_zarr_node():
    """Attributes, later levels and consolidated metadata may be added."""
    found = copy.deepcopy(ARRAY) | {"consolidated_metadata": {"kind": "inline"}}
    found["attributes"]["note"] = "hello"
    found["attributes"]["ome"]["labels"] = ["cells"]
    found["attributes"]["ome"]["multiscales"][0]["datasets"].append({"path": "1"})
    assert difference(ARRAY, found) is None
    assert restored(ARRAY, found) == found


def test_an_item_without_a_name_is_restored_in_its_place():
    """A changed transformation is replaced by the recorded one."""
    recorded = {"list": [{"type": "scale", "scale": [4, 4]}, {"type": "shift", "by": [0, 0]}]}
    found = copy.deepcopy(recorded)
    found["list"][0]["scale"] = [4]
    assert difference(recorded, found) == "list[0].scale is [4], not [4, 4]"
    assert restored(recorded, found) == recorded


def test_types_are_not_mixed():
    """True, 1 and 1.0 differ, because readers of metadata distinguish them."""
    assert difference({"a": 1}, {"a": True}) == "a is true, not 1"
    assert difference({"a": [1]}, {"a": [1, 2]}) == "a is [1, 2], not [1]"
    assert difference({"a": 1}, {}) == "a is missing"


def test_a_byte_order_mark_is_damage():
    """A byte order mark is a difference, because other readers reject it."""
    assert parsed(b"\xef\xbb\xbf{}") is None
    assert parsed(b"{}") == {}


def test_no_json():
    """Invalid JSON is parsed as None."""
    assert parsed(None) is parsed(b"") is parsed(b"{") is parsed(b"[" * 100_000) is None
