"""Tests of chunkflow_py.run.documents."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.run.documents import difference, parsed, restored

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
    """What was not changed differs in nothing, however it is laid out."""
    assert difference(document, parsed(json.dumps(document, indent=3).encode())) is None


@given(documents, documents)
def test_restored(recorded, found):
    """After a repair the document contains what was recorded, whatever was there."""
    mended = restored(recorded, copy.deepcopy(found))
    assert difference(recorded, mended) is None


@given(documents, documents)
def test_what_others_add_stays(recorded, more):
    """Fields that others have added are no difference, and a repair keeps them."""
    found = {**{f"other_{name}": value for name, value in more.items()}, **recorded}
    assert difference(recorded, found) is None
    assert restored(recorded, found) == found


def test_levels_that_others_add():
    """Scales of an info file and datasets of an image may be added before, between and behind."""
    recorded = {"scales": [{"key": "8", "size": [9, 9, 9]}, {"key": "32", "size": [2, 2, 2]}]}
    found = copy.deepcopy(recorded) | {"mesh": "mesh"}
    found["scales"].insert(1, {"key": "16", "size": [5, 5, 5]})
    assert difference(recorded, found) is None
    found["scales"][0]["size"] = [9, 9, 8]
    assert difference(recorded, found) == "scales[0].size is [9, 9, 8], not [9, 9, 9]"
    mended = restored(recorded, found)
    assert difference(recorded, mended) is None
    assert {scale["key"] for scale in mended["scales"]} == {"8", "16", "32"}
    assert mended["mesh"] == "mesh"


def test_types_are_not_mixed():
    """True is not 1, and 1 is not 1.0: readers of metadata tell them apart."""
    assert difference({"a": 1}, {"a": True}) == "a is true, not 1"
    assert difference({"a": [1]}, {"a": [1, 2]}) == "a is [1, 2], not [1]"
    assert difference({"a": 1}, {}) == "a is gone"


def test_no_json():
    """What is no JSON says nothing."""
    assert parsed(None) is parsed(b"") is parsed(b"{") is parsed(b"[" * 100_000) is None
