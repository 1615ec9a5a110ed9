"""JSON that all parsers read alike."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.strict_json import loads

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(documents)
def test_documents(value):
    """Unambiguous documents are parsed as by json.loads."""
    assert loads(json.dumps(value)) == loads(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"), ("[NaN]", "NaN, which is not finite"),
     ("-Infinity", "not finite"), ("1e999", "not finite"), ("1" * 33, "33 digits"),
     ("9" * 5000, "5000 digits"), ("[" * 200_000, "nested too deeply"),
     ('{"a":' * 200_000, "nested too deeply"), ("{", "Expecting"), (b"\xff\xfe\xfd", "decode"),
     ("{" + ",".join(f'"{n % 50_000}":0' for n in range(50_001)) + "}", "'0' twice")],
    ids=range(11),
)  # fmt: skip
def test_what_others_would_read_differently_is_refused(text, said):
    """Ambiguous documents are refused quickly, with a message."""
    with pytest.raises(ValueError, match=said) as caught:
        loads(text)
    assert len(str(caught.value)) < 200
