"""Tests of chunkflow_py.run.page."""

import dataclasses
import gzip
import json

import pytest
from contracts.ledger_contract import a_failure, a_record
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.errors import VolumeError
from chunkflow_py.run.page import FAILURES, Entry, Header, Page

SIZE = 12
FIRST = 24

states = st.sampled_from(("done", "skipped", "dead"))
entries = st.one_of(
    st.builds(
        lambda n, attempt, state: Entry("record", 0, a_record(n, attempt, state).to_json()),
        st.integers(FIRST, FIRST + SIZE - 1),
        st.text("abc", min_size=1, max_size=1),
        states,
    ),
    st.builds(
        lambda n, attempt, kind: Entry(kind, 0, a_failure(n, f"{n}{attempt}", kind).to_json()),
        st.integers(FIRST, FIRST + SIZE - 1),
        st.text("abc", min_size=1, max_size=1),
        st.sampled_from(FAILURES),
    ),
)


def parsed(data):
    """Return the page of these tests that an object holds."""
    return Page.parse(data, FIRST, SIZE, "mem://run/ledger/pages/2")


@given(st.lists(st.lists(entries, max_size=8), max_size=4), st.sets(st.integers(24, 35)))
def test_like_a_dictionary(batches, reopened):
    """A page that grows by batches, and is read in between, keeps the first record of a task."""
    page, records, failures = parsed(None), {}, {}
    for batch in batches:
        page = parsed(page.added(batch).to_bytes())
        for entry in batch:
            if entry.kind == "record":
                records.setdefault(entry.number, entry.text)
            else:
                failures.setdefault(json.loads(entry.text)["attempt"], entry.text)
    check(page, records, failures)
    page = parsed(page.without(reopened).to_bytes())
    check(
        page,
        {n: text for n, text in records.items() if n not in reopened},
        {n: text for n, text in failures.items() if json.loads(text)["number"] not in reopened},
    )
    assert [page.header.generation(n) for n in range(SIZE)] == [
        int(FIRST + n in reopened) for n in range(SIZE)
    ]
    # What is of the generation before is void now.
    again = page.added(entry for batch in batches for entry in batch if entry.number in reopened)
    assert again.to_bytes() == page.to_bytes()


def check(page, records, failures):
    """Check that a page says just this."""
    assert {record.number: record.to_json() for record in page.records()} == records
    assert {failure.attempt: failure.to_json() for failure in page.failures()} == failures
    found = [json.loads(records[n])["state"] if n in records else None for n in range(24, 36)]
    assert [page.header.state(position) for position in range(SIZE)] == found
    sums = page.header.sums
    assert (sums.done, sums.skipped, sums.dead) == tuple(
        found.count(state) for state in ("done", "skipped", "dead")
    )
    assert sums.failures == len(failures)
    assert sums.stored_bytes == 10 * len(records)
    assert sums.seconds == ({"inference": 2.0 * len(records)} if records else {})


def test_header_alone():
    """The first line says how tasks ended and what there is to count, in less than 2 KiB."""
    page = Page.parse(None, 0, 2048, "x")
    seconds = {f"a-longer-name-of-an-operator#{n}": 1234.567891 for n in range(10)}
    page = page.added(
        Entry("record", 0, a_record(n, seconds=seconds).to_json()) for n in range(2048)
    )
    line = page.to_bytes().partition(b"\n")[0]
    assert len(line) < 2048
    header = Header.from_line(line, 2048, "x")
    assert header.sums.done == 2048
    assert {header.state(n) for n in range(2048)} == {"done"}


def test_adding_does_not_unpack():
    """What is there is neither unpacked nor parsed when more is added."""
    page = parsed(None).added([Entry("record", 0, a_record(24).to_json())])
    unreadable = dataclasses.replace(page, body=b"not gzip")
    more = unreadable.added([Entry("record", 0, a_record(25).to_json())])
    assert more.body.startswith(b"not gzip")
    assert more.header.sums.done == 2


def test_for_people():
    """A page can be read without this package: a line of JSON, then lines that gzip unpacks."""
    page = parsed(None)
    for number in (24, 25):
        page = page.added([Entry("record", 0, a_record(number).to_json())])
    header, _, body = page.to_bytes().partition(b"\n")
    assert json.loads(header)["sums"]["done"] == 2
    lines = gzip.decompress(body).decode().splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["record", "record"]
    assert json.loads(lines[1].split(" ", 1)[1])["number"] == 25


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", r"mem://run/ledger/pages/2 is no page of a ledger"),
        (lambda data: data[:100], "is no page of a ledger"),
        (lambda data: b"[]" + data[10:], "is no page of a ledger"),
        (lambda data: data.replace(b'"sums"', b'"sins"'), "is no page of a ledger"),
        (lambda data: data[:-3], r"mem://run/ledger/pages/2 is damaged .*restore it from a copy"),
        (lambda data: data[:-20] + bytes(20), "is damaged"),
        (lambda data: data.replace(b'"format":1', b'"format":2'), "12 tasks in format 2, this"),
        (lambda data: data.replace(b'"size":12', b'"size":99'), "page of 99 tasks in format 1"),
    ],
)
def test_damaged(damage, message):
    """A page that is damaged, or not of this version, is named; nothing is read as empty."""
    page = parsed(None).added([Entry("record", 0, a_record(24).to_json())])
    with pytest.raises(VolumeError, match=message):
        list(parsed(damage(page.to_bytes())).records())
