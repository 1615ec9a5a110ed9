"""Tests of chunkflow_py.run.ledger.ledger in memory, in folders and on S3."""

import json
import os
import secrets
import signal
import subprocess
import sys

import pytest
from contracts.ledger_contract import SIZE, SPAN, LedgerContract, a_failure, a_record
from hypothesis import example, given
from hypothesis import strategies as st
from rigs.s3 import SEVERAL_FAULTS
from rigs.turns import SteppedStore, Turns

from chunkflow_py.run.ledger import ledger_segments
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.store import folder_store, open_store
from chunkflow_py.store.memory_store import MemoryStore

RECORD_AND_FOLD = """
import json, random, sys
from chunkflow_py.run.ledger import ledger_segments
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.store import open_store
ledger_segments.COMPACT_EVERY = 20
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
ledger = Ledger(open_store(url), "infer", count, segment_size=64)
numbers = random.sample(range(count), count)
while numbers:
    batch, numbers = numbers[:12], numbers[12:]
    batch = batch[: random.choice([1, 12])]
    said = ledger.record([Record(n, "box", "done", "5bec", f"{name}-{n}", name) for n in batch])
    print(json.dumps([n for n, is_ours in zip(batch, said) if is_ours]), flush=True)
"""

ZOMBIE = """
import sys
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.store import open_store
ledger = Ledger(open_store(sys.argv[1]), "infer", 10)
said = [ledger.record([Record(3, "box", state, "5bec", state, "w")]) for state in ("done", "dead")]
print(said, ledger.find([3]))
"""

HOLD = """
import sys, time
from chunkflow_py.store import open_store
def change(old):
    print("held", flush=True)
    time.sleep(60)
open_store(sys.argv[1]).update("ledger/infer/pages/0", change)
"""


