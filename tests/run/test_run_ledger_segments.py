"""Tests of chunkflow_py.run.ledger.ledger_segments."""

import dataclasses
import gzip
import json
import zlib

import pytest
from contracts.ledger_contract import a_failure, a_record
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.ledger_record import Sums, sealed, unsealed
from chunkflow_py.run.ledger.ledger_segments import FAILURES, LedgerEntry, Segment, SegmentHeader

SIZE = 12
FIRST = 24

states = st.sampled_from(("done", "skipped", "dead"))
entries = st.one_of(
    st.builds(
        lambda n, attempt, state: LedgerEntry("record", 0, a_record(n, attempt, state).to_json()),
        st.integers(FIRST, FIRST + SIZE - 1),
        st.text("abc", min_size=1, max_size=1),
        states,
    ),
    st.builds(
        lambda n, attempt, kind: LedgerEntry(
            kind, 0, a_failure(n, f"{n}{attempt}", kind).to_json()
        ),
        st.integers(FIRST, FIRST + SIZE - 1),
        st.text("abc", min_size=1, max_size=1),
        st.sampled_from(FAILURES),
    ),
)


def parsed(data):
    """Return the page of these tests that an object holds."""
    return Segment.parse(data, FIRST, SIZE, "mem://run/ledger/pages/2")


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
    page = Segment.parse(None, 0, 2048, "x")
    seconds = {f"a-longer-name-of-an-operator#{n}": 1234.567891 for n in range(10)}
    page = page.added(
        LedgerEntry("record", 0, a_record(n, seconds=seconds).to_json()) for n in range(2048)
    )
    line = page.to_bytes().partition(b"\n")[0]
    assert len(line) < 2048
    header = SegmentHeader.from_line(line, 2048, "x")
    assert header.sums.done == 2048
    assert {header.state(n) for n in range(2048)} == {"done"}


def test_adding_does_not_unpack():
    """What is there is neither unpacked nor parsed when more is added."""
    page = parsed(None).added([LedgerEntry("record", 0, a_record(24).to_json())])
    unreadable = dataclasses.replace(page, body=b"not gzip")
    more = unreadable.added([LedgerEntry("record", 0, a_record(25).to_json())])
    assert more.body.startswith(b"not gzip")
    assert more.header.sums.done == 2


def test_for_people():
    """A page can be read without this package: JSON and a seal, then lines that gzip unpacks."""
    page = parsed(None)
    for number in (24, 25):
        page = page.added([LedgerEntry("record", 0, a_record(number).to_json())])
    header, _, body = page.to_bytes().partition(b"\n")
    assert json.loads(unsealed(header.decode()))["sums"]["done"] == 2
    lines = gzip.decompress(body).decode().splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["record", "record"]
    said, checksum = lines[1].split("\t")
    assert json.loads(said.split(" ", 2)[2])["number"] == 25
    assert int(checksum, 16) == zlib.crc32(said.encode())


def a_page(batches):
    """Return a page that grew by batches."""
    page = parsed(None)
    for batch in batches:
        page = page.added(batch)
    return page


@given(st.data(), st.lists(st.lists(entries, min_size=1, max_size=6), min_size=1, max_size=4))
def test_damage_never_makes_a_record(data, batches):
    """Of a page that was cut, changed, doubled or mixed up, what is read is what was recorded.

    Its header says of no task that it has ended whose record cannot be read, and adding to it
    makes a sound page.
    """
    whole = a_page(batches)
    stored = whole.to_bytes()
    records = {record.number: record for record in whole.records()}
    position = data.draw(st.integers(0, len(stored) - 1))
    length = data.draw(st.integers(0, 40))
    damaged = data.draw(
        st.sampled_from(
            [
                stored[:position],
                stored[:position] + stored[position + length :],
                stored[:position]
                + bytes([stored[position] ^ 1 << length % 8])
                + stored[position + 1 :],
                stored[:position] + data.draw(st.binary(max_size=40)) + stored[position:],
                stored + stored.partition(b"\n")[2],
                stored + stored,
                stored.partition(b"\n")[2],
            ]
        )
    )
    page = parsed(damaged)
    found = {record.number: record for record in page.records()}
    assert found.items() <= records.items()
    ended = {n for n in range(FIRST, FIRST + SIZE) if page.header.state(n - FIRST)}
    assert ended == found.keys()
    assert (damaged == stored) == (not page.damage)
    again = parsed(page.added(entry for batch in batches for entry in batch).to_bytes())
    assert not again.damage
    assert {r.number for r in again.records()} == records.keys()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_is_gone(lost):
    """Where a whole part of the body is gone, or a line within, only its tasks are not recorded."""
    batches = [[LedgerEntry("record", 0, a_record(n).to_json())] for n in (24, 25, 26)]
    whole = a_page(batches)
    header, _, body = whole.to_bytes().partition(b"\n")
    parts = [b"\x1f\x8b" + part for part in body.split(b"\x1f\x8b")[1:]]
    assert len(parts) == 3
    rest = b"".join(part for index, part in enumerate(parts) if index != lost)
    page = parsed(header + b"\n" + rest)
    kept = [number for index, number in enumerate((24, 25, 26)) if index != lost]
    assert [record.number for record in page.records()] == kept
    assert page.header.sums.done == 2
    lines = gzip.decompress(body).splitlines(keepends=True)
    page = parsed(header + b"\n" + gzip.compress(b"".join(lines[:lost] + lines[lost + 1 :])))
    assert [record.number for record in page.records()] == kept
    assert page.damage


def test_generations_survive_the_header():
    """Of a page whose header is gone, tasks keep the generation under which they were recorded."""
    page = a_page([[LedgerEntry("record", 0, a_record(n).to_json()) for n in (24, 25)]]).without(
        {25}
    )
    page = page.added([LedgerEntry("record", 1, a_record(25, "again").to_json())])
    body = page.to_bytes().partition(b"\n")[2]
    mended = parsed(b"{}\n" + body)
    assert [mended.header.generation(n) for n in range(3)] == [0, 1, 0]
    assert [r.attempt for r in mended.records({25})] == ["again"]


def test_of_another_version():
    """A page of another format is no damage: it is refused, with both. One of another size is."""
    stored = a_page([[LedgerEntry("record", 0, a_record(24).to_json())]]).to_bytes()
    line, _, body = stored.partition(b"\n")
    said = unsealed(line.decode()).replace('"format":2', '"format":3')
    with pytest.raises(
        VolumeError, match=r"has the format 3, but the ledger of this run must have the format 2"
    ):
        parsed(sealed(said).encode() + b"\n" + body)
    said = unsealed(line.decode()).replace('"size":12', '"size":"AAAA"')
    page = parsed(sealed(said).encode() + b"\n" + body)
    assert page.damage
    assert [record.number for record in page.records()] == [24]


def test_a_page_of_an_older_version():
    """A page of version 0.1.0, without seals, is read as it was written."""
    header = json.dumps(
        {
            "format": 1,
            "size": SIZE,
            "states": "AQAA",
            "generations": {"3": 1},
            "sums": dataclasses.asdict(Sums(done=1)),
        }
    )
    body = gzip.compress(f"record {a_record(24).to_json()}\n".encode())
    data = header.encode() + b"\n" + body
    page = Segment.parse(data, FIRST, SIZE, "page", older=True)
    assert [record.number for record in page.records()] == [24]
    assert page.header.state(0) == "done"
    assert page.header.generation(3) == 1
