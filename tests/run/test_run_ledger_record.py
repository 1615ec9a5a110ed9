"""Tests of chunkflow_py.run.ledger.ledger_record."""

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.ledger_record import (
    PATCH_COUNTS,
    Attempt,
    FailedAttempt,
    FailureKind,
    Record,
    Sums,
    number_of,
)
from chunkflow_py.store.store_protocol import Stored

texts = st.text(max_size=20)
numbers = st.integers(0, 1 << 60)
stored = st.builds(Stored, texts, st.none() | st.integers(0), st.none() | texts)
records = st.builds(
    Record,
    numbers,
    texts,
    st.sampled_from(("done", "skipped", "dead")),
    texts,
    texts,
    texts,
    texts,
    st.dictionaries(texts, st.integers(0, 10**9).map(lambda n: n / 1000)),
    st.lists(stored, max_size=3).map(tuple),
    st.none() | texts,
    st.floats(0, 1e10),
    st.integers(0, 99),
    st.dictionaries(st.sampled_from(PATCH_COUNTS), st.integers(0, 10**12)),
)
failures = st.builds(
    FailedAttempt,
    numbers,
    texts,
    texts,
    texts,
    st.sampled_from(get_args(FailureKind)),
    texts,
    texts,
    st.floats(0, 1e10),
    st.none() | st.integers(0, 10**9).map(lambda n: n / 1000),
)
attempts = st.builds(Attempt, numbers, texts, texts)


@given(records | failures | attempts)
def test_round_trip(said):
    """What is written is read again, whatever it says, and is one line of JSON."""
    text = said.to_json()
    assert type(said).from_json(text) == type(said).from_json(text.encode()) == said
    assert len(text.splitlines()) == 1
    json.loads(text)


@given(records | failures | attempts)
def test_number(said):
    """The number of the task can be told without parsing the line."""
    assert number_of(said.to_json()) == said.number


def test_failures_of_earlier_versions():
    """What was written before attempts said how long they took is read; they have taken None."""
    old = (
        '{"number":3,"box":"b","attempt":"a","worker":"w","kind":"permanent","reason":"r",'
        '"traceback":"","when":1.0}'
    )
    assert FailedAttempt.from_json(old) == FailedAttempt(
        3, "b", "a", "w", "permanent", "r", when=1.0
    )
    assert FailedAttempt.from_json(old).seconds is None
    assert FailedAttempt.from_json(old).to_json() == old


def test_causes_of_failures_are_summed():
    """Attempts of earlier versions have no cause; they are counted only as failures."""
    old = FailedAttempt(3, "b", "a", "w", "permanent", "r", when=1.0)
    new = replace(old, cause="hang")
    assert "cause" not in old.to_json()
    assert FailedAttempt.from_json(new.to_json()) == new
    total = Sums()
    for failure in (old, new, new):
        total.add(Sums.of_failure(failure))
    assert (total.failures, total.causes) == (3, {"hang": 2})


@pytest.mark.parametrize("value", ["", "other", 1, ["hang"], {}])
def test_a_wrong_cause_is_refused(value):
    """A cause that a damaged or hostile ledger contains is not shown."""
    text = FailedAttempt(3, "b", "a", "w", "permanent", "r", cause="hang").to_json()
    with pytest.raises(VolumeError, match="damaged"):
        FailedAttempt.from_json(json.dumps(json.loads(text) | {"cause": value}))


def test_counts_about_patches_are_summed():
    """Records without them are those of earlier versions, and of runs without exchange."""
    old = Record(1, "b", "done", "s", "a", "w", finished=1.0)
    assert "patches" not in old.to_json()
    new = replace(old, number=2, patches={"computed": 3, "found": 2})
    total = Sums()
    for record in (old, new, new):
        total.add(Sums.of(record))
    assert total.patches == {"computed": 6, "found": 4}
    assert new.patches == {"computed": 3, "found": 2}, "sums do not change records"


@pytest.mark.parametrize("value", [None, [], {"computed": -1}, {"found": 1.5}, {"other": 1}, "x"])
def test_wrong_counts_about_patches_are_refused(value):
    """Counts of a damaged or hostile ledger are not shown."""
    text = Record(1, "b", "done", "s", "a", "w").to_json()
    with pytest.raises(VolumeError, match="damaged"):
        Record.from_json(json.dumps(json.loads(text) | {"patches": value}))


def test_stored_bytes():
    """Blocks that are not stored, as they hold nothing, have no bytes."""
    written = (Stored("a", 5, "c"), Stored("b"), Stored("d", 7, "e"))
    assert Record(0, "box", "done", "5bec", "a", "w", written=written).stored_bytes == 12


GOOD = Record(7, "0-1_0-1_0-1", "done", "5bec", "a-7", "machine", seconds={"load": 1.0})


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", "__class__"), ("finished", float("nan")), ("finished", float("inf")),
     ("finished", -1.0), ("finished", "now"), ("seconds", {"load": "long"}), ("seconds", None),
     ("seconds", {"load": float("nan")}), ("written", [1]), ("of a later version", 1)],
)  # fmt: skip
def test_a_damaged_record_is_refused_in_a_sentence(name, value):
    """It says which one and what to do, and nothing goes on with what cannot be."""
    text = json.dumps(json.loads(GOOD.to_json()) | {name: value})
    with pytest.raises(
        VolumeError, match=r'damaged .*"number": 7, .*restore the ledger from a copy'
    ):
        Record.from_json(text)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"number":7,"bo', '{"number":7}'])
def test_what_is_no_record_is_refused(text):
    """So is a line that was cut off, or is something else."""
    for read in (Record.from_json, FailedAttempt.from_json, Attempt.from_json):
        with pytest.raises(VolumeError, match="is damaged"):
            read(text)
    if "bo" not in text and "7" not in text:
        with pytest.raises(VolumeError, match="is damaged"):
            number_of(text)