class TestMemory(LedgerContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"mem://{tmp_path}"


class TestFolder(LedgerContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"file://{tmp_path}"


class TestS3(LedgerContract):
    @pytest.fixture
    def url(self, s3):
        return s3.url


def run(*arguments, **environment):
    """Start a process of Python."""
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


class CountingStore(MemoryStore):
    """Counts what is read and written."""

    reads = writes = 0

    def put(self, key, data):
        self.writes += 1
        super().put(key, data)

    def get(self, key):
        self.reads += 1
        return super().get(key)


def test_one_look(tmp_path):
    """To find a finished task costs one read, however many there are."""
    store = CountingStore(str(tmp_path))
    ledger = Ledger(store, "infer", 10**6)
    ledger.record([a_record(number) for number in range(0, 10**6, 10**4)])
    ledger.compact()
    store.reads = 0
    assert ledger.find([50 * 10**4]) == {50 * 10**4: "done"}
    assert store.reads == 1


def test_nothing_to_fold(tmp_path):
    """Of many who fold at the end of a run, one writes; the others remove what is left over."""
    store = CountingStore(str(tmp_path))
    ledgers = [Ledger(store, "infer", 10) for _ in range(3)]
    ledgers[0].record([a_record(3)])
    loose = {key: store.get(key) for key in store.list()}
    ledgers[0].compact()
    for ledger in ledgers:
        for key, content in loose.items():
            store.put_if_absent(key, content)
        store.writes = 0
        ledger.compact()
        assert store.writes == 0
        assert len(list(store.list())) == 1


def test_few_objects(tmp_path):
    """Of many tasks that are recorded one by one, few objects are left at any time."""
    ledger = Ledger(store := MemoryStore(str(tmp_path)), "infer", 10000, in_background=False)
    most = 0
    for number in range(8000):
        ledger.record([a_record(number, written=())])
        if number % 50 == 0:
            most = max(most, len(list(store.list())))
    assert most < 3000  # about one fold in 128
    assert ledger.counts().done == 8000
    ledger.compact()
    assert len(list(store.list())) == 4


def test_scattered_tasks(tmp_path, monkeypatch):
    """Where every task is on another page, many pages are folded when there is much to fold."""
    monkeypatch.setattr(ledger_segments, "COMPACT_EVERY", 16)
    monkeypatch.setattr(ledger_segments, "MOST_JOURNAL_ENTRIES", 40)
    ledger = Ledger(
        store := MemoryStore(str(tmp_path)), "infer", 1000, segment_size=10, in_background=False
    )
    for number in range(600):
        ledger.record([a_record(number * 7919 % 1000)])
    assert len(list(store.list("ledger/infer/loose"))) < 300
    assert ledger.counts().done == 600


@pytest.mark.aws
@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_faults(s3):
    """Nothing is lost or counted twice where answers are lost, refused and cut off."""
    ledger = Ledger(open_store(s3.url), "infer", SPAN, segment_size=SIZE)
    with s3.faults(*SEVERAL_FAULTS):
        for first in range(0, 24, 6):
            records = [a_record(number) for number in range(first, first + 6)]
            assert ledger.record(records) == [True] * 6
            ledger.fail(a_failure(first, f"a{first}"))
            ledger.compact()
        assert ledger.find(range(30)) == dict.fromkeys(range(24), "done")
    assert (ledger.counts().done, ledger.counts().failures) == (24, 4)


# Several at once: one call to the store after the other, in an order that is drawn


steps = st.one_of(
    st.tuples(st.just("record"), st.lists(st.integers(0, 3), min_size=1, max_size=3)),
    st.tuples(st.just("fold"), st.just([])),
    st.tuples(st.just("find"), st.just([0, 1, 2, 3])),
    st.tuples(st.just("count"), st.just([])),
)


@given(
    st.lists(st.lists(steps, min_size=1, max_size=3), min_size=2, max_size=3),
    st.lists(st.integers(0, 5), max_size=150),
)
@example(  # a zombie's entry is put after the reader has read the segment
    [
        [("record", [0]), ("fold", []), ("record", [0])],
        [("find", [0, 1, 2, 3])],
    ],
    [1, 1],
)
def test_any_interleaving(programs, choices):
    """Whatever several do at once, step by step: one attempt wins a task, what is seen stays."""
    url, turns = secrets.token_hex(8), Turns()
    won, ended, seen = {}, set(), []

    def program(which, steps):
        ledger = Ledger(
            SteppedStore(MemoryStore(url), turns), "infer", 4, segment_size=2, in_background=False
        )

        def work():
            for turn, (step, numbers) in enumerate(steps):
                before, attempt = set(ended), f"{which}.{turn}"
                if step == "fold":
                    ledger.compact()
                elif step == "record":
                    # What a task ended as shows whose record it is.
                    state = ("done", "skipped", "dead")[(which + turn) % 3]
                    said = ledger.record([a_record(n, attempt, state) for n in numbers])
                    for number in {n for n, is_ours in zip(numbers, said) if is_ours}:
                        won.setdefault(number, []).append(attempt)
                    ended.update(numbers)
                elif step == "find":
                    found = ledger.find(numbers)
                    assert before <= set(found)
                    seen.extend(found.items())
                else:
                    assert ledger.counts().finished >= len(before)

        return work

    turns.run([program(which, steps) for which, steps in enumerate(programs)], choices)
    ledger = Ledger(MemoryStore(url), "infer", 4, segment_size=2)
    for _ in range(2):
        records = {record.number: record for record in ledger.records()}
        assert {number: [record.attempt] for number, record in records.items()} == won
        assert set(records) == ended
        assert all(records[number].state == state for number, state in seen)
        assert ledger.counts().finished == len(ended)
        ledger.compact()
    assert len(list(MemoryStore(url).list())) == len({number // 2 for number in ended})


@given(st.lists(st.integers(0, 1), min_size=12, max_size=12))
def test_found_while_folded(choices):
    """A task that has ended is found, and counted once, at every instant of a fold."""
    url, turns = secrets.token_hex(8), Turns()
    Ledger(MemoryStore(url), "infer", 4).record([a_record(0), a_record(1)])
    store = SteppedStore(MemoryStore(url), turns)
    ledger = Ledger(store, "infer", 4, in_background=False)
    found = []

    def look():
        found.append(ledger.find([0, 1]))
        found.append(ledger.counts().done)
        found.append(list(ledger.missing(range(2))))

    turns.run([Ledger(store, "infer", 4, in_background=False).compact, look], choices)
    assert found == [{0: "done", 1: "done"}, 2, []]


@given(st.lists(st.integers(0, 5), max_size=150), st.booleans())
def test_reopened_meanwhile(choices, is_folded):
    """A fold and a zombie at the time of a repair bring nothing back and take nothing away."""
    url, turns = secrets.token_hex(8), Turns()

    def ledger():
        return Ledger(
            SteppedStore(MemoryStore(url), turns), "infer", 4, segment_size=4, in_background=False
        )

    plain = Ledger(MemoryStore(url), "infer", 4, segment_size=4)
    plain.record([a_record(0, "old"), a_record(1, "old")])
    if is_folded:
        plain.compact()
    won = {}

    def again():
        mine = ledger()
        mine.reopen([0])
        won["new"] = mine.record([a_record(0, "new")])[0]

    def zombie():
        won["zombie"] = ledger().record([a_record(0, "zombie")])[0]

    turns.run([ledger().compact, again, zombie, ledger().compact], choices)
    for _ in range(2):
        records = {record.number: record.attempt for record in plain.records()}
        assert records[1] == "old"
        assert [attempt for attempt, is_ours in won.items() if is_ours] == [records[0]]
        assert plain.find([0, 1]) == {0: "done", 1: "done"}
        plain.compact()


@given(st.lists(st.integers(0, 2), max_size=60), st.sampled_from(["silent", "failed", "ended"]))
def test_withdrawn_meanwhile(choices, outcome):
    """An attempt that is withdrawn while others compact does not come back; other attempts stay."""
    url, turns = secrets.token_hex(8), Turns()

    def ledger():
        return Ledger(SteppedStore(MemoryStore(url), turns), "infer", 4, in_background=False)

    plain = Ledger(MemoryStore(url), "infer", 4)
    plain.begin(0, "withdrawn", "")
    plain.begin(1, "kept", "")
    if outcome == "failed":
        plain.fail(a_failure(1, "kept"))
    elif outcome == "ended":
        plain.record([a_record(1, "other")])

    def withdraw():
        ledger().withdraw(0, "withdrawn")

    turns.run([ledger().compact, withdraw, ledger().compact], choices)
    for _ in range(2):
        assert plain.attempts(0) == []
        assert "kept" in {each.attempt for each in plain.attempts(1)}
        plain.compact()
    in_journal = list(MemoryStore(url).list("ledger/infer/loose"))
    assert len(in_journal) == (outcome == "silent")


def test_beginnings_do_not_keep_other_segments_from_being_compacted(monkeypatch):
    """Attempts that run stay in the journal, so they do not count as work for a compaction."""
    monkeypatch.setattr(ledger_segments, "COMPACT_EVERY", 1)
    monkeypatch.setattr(ledger_segments, "MOST_SEGMENTS", 1)
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 128, segment_size=64, in_background=False)
    for number in range(20):
        ledger.begin(number, f"attempt-{number}", "")
    ledger.record([a_record(64)])
    assert list(store.list("ledger/infer/pages")) == ["ledger/infer/pages/1"]


# Processes


def test_two_processes(tmp_path):
    """Processes that record the same tasks and fold, in folders: nothing is lost, one wins each."""
    count = 400
    with (
        run(RECORD_AND_FOLD, tmp_path, "a", count) as one,
        run(RECORD_AND_FOLD, tmp_path, "b", count) as other,
    ):
        won = {n: name for name, each in (("a", one), ("b", other)) for line in each.stdout
               for n in json.loads(line)}  # fmt: skip
    assert one.returncode == other.returncode == 0
    ledger = Ledger(open_store(str(tmp_path)), "infer", count, segment_size=64)
    assert {r.number: r.attempt for r in ledger.records()} == {
        number: f"{name}-{number}" for number, name in won.items()
    }
    assert ledger.counts().done == len(won) > 0
    ledger.compact()
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) <= 7


@pytest.mark.drill
def test_killed(tmp_path):
    """What was reported as recorded is there after any kill -9, and folding goes on."""
    count, told = 1000, {}
    for round_number in range(3):
        name = f"r{round_number}"
        with run(RECORD_AND_FOLD, tmp_path, name, count) as process:
            for turn, line in enumerate(process.stdout):
                told |= dict.fromkeys(json.loads(line), name)
                if turn == 15:
                    process.kill()
    ledger = Ledger(open_store(str(tmp_path)), "infer", count, segment_size=64)
    records = {record.number: record.attempt for record in ledger.records()}
    assert len(told) > 50
    assert told.items() <= {n: attempt.partition("-")[0] for n, attempt in records.items()}.items()
    ledger.compact()
    assert ledger.counts().done == len(records)
    assert list(open_store(str(tmp_path)).list("ledger/infer/loose")) == []


def test_stopped_while_it_folds(tmp_path, monkeypatch):
    """A process that is stopped while it changes a page keeps nobody from recording and folding."""
    monkeypatch.setattr(folder_store, "TURN_S", 0.2)
    with run(HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        ledger = Ledger(open_store(str(tmp_path)), "infer", 10)
        for number in range(5):
            assert ledger.record([a_record(number)]) == [True]
        ledger.compact()
        assert list(open_store(str(tmp_path)).list("ledger/infer/loose")) == []
        ledger.reopen([0])
        holder.kill()
    assert ledger.find(range(10)) == dict.fromkeys(range(1, 5), "done")


def test_failing_fold_leaves_what_is_recorded(tmp_path, caplog):
    """A page that cannot be written costs a warning: its tasks are recorded, as objects each."""
    (tmp_path / "ledger" / "infer" / "pages").parent.mkdir(parents=True)
    (tmp_path / "ledger" / "infer" / "pages").write_text("no folder")
    ledger = Ledger(open_store(str(tmp_path)), "infer", 10)
    assert ledger.record([a_record(3)]) == [True]
    ledger.compact()
    assert "cannot compact segment 0 of the ledger: cannot" in caplog.text
    assert ledger.find(range(10)) == {3: "done"}


@pytest.mark.drill
def test_safeguard(tmp_path):
    """Without put-if-absent a zombie replaces the record of a task: it ends twice."""
    for unsafe, said in (
        ("", "[[True], [False]] {3: 'done'}\n"),
        ("put-if-absent", "[[True], [True]] {3: 'dead'}\n"),
    ):
        with run(ZOMBIE, tmp_path / (unsafe or "safe"), CHUNKFLOW_UNSAFE=unsafe) as process:
            assert process.stdout.read() == said
